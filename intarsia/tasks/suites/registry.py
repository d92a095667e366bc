"""All suites, by name."""

from __future__ import annotations

from intarsia.errors import DataError, near_names
from intarsia.tasks.suites.further import FURTHER
from intarsia.tasks.suites.glue import GLUE
from intarsia.tasks.suites.squad import SQUAD
from intarsia.tasks.suites.suite import Suite, SuiteTask
from intarsia.tasks.suites.tagging import NER, UDPOS

SUITES: dict[str, Suite] = {suite.name: suite for suite in (GLUE, SQUAD, FURTHER, NER, UDPOS)}


def find(name: str) -> SuiteTask:
    """The task with a name such as "glue/cola"."""
    for suite in SUITES.values():
        for task in suite.tasks:
            if task.full_name == name:
                return task
    if name in SUITES:
        raise DataError(
            f"{name} is a suite. Name one of its tasks: {', '.join(t.full_name for t in SUITES[name].tasks)}."
        )
    raise unknown(name)


def chosen(name: str | None) -> tuple[SuiteTask, ...]:
    """The tasks of a suite, or the one task of that name; all tasks for None."""
    if name is None:
        return tuple(task for suite in SUITES.values() for task in suite.tasks)
    return SUITES[name].tasks if name in SUITES else (find(name),)


def unknown(name: str) -> DataError:
    """The error for an unknown name, with similar names."""
    names = [*SUITES, *(task.full_name for suite in SUITES.values() for task in suite.tasks)]
    close = near_names(name, names, least=0.75) or [full_name for full_name in names if full_name.endswith(f"/{name}")]
    hint = f"Did you mean {' or '.join(close[:3])}?" if close else f"Suites: {', '.join(SUITES)}."
    return DataError(f"no suite or task {name!r}. {hint} `intarsia data list` lists all.")
