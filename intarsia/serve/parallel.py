"""A request for the answers of several tasks to each text."""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.errors import IntarsiaError

MOST_TASKS = 64


@dataclass(frozen=True, init=False)
class Parallel:
    """The tasks that answer each text: names, with an optional version (`tone@2`).

    Their rows share all that the base computes below the lowest layer in which the tasks differ.
    """

    tasks: tuple[str, ...]

    def __init__(self, *tasks: str) -> None:
        for task in tasks:
            if not isinstance(task, str) or not task.strip():
                raise IntarsiaError(f"Parallel has the part {repr(task)[:60]}; expected names of tasks.")
        if not 1 <= len(tasks) <= MOST_TASKS:
            raise IntarsiaError(f"Parallel has {len(tasks)} tasks; expected 1 to {MOST_TASKS}.")
        if len(set(tasks)) < len(tasks):
            twice = next(task for task in tasks if tasks.count(task) > 1)
            raise IntarsiaError(f"Parallel has the task {twice!r} twice; name each task once.")
        object.__setattr__(self, "tasks", tuple(tasks))
