"""Many fits as one queue: the jobs of a whole search or cross-validation share passes through the frozen base.

scikit-learn fits one estimator after another. `shared_fits` therefore calls the function twice. In the first call,
the rehearsal, estimators note the jobs that they would train and pretend to be fitted. All jobs are then trained in one
queue (`intarsia.train.runner`). In the second call, each `fit` finds its trained job by the job's key, which covers the
data, method, settings, seed and base. A fit that is not found trains alone, so the result never depends on the
rehearsal.
"""

from __future__ import annotations

import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from intarsia.display.log import log_watch
from intarsia.display.show import queue_progress
from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaError, IntarsiaWarning
from intarsia.train.job import Job
from intarsia.train.run import Trained
from intarsia.train.runner import JobResult, Runner, RunnerWatch, join_watchers

Out = TypeVar("Out")


@dataclass
class Plan:
    """The fits of one call: first their jobs, then their results."""

    jobs: dict[str, tuple[Job, Encoder]] = field(default_factory=dict)  # by key
    results: dict[str, Trained | IntarsiaError] | None = None  # None in the rehearsal
    found: int = 0  # fits of the second call that were trained together
    alone: int = 0  # fits that were not in the rehearsal


_lock = threading.RLock()  # one training at a time: fits in threads would share the base's passes
_plan: Plan | None = None


def train_for_fit(job: Job, encoder: Encoder) -> Trained | None:
    """Train the job of a `fit`, or return its result from the queue; None in a rehearsal."""
    with _lock:
        if _plan is not None and _plan.results is None:
            _plan.jobs[job.key(encoder.fingerprint)] = job, encoder
            return None
        key = job.key(encoder.fingerprint)
        results = {} if _plan is None or _plan.results is None else _plan.results
        if _plan is not None:
            _plan.found += key in results
            _plan.alone += key not in results
        result = results.get(key) or _train([job], encoder, 1, log_watch())[key]
        if isinstance(result, IntarsiaError):
            raise result
        return result


def shared_fits(
    function: Callable[..., Out], *args: Any, together: int | None = None, progress: bool | None = None, **kwargs: Any
) -> Out:
    """Return `function(*args, **kwargs)`, whose fits of Intarsia's estimators share passes.

        scores = shared_fits(cross_val_score, IntarsiaClassifier(), texts, labels, cv=5)

    The function is called twice (see above), so it must do the same both times: give random splits a `random_state`.
    It must fit in this process (`n_jobs=None`). `together` is the number of jobs that share a pass (None: as many as
    fit). `progress`: as in `bank.learn`.
    """
    with sharing(lambda: function(*args, **kwargs), together=together, progress=progress) as plan:
        result = function(*args, **kwargs)
    if plan.jobs and not plan.found:
        warnings.warn(
            f"none of the {len(plan.jobs)} fits shared passes: the second call fitted other data or settings than the "
            "first. Give random splits and searches a random_state.",
            IntarsiaWarning,
            stacklevel=2,
        )
    return result


@contextmanager
def sharing(
    rehearsal: Callable[[], Any], *, together: int | None = None, progress: bool | None = None
) -> Iterator[Plan]:
    """Train the jobs of a rehearsal in one queue; inside the context, each `fit` takes its result from there."""
    global _plan
    with _lock:
        if _plan is not None:  # inside another call: its plan has, or notes, these jobs
            yield Plan()
            return
        plan = Plan()
        try:
            _plan = plan
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # scores of pretended predictions
                with suppress(Exception):  # the second call raises it again, with real predictions
                    rehearsal()
            plan.results = {}
            _plan = None
            with queue_progress(False if not plan.jobs else progress) as shown:
                for encoder in {id(encoder): encoder for _, encoder in plan.jobs.values()}.values():
                    jobs = [job for job, its_encoder in plan.jobs.values() if its_encoder is encoder]
                    plan.results |= _train(jobs, encoder, together, join_watchers(None, shown, log_watch()))
            _plan = plan
            yield plan
        finally:
            _plan = None


def _train(
    jobs: Iterable[Job], encoder: Encoder, together: int | None, watch: RunnerWatch | None
) -> dict[str, Trained | IntarsiaError]:
    """Train jobs in one queue; return their results by key."""
    results = _InMemory()
    with tempfile.TemporaryDirectory(prefix="intarsia-fits-") as folder:
        Runner(jobs, encoder, Path(folder), results, watch=watch).run(together)
    return results.outcomes


class _InMemory:
    """A result store that keeps the results of one call."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Trained | IntarsiaError] = {}

    def find(self, job: Job, key: str) -> None:
        """Nothing is stored before the call."""

    def add(self, job: Job, key: str, outcome: Trained | IntarsiaError) -> JobResult:
        self.outcomes[key] = outcome
        return JobResult.of(job, key, outcome)
