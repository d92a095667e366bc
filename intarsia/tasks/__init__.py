"""Tasks: data loading, task kinds (inputs, loss, metric, answers), heads and public task suites."""

from intarsia.tasks.data import load_data
from intarsia.tasks.examples import Example, Kind, TaskData

__all__ = ["Example", "Kind", "TaskData", "load_data"]
