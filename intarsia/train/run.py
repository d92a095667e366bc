"""A training run: a job with its slot, optimizer state and progress."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.noise import Noise
from intarsia.encoder.packed import Segment
from intarsia.encoder.routed import Group
from intarsia.encoder.shape import Shape
from intarsia.encoder.slots import Slots
from intarsia.errors import IntarsiaError
from intarsia.methods import Method, Spec
from intarsia.methods.below import frozen_key
from intarsia.methods.compose import parent_tensors, trained_parts
from intarsia.methods.held import Held, all_own_tensors, parts_of
from intarsia.tasks.heads import Head, pooler_instead
from intarsia.tasks.kind_registry import kind_for
from intarsia.tasks.learned import Learned, check_parents
from intarsia.tasks.metrics import check_choosing, default_metric
from intarsia.tasks.task_kind import TaskKind, Tuning
from intarsia.train import checkpoint
from intarsia.train.class_weights import weights_of
from intarsia.train.features import ReadingProgress, pooled_states
from intarsia.train.frozen_parents import FrozenParents
from intarsia.train.job import Job
from intarsia.train.optimizer import Adam, linear_rate
from intarsia.train.tokens import Tokenizer
from intarsia.train.training_slots import TrainingSlots
from intarsia.train.trunk import Below, TrunkCache, trunk_layer


def is_exclusive(method: Method) -> bool:
    """Return whether runs of the method cannot share a pass: it changes the base or learns from stored states."""
    return method.changes_base or method.cached


class Diverged(IntarsiaError):
    """The loss or the validation outputs of a run contain NaN or infinity; `seconds` is the run's own time."""

    def __init__(self, message: str, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.seconds = seconds


def check_job(job: Job, shape: Shape) -> None:
    """Raise if the method, the task kind and the settings of a job do not fit together on this base."""
    data, task_kind = job.data, kind_for(job.data)
    job.method.check(shape)
    check_parents(job.method, job.parents)
    room = shape.positions - job.method.position_offset
    if job.method.position_offset and job.settings.max_length > room:
        raise IntarsiaError(
            f"max_length {job.settings.max_length} is too long: this base has {shape.positions} positions, and the "
            f"texts begin at position {job.method.position_offset}. Use max_length={room} or less."
        )
    if task_kind.reads_tokens and job.method.cached:
        raise IntarsiaError(
            f"the method {job.method.name} learns from one vector per text, but the task kind {data.kind!r} needs one "
            "vector per word. Choose another method."
        )
    if task_kind.draws and not job.settings.trunk_dropout:
        raise IntarsiaError(
            f"the outputs of the lower layers cannot be cached for the task kind {data.kind!r}: new words are masked "
            "at each step. Leave trunk_dropout on."
        )
    check_choosing(job.settings.metric or default_metric(data.kind, data.labels), data.kind, data.labels)
    weights_of(job.settings.class_weights, data)  # raises if they do not fit
    if job.settings.threshold is not None and data.kind != "labels":
        raise IntarsiaError(
            f"a threshold is for tasks with several labels of n (kind labels); this task's kind is {data.kind}. Leave "
            "threshold out, or give kind='labels'."
        )


@dataclass(frozen=True)
class Trained:
    """The result of a run: its best checkpoint and its history."""

    learned: Learned
    metric: str
    state: checkpoint.State
    test: float | None = None  # the score on the test part; None if it was not computed
    left_out: int = 0  # words of the training part beyond the maximum length of their texts
    also: dict[str, float] = field(default_factory=dict)  # further scores on the test part, by metric

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        return self.learned.tensors


class Run:
    """A training run: a job with its slot, optimizer state and progress."""

    def __init__(
        self,
        job: Job,
        encoder: Encoder,
        *,
        cache: Path | None = None,
        tokenizer: Tokenizer | None = None,
        slots_for: Callable[[Run], TrainingSlots] | None = None,
        trunk: TrunkCache | None = None,
        parents: FrozenParents | None = None,
        report: ReadingProgress | None = None,
    ) -> None:
        """`cache`: the folder for stored states; `report` is called while they are computed. `slots_for` returns the
        training slots from which the run takes its slot in each phase; None: the run creates a slot of its own.
        `parents`: the frozen inlays of all runs."""
        self.job, self.encoder, self.method = job, encoder, job.method
        data, settings, shape = job.data, job.settings, encoder.shape
        check_job(job, shape)
        encoder.check_trains()
        self.task_kind = kind_for(data)
        self.head = self.task_kind.head(job.pooling, job.hidden)
        self.metric = settings.metric or default_metric(data.kind, data.labels)
        self.head_specs = head_specs(job, self.head, shape)
        self.tokens = (tokenizer or Tokenizer(encoder))(data, settings.max_length)
        self.cache, self.report = cache, report
        self.trunk, self.trunk_layer = trunk or TrunkCache(encoder), trunk_layer(job, shape)
        self.stored_states: dict[str, Tensor] = {}
        began = time.monotonic()
        if self.method.cached:
            self.states("train"), self.states("dev")
        states_seconds = time.monotonic() - began
        train = self.tokens["train"]
        self.targets = self.task_kind.row_targets(data.train, train.inputs).to(encoder.device)
        weights = weights_of(settings.class_weights, data)
        self.class_weights = None if weights is None else weights.to(encoder.device)
        self.steps_an_epoch = math.ceil(len(train.segments) / settings.batch_size)
        self.places = self.method.places(shape)
        self.parents = (parents or FrozenParents(encoder)).of(job.method, job.parents)
        self.phases = self.method.phases(shape)
        self.epochs = [max(1, round(settings.epochs * phase.epochs)) for phase in self.phases]
        first = len(self.phases) - 1 if job.start else 0  # earlier phases choose what the last one trains
        self.epochs[:first] = [0] * first
        self.steps = self.steps_an_epoch * sum(self.epochs)
        self.state = checkpoint.State(seconds=states_seconds)
        self.slots_for = slots_for
        self.fixed_weights: dict[str, Tensor] | None = None  # if only frozen inlays change the base
        self.head_starts = {f"head.{name}": tensor for name, tensor in self.head.starts(encoder).items()}
        self.enter(first, *self._given(first))

    def _given(self, phase: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the tensors that stay fixed and the initial values that the job gives for a phase."""
        given = dict(self.job.start.tensors) if self.job.start else {}
        trained = {f"method.{name}" for name in self.phases[phase].specs} | set(self.head_specs)
        kept = {k.removeprefix("method."): t.to(self.encoder.device) for k, t in given.items() if k not in trained}
        return kept, self.head_starts | {name: tensor for name, tensor in given.items() if name in trained}

    def enter(self, phase: int, kept: dict[str, Tensor], starts: dict[str, Tensor]) -> None:
        """Begin a phase in an empty slot: fresh tensors (or those in `starts`) and a fresh optimizer state.

        `kept`: the tensors that earlier phases left.
        """
        self.state.phase, self.phase, self.kept = phase, self.phases[phase], kept
        self.specs = {f"method.{k}": v for k, v in self.phase.specs.items()} | self.head_specs
        if self.slots_for is None:
            self.training_slots = TrainingSlots(self.specs, 1, self.job.settings.adam, self.encoder)
        else:
            self.training_slots = self.slots_for(self)
        self.slot = self.training_slots.take()
        self.index = self.training_slots.index(self.specs)
        self._write("now", self.training_slots.fresh(self.specs, starts, self.encoder, self.job.settings.seed))
        self.best = self._read("now").clone() if self.last_phase else self._read("now")

    def leave(self) -> None:
        """Free the slot."""
        self.training_slots.free.append(self.slot)

    def _read(self, name: str) -> Tensor:
        return self.training_slots.read(self.training_slots.buffers[name], self.slot, self.index)

    def _write(self, name: str, row: Tensor) -> None:
        self.training_slots.write(self.training_slots.buffers[name], self.slot, self.index, row)

    @property
    def slots(self) -> Slots:
        return self.training_slots.slots

    @property
    def leaves(self) -> dict[str, Tensor]:
        return self.training_slots.leaves

    @property
    def adam(self) -> Adam:
        return self.training_slots.adam

    @property
    def last_phase(self) -> bool:
        return self.phase is self.phases[-1]

    @property
    def exclusive(self) -> bool:
        return is_exclusive(self.method)

    def states(self, part: str) -> Tensor:
        """Return the frozen base's pooled states of a part, computed once, for methods that learn from them."""
        if part not in self.stored_states:
            self.stored_states[part] = pooled_states(
                self.encoder, self.tokens[part], self.job.pooling, self.cache, self.report
            )
        return self.stored_states[part]

    @cached_property
    def target_values(self) -> np.ndarray:
        """[rows, outputs] the targets of the training rows as floats: a true label's weight (1), or the score."""
        targets = self.targets.cpu()
        if self.task_kind.kind == "label":
            targets = F.one_hot(targets, self.task_kind.outputs)
        values = targets.view(len(targets), -1).float()
        return (values if self.class_weights is None else values * self.class_weights.cpu()).numpy()

    def slot_leaves(self, prefix: str) -> dict[str, Tensor]:
        """Return the leaves [slots, …] of all slots whose names begin with `prefix` ("method." or "head.")."""
        return {k.removeprefix(prefix): v for k, v in self.leaves.items() if k.startswith(prefix)}

    def group(self, first: int, rows: int) -> Group:
        """Return the group of this run's rows in a pass, from row `first` on."""
        tensors = self.slot_leaves("method.")
        parts = parts_of([Held(self.method, tensors, self.slot, self.parents)], self.encoder.shape)
        return Group(self.method, self.places, tensors, first, (self.slot,), (rows,), parts)

    def below(self, layer: int) -> Below | None:
        """Return what frozen inlays compute below a layer of the trunk; None: nothing."""
        key = frozen_key(self.method, layer, self.encoder.shape)
        return None if key is None else Below(key, self.group)

    def weights(self, noise: Noise | None) -> dict[str, Tensor]:
        """Return the weights that replace the base's in the next pass of a method that changes the base."""
        if self.fixed_weights is not None:
            return self.fixed_weights
        encoder, tensors = self.encoder, self.composed()
        weights = self.method.weights(self.phase.name, encoder.shape, tensors, self.kept, encoder.weights, noise)
        weights = {name: weight.to(encoder.dtype) for name, weight in weights.items()}
        if self.parents and not any(part.changes_base for part in trained_parts(self.method)):
            self.fixed_weights = weights
        return weights

    def composed(self) -> dict[str, Tensor]:
        """Return this run's leaves of the method and the tensors of its frozen inlays."""
        return self.own_leaves() | parent_tensors(self.method, all_own_tensors(self.parents))

    def own_leaves(self, prefix: str = "method.") -> dict[str, Tensor]:
        """Return this run's part of the leaves whose names begin with `prefix` ("method." or "head.")."""
        own = {}
        for name, leaf in self.slot_leaves(prefix).items():
            tensor = leaf.squeeze(0) if leaf.shape[0] == 1 else leaf[self.slot]  # squeeze does not copy the gradient
            if self.index is not None:
                tensor = tensor[tuple(slice(0, size) for size in self.specs[prefix + name].shape)]
            own[name] = tensor
        return own

    def head_logits(self, pooled: Tensor, weights: Mapping[str, Tensor], noise: Noise | None) -> Tensor:
        """Return the head's logits for pooled states; `weights`: the run's replacements of the base's weights."""
        own = self.composed() if self.method.touches_rows or self.method.inverts_words else {}
        return self.head.logits(
            self.own_leaves("head."),
            pooled,
            self.encoder,
            noise,
            own=lambda rows: self.method.pooled(own, rows),
            pooler=pooler_instead(self.encoder, own, weights),
            weights=weights,
            words=lambda rows: self.method.words(own, rows),
        )

    def drawn(self, rows: Sequence[int]) -> list[Segment]:
        """Return the segments of training rows for the next step (masked words are drawn anew at each step)."""
        return self.task_kind.at_step(self.tokens["train"].inputs, rows, self.job.settings.seed, self.state.step)

    def loss(self, logits: Tensor, rows: Sequence[int], segments: Sequence[Segment]) -> Tensor:
        """Return the mean loss of training rows."""
        if self.class_weights is None:
            return self.task_kind.loss(logits, self.targets[list(rows)], segments)
        return self.task_kind.weighted_loss(logits, self.targets[list(rows)], self.class_weights)

    def penalty(self) -> Tensor | None:
        """Return the penalty that the method adds to the loss; None if it has none."""
        shape, base = self.encoder.shape, self.encoder.weights
        return self.method.penalty(self.phase.name, shape, self.own_leaves(), self.kept, base)

    def apply(self, gradient: Tensor, loss: float, rows: Sequence[int]) -> None:
        """Take the optimizer step of a run that has its own optimizer; `gradient`: [1, parameters]."""
        if not math.isfinite(loss):
            raise self.diverged(loss)
        rates = torch.tensor([self.rate()], device=gradient.device, dtype=gradient.dtype)
        self.adam.step(gradient, rates, self.corrections())
        self.advance(rows)

    def rate(self) -> float:
        """Return the learning rate of the next step."""
        s, state = self.job.settings, self.state
        steps = self.steps_an_epoch * self.epochs[state.phase]
        return linear_rate(state.step - state.phase_step, steps, s.learning_rate * self.phase.rate, s.warmup)

    def corrections(self) -> tuple[float, float]:
        """Return the bias corrections of Adam's moments in the next step."""
        return self.job.settings.adam.corrections(self.state.step - self.state.phase_step)

    def advance(self, rows: Sequence[int]) -> None:
        """Count a step on these rows."""
        self.state.step += 1
        self.state.tokens += int(self.tokens["train"].lengths[np.asarray(rows)].sum())

    def diverged(self, loss: float | None) -> Diverged:
        """Return the error of this run; `loss` None: the loss was finite, but the validation outputs are not."""
        reason = "its validation outputs contain NaN or infinity" if loss is None else f"its loss is {loss}"
        return Diverged(
            f"training of {self.job.name!r} diverged at step {self.state.step + (loss is not None)} of {self.steps}: "
            f"{reason}. Nothing was stored; try a learning rate below {self.job.settings.learning_rate:g}.",
            self.state.own_seconds,
        )

    def score(
        self,
        part: str,
        predictions: Sequence[np.ndarray] | np.ndarray,
        tuned: Mapping[str, Any] | None = None,
        metric: str | None = None,
    ) -> float:
        """Return the score of predictions for dev or test; `tuned`: values to use (None: those of the best epoch)."""
        examples = self.job.data.dev if part == "dev" else self.job.data.test
        task_kind = best_kind(self.task_kind, self.state) if tuned is None else self.task_kind.tuned(tuned)
        rows = task_kind.retempered(list(predictions))  # they were made without the temperature
        return task_kind.measure(metric or self.metric, examples, self.tokens[part].inputs, list(rows), 0).value

    def end_epoch(self, epoch: int, mean_loss: float | None, predictions: Sequence[np.ndarray] | np.ndarray) -> None:
        """Add an epoch to the history and update the best checkpoint; `predictions`: those for each row of dev."""
        state = self.state
        entry: dict[str, Any] = {"epoch": epoch + 1, "step": state.step, "loss": mean_loss}
        state.history.append(entry)
        if len(self.phases) > 1:
            entry["phase"] = self.phase.name
        if not self.last_phase:
            return
        settings = self.job.settings
        tuning = Tuning(self.metric, settings.calibrate, settings.threshold)
        entry |= self.task_kind.tune(self.job.data.dev, self.tokens["dev"].inputs, list(predictions), tuning)
        value = entry[self.metric] = self.score("dev", predictions, entry)
        if (label := self.task_kind.always(self.job.data.dev, list(predictions))) is not None:
            entry["always"] = label
        if state.best is None or value >= state.best:  # at equal scores prefer the later epoch, which trained longer
            state.best, state.best_epoch = value, epoch + 1
            self.best.copy_(self._read("now"))

    def next_phase(self) -> None:
        """End the present phase and begin the next."""
        tensors = {k.removeprefix("method."): v for k, v in self.slots.get(self.slot).items()}
        head = {k: tensors.pop(k) for k in self.head_specs}
        shape, base = self.encoder.shape, self.encoder.weights
        with torch.no_grad():
            ending = self.method.end_phase(self.phase.name, shape, tensors, self.kept, base)
        starts = {f"method.{k}": v for k, v in ending.starts.items()} | (head if ending.keep_head else self.head_starts)
        state = self.state
        state.phase_step, state.phase_epoch = state.step, len(state.history)
        self.enter(state.phase + 1, {**self.kept, **ending.kept}, starts)

    @property
    def phase_done(self) -> bool:
        """Whether the phase has had all its epochs, or the patience is exhausted."""
        patience, state = self.job.settings.patience, self.state
        epoch = len(state.history)
        if epoch - state.phase_epoch >= self.epochs[state.phase]:
            return True
        if not self.last_phase or patience is None:
            return False
        # The first epoch with the best score counts, because an equal score is no improvement.
        improved = next((e["epoch"] for e in state.history if e.get(self.metric) == state.best), 0)
        return epoch - max(improved, state.phase_epoch) >= patience

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint."""
        tensors = {name: self._read(name) for name in self.training_slots.buffers}
        if self.last_phase:  # earlier phases select no best epoch
            tensors["best"] = self.best
        return tensors | {f"kept.{name}": tensor for name, tensor in self.kept.items()}

    def resume(self, state: checkpoint.State, tensors: dict[str, Tensor]) -> None:
        """Continue from a checkpoint."""
        kept = {k.removeprefix("kept."): v.to(self.encoder.device) for k, v in tensors.items() if k.startswith("kept.")}
        self.state = state
        self.leave()
        self.enter(state.phase, kept, {})
        for name in self.training_slots.buffers:
            self._write(name, tensors[name])
        if self.last_phase:
            self.best.copy_(tensors["best"])

    def take_best(self) -> None:
        """Replace the present tensors by those of the best epoch."""
        self._write("now", self.best)

    def result(self, tested: Mapping[str, float] | None = None) -> Trained:
        """Return the best epoch's tensors and the history; `tested`: scores on the test part, by metric."""
        kept = {f"method.{name}": tensor for name, tensor in self.kept.items()}
        tensors = kept | named_tensors(self.specs, self.best)
        left_out = self.tokens["train"].inputs.left_out
        task_kind = best_kind(self.task_kind, self.state)
        also = dict(tested or {})
        test = also.pop(self.metric, None)
        learned = Learned(self.method, self.head, task_kind, tensors, self.job.parents)
        return Trained(learned, self.metric, self.state, test, left_out, also)


def best_kind(task_kind: TaskKind, state: checkpoint.State) -> TaskKind:
    """Return the task kind with the values that were tuned at the best epoch."""
    return task_kind.tuned(state.history[state.best_epoch - 1]) if state.best_epoch else task_kind


def head_specs(job: Job, head: Head, shape: Shape) -> dict[str, Spec]:
    """Return the specs of the head's tensors, with the prefix "head."."""
    return {f"head.{k}": v for k, v in head.tensors(shape, job.method.row_width(shape)).items()}


def named_tensors(specs: Mapping[str, Spec], row: Tensor) -> dict[str, Tensor]:
    """Return copies of the named tensors in a flat row [1, parameters]."""
    sizes = [spec.size for spec in specs.values()]
    parts = row[0].detach().split(sizes) if sizes else ()
    return {name: part.view(specs[name].shape).clone() for name, part in zip(specs, parts, strict=True)}
