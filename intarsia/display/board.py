"""The state of a queue of jobs while it runs: a table, or one line for each finished job."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from intarsia.display.terminal import tell
from intarsia.display.time_left import TimeLeft
from intarsia.formatting import score
from intarsia.methods import full_name, to_dict

if TYPE_CHECKING:
    from rich.table import Table

    from intarsia.train.job import Job
    from intarsia.train.runner import RunnerEvent, RunnerResult


MACHINES = 6  # are listed with their jobs


class Board:
    """The state of a sweep's jobs, for the table and the lines."""

    def __init__(self) -> None:
        self.jobs: dict[str, int] = {}  # the number of jobs of each task
        self.ended: dict[str, list[tuple[Job, RunnerResult]]] = {}  # by task
        self.running: dict[str, set[str]] = {}  # keys of the active jobs, by task
        self.places: dict[str, str] = {}  # the machine of each active job, in a cluster
        self.left = TimeLeft()
        self.reading = ""  # the progress of a feature-based job before its first step
        self.read = ("", 0)  # the last line printed about it: (task, tenths)

    def take(self, event: RunnerEvent) -> None:
        """Update the state by an event."""
        self.left.take(event)
        if event.planned is not None:
            self.jobs = dict(event.counts)
            self.ended, self.running = {task: [] for task in self.jobs}, {task: set() for task in self.jobs}
        if (p := event.progress) is not None:
            if p.reading is None:
                self.running[p.job.name].add(event.key)
                if event.place:
                    self.places[event.key] = event.place
            self.reading = "" if p.reading is None else f"{p.job.name}: {100 * p.reading:.0f}% · {p}"
        if event.result is not None and event.job is not None:
            self.ended[event.job.name].append((event.job, event.result))
            self.running[event.job.name].discard(event.key)
            self.places.pop(event.key, None)

    def lines(self, event: RunnerEvent) -> None:
        """Update the state by an event; print a line at the start and for each finished job."""
        self.take(event)
        if event.planned:
            tell(f"Jobs to train: {sum(self.jobs.values())}. Each prints a line when it ends.")
        if (progress := event.progress) is not None and progress.reading is not None:
            read = progress.job.name, int(10 * progress.reading)
            if read != self.read:
                tell(self.reading)
            self.read = read
        if event.result is not None and event.job is not None:
            task = event.job.name
            place = f"{task} {len(self.ended[task])}/{self.jobs[task]}"
            tell(f"{place}: {described(event.job)}: {dev_score(event.result)} · {self.left}")

    def table(self) -> Table:
        """Return the table of all tasks."""
        from rich.table import Table

        caption = " · ".join([*self._machines(), self.reading or str(self.left)])
        table = Table(box=None, pad_edge=False, header_style="bold", caption=caption, caption_justify="left")
        for name, side in (("task", "left"), ("done", "right"), ("running", "right"), ("waiting", "right"),
                           ("best so far", "left"), ("validation", "right")):  # fmt: skip
            table.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
        for task, count in self.jobs.items():
            ended, running = self.ended[task], len(self.running[task])
            scored = [(job, result) for job, result in ended if result.dev is not None]
            best = max(scored, key=lambda pair: pair[1].dev or 0.0, default=None)
            waiting = max(0, count - len(ended) - running)
            shown = ("–", "–") if best is None else (described(best[0]), dev_score(best[1]))
            table.add_row(task, str(len(ended)), str(running), str(waiting), *shown)
        return table

    def _machines(self) -> list[str]:
        """Return the number of active jobs on each machine of a cluster; none without a cluster."""
        counts = Counter(self.places.values())
        shown = [f"{place}: {count} running" for place, count in sorted(counts.items())]
        return shown if len(shown) <= MACHINES else [*shown[:MACHINES], f"{len(shown) - MACHINES} more machines"]


def described(job: Job) -> str:
    """Return a short description of a point of the grid."""
    s = job.settings
    epochs = f"{s.epochs} epoch{'s' * (s.epochs != 1)}"
    return f"{full_name(to_dict(job.method))} lr {s.learning_rate:g} · {epochs} · seed {s.seed}"


def dev_score(result: RunnerResult) -> str:
    """Return the validation score of a result for people."""
    return "diverged" if result.dev is None else score(result.dev)
