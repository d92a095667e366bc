"""Trains a queue on a Ray cluster. The driver, this process, owns the queue, its results and its progress.

Every batch is trained by one actor. If an actor dies, its batch goes on elsewhere from its checkpoint; a straggler's
batch is also given to an idle actor, and the first to end counts. The results are those of one machine: a batch's
result does not depend on where it is trained (`train/batches.py`), on processors that compute the same bits.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from intarsia import files
from intarsia.cluster.actor import Assignment, Report, share_done
from intarsia.cluster.pool import Member, Pool
from intarsia.cluster.transfer import parts_of
from intarsia.errors import IntarsiaError
from intarsia.train.batches import Batch
from intarsia.train.dispatch import Dispatcher
from intarsia.train.interrupts import Interrupts
from intarsia.train.runner import Runner

WAIT = 0.2  # seconds to wait for reports before looking at idle actors, nodes and signals again
PATIENCE = 60.0  # seconds that actors have, after Ctrl-C, to store their states


@dataclass(frozen=True)
class RayWorkers:
    """The workers of a Ray cluster to which this process is connected."""

    cores: int = 1  # of each actor; the number of threads is part of what the bits of a result depend on
    device: str = "cpu"
    precision: str | None = None
    most: int | None = None  # actors, at most
    save_every: float = 15.0
    share_folder: bool = True  # whether actors that see the queue's folder write their checkpoints there

    def train(self, batches: Sequence[Batch], runner: Runner, *, score_test: bool) -> None:
        """Train the batches on the cluster's actors."""
        if batches:
            with Interrupts() as interrupts:
                _Queue(self, batches, runner, score_test, interrupts).run()
                interrupts.obey()


