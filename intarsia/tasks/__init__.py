"""Tasks: examples with labels, where they come from, and how well they are predicted."""

from intarsia.tasks.data import load_data
from intarsia.tasks.examples import Example, Kind, TaskData

__all__ = ["Example", "Kind", "TaskData", "load_data"]