class _Queue:
    """One queue while it is trained."""

    def __init__(
        self, options: RayWorkers, batches: Sequence[Batch], runner: Runner, score_test: bool, interrupts: Interrupts
    ) -> None:
        import ray

        self.options, self.runner, self.score_test, self.interrupts = options, runner, score_test, interrupts
        self.dispatcher, self.batches = Dispatcher(batches), {batch.name: batch for batch in batches}
        self.jobs = {planned.key: planned.job for batch in batches for planned in batch.jobs}
        words = any(job.data.kind == "words" for job in self.jobs.values())
        # Once in the object store, and from there once to each node that asks.
        self.data = {id(data): ray.put(data) for data in {id(j.data): j.data for j in self.jobs.values()}.values()}
        parts = ray.put(parts_of(runner.encoder, words=words))
        self.pool = Pool(
            parts, cores=options.cores, device=options.device, precision=options.precision, most=options.most
        )
        self.mark = runner.folder / f"seen-{uuid.uuid4().hex}"

    def run(self) -> None:
        files.make_folder(self.runner.folder)
        self.mark.write_text(self.mark.name)
        stop_by: float | None = None
        try:
            while not self.dispatcher.over:
                if self.interrupts.requested:
                    stop_by = stop_by or time.monotonic() + PATIENCE
                    busy = [member for member in self.pool.members.values() if member.stream is not None]
                    for member in busy:
                        self._stop(member)
                    if not busy or time.monotonic() > stop_by:
                        return
                else:
                    self.pool.grow(len(self.dispatcher.number) - len(self.dispatcher.ended))
                    self._assign()
                self._listen()
        finally:
            self.pool.close()
            with suppress(OSError):
                self.mark.unlink()

    def _assign(self) -> None:
        """Give batches to idle actors."""
        for member in self.pool.idle():
            batch = self.dispatcher.take(member.name, time.monotonic())
            if batch is None:
                continue
            keys = self.runner.reopen(batch)
            if not keys:  # another process has stored the results meanwhile
                self._end(member)
                continue
            path, state = self.runner.state_of(batch), None
            shared = member.sees_folder and self.options.share_folder
            if not shared:
                with suppress(FileNotFoundError):
                    state = path.read_bytes()
            jobs = [(key, self.jobs[key]) for key in batch.keys if key in keys]
            costs = {planned.key: planned.cost for planned in batch.jobs}
            member.costs, member.done = costs, {key: 1.0 for key in costs if key not in keys}
            member.stopping = False
            member.stream = member.actor.train.options(num_returns="streaming").remote(
                Assignment(
                    [(key, dataclasses.replace(job, data=None)) for key, job in jobs],  # type: ignore[arg-type]
                    [self.data[id(job.data)] for _, job in jobs], len(batch.jobs),
                    str(path.absolute()) if shared else None, state, self.options.save_every, self.score_test,
                )
            )  # fmt: skip
            if shared:
                files.make_folder(path.parent)

    def _listen(self) -> None:
        """Wait for reports and handle those that are there."""
        import ray
        from ray.exceptions import RayActorError, RayError

        for member in self.pool.members.values():
            if member.ready is None:
                member.ready = member.actor.sees.remote(str(self.mark.absolute()), self.mark.name)
        sources = {m.stream if m.up else m.ready: m for m in self.pool.members.values() if not m.up or m.stream}
        if not sources:
            time.sleep(WAIT)
            return
        found, _ = ray.wait(list(sources), num_returns=1, timeout=WAIT, fetch_local=False)
        found, _ = ray.wait(list(sources), num_returns=len(sources), timeout=0, fetch_local=False)
        for source in found:
            member = sources[source]
            try:
                if not member.up:
                    member.sees_folder, member.up = ray.get(source), True
                    continue
                try:
                    reference = next(member.stream)
                except StopIteration:
                    self._end(member)
                    continue
                self._handle(member, ray.get(reference))
            except RayActorError as error:
                self._lose(member, error)
            except RayError as error:
                cause = getattr(error, "cause", None)
                if isinstance(cause, IntarsiaError):
                    raise cause from error
                if not hasattr(error, "cause"):  # a lost object: the node went while its report travelled
                    self._lose(member, error)
                    continue
                raise

    def _handle(self, member: Member, report: Report) -> None:
        now = time.monotonic()
        attempt = self.dispatcher.attempts.get(member.name)
        if report.progress is not None:
            p = report.progress
            member.done[report.key] = p.step / p.steps if p.reading is None else 0.0
            self.dispatcher.progress(member.name, share_done(member.costs, member.done), now)
            if report.key not in self.runner.ended:
                self.runner.step(dataclasses.replace(p, job=self.jobs[report.key]), member.place)
        elif report.saved:
            if report.state is not None and attempt is not None:
                path = self.runner.state_of(attempt.batch)
                files.make_folder(path.parent)
                files.replace(path, [report.state])
            self.dispatcher.checkpoint(member.name)
        elif report.outcome is not None:
            self.runner.done(self.jobs[report.key], report.outcome)
            member.done[report.key] = 1.0
            self.dispatcher.progress(member.name, share_done(member.costs, member.done), now)
            member.actor.acknowledge.remote()

    def _end(self, member: Member) -> None:
        """Note that an actor's call has ended: with its batch, or because it was to stop."""
        member.stream = None
        attempt = self.dispatcher.attempts.get(member.name)
        if attempt is None:
            return
        if not all(key in self.runner.ended for key in attempt.batch.keys):
            self.dispatcher.give_up(member.name)  # after Ctrl-C
            return
        for other in self.dispatcher.complete(member.name, time.monotonic()):
            self.dispatcher.give_up(other)
            self._stop(self.pool.members[other])

    def _stop(self, member: Member) -> None:
        if not member.stopping:
            member.stopping = True
            member.actor.stop.remote()

    def _lose(self, member: Member, error: Exception) -> None:
        """Take back the batch of an actor that has died; raise if it could not even be made."""
        if not member.up and "creation task" in str(error):
            reason = str(error).strip().splitlines()[-1]
            raise IntarsiaError(
                f"an actor on the node {member.place} could not start: {reason}. Install the same versions of Intarsia "
                "and its dependencies on all nodes, and check their memory."
            ) from error
        self.pool.drop(member)
        self.dispatcher.lost(member.name)
