"""From asks to rows: resolve the tasks, check and tokenize the texts. Runs in the threads of the callers.

A bad ask gets its own error, and the others go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import Segment
from intarsia.errors import IntarsiaError, PassFailed
from intarsia.serve.ask import Answer, Ask
from intarsia.serve.prediction import Prediction
from intarsia.serve.served import Served
from intarsia.tasks.examples import Example, check_answers
from intarsia.tasks.inputs import Inputs

NOT_FINITE = (
    "the model's outputs for this text contain NaN or infinity: the weights of the task or of the base are too large. "
    "Restore an older version of the task, or learn it again."
)


class Resolve(Protocol):
    """Returns a version of a task, ready to be served; `swap` replaces inlays on which it is built."""

    def __call__(self, name: str, version: int | None = None, swap: tuple[tuple[str, str], ...] = (), /) -> Served: ...


@dataclass(eq=False)
class Group:
    """The asks of one call for one version of one task (None: the plain base)."""

    served: Served | None
    places: list[int] = field(default_factory=list)  # of the asks in the call
    examples: list[Example] = field(default_factory=list)
    inputs: Inputs = field(default_factory=lambda: Inputs([]))
    embed: bool = False
    outputs: list[Any] = field(default_factory=list)  # one per segment, as passes give them

    @property
    def key(self) -> str | None:
        return None if self.served is None else self.served.key

    def place(self, segment: int) -> int:
        """Return the place in the call of the ask that a segment belongs to."""
        return self.places[self.inputs.owners[segment] if self.inputs.owners else segment]

    def answers(self, asks: Sequence[Ask]) -> dict[int, Answer]:
        """Return the answer of each place; call it when all outputs are there."""
        vectors: Sequence[Any] = self.outputs if self.embed else [None] * len(self.places)
        predictions: Sequence[Prediction | None] = [None] * len(self.places)
        if not self.embed:
            assert self.served is not None
            kind_of_task, rows = self.served.interface.task_kind, self.outputs
            if not kind_of_task.reads_tokens:  # the passes gave logits
                rows = list(kind_of_task.probabilities(torch.from_numpy(np.stack(rows))))
            described = kind_of_task.describe_all(self.examples, self.inputs, rows)
            predictions = [Prediction.of(self.served.name, answer) for answer in described]
        version, kind = (None, None) if self.served is None else (self.served.version, self.served.kind)
        tokens, truncated = self._sizes()
        broken = self._not_finite()
        answers = {}
        for i, place in enumerate(self.places):
            about = {"version": version, "kind": kind, "tokens": tokens[i], "truncated": truncated[i]}
            if i in broken:
                answers[place] = Answer(asks[place], error=PassFailed(NOT_FINITE), **about)  # type: ignore[arg-type]
            else:
                answers[place] = Answer(asks[place], predictions[i], vectors[i], **about)  # type: ignore[arg-type]
        return answers

    def _not_finite(self) -> set[int]:
        """Return the examples whose outputs contain NaN or infinity."""
        alike = len({output.shape for output in self.outputs}) == 1
        parts = [np.stack(self.outputs)] if alike else self.outputs  # heads that read rows: one look at all
        if all(map(_is_finite, parts)):
            return set()
        owners = self.inputs.owners or range(len(self.outputs))
        return {owner for owner, output in zip(owners, self.outputs, strict=True) if not _is_finite(output)}

    def _sizes(self) -> tuple[list[int], list[bool]]:
        owners = self.inputs.owners or range(len(self.inputs.segments))
        tokens, truncated = [0] * len(self.places), [False] * len(self.places)
        for owner, segment in zip(owners, self.inputs.segments, strict=True):
            tokens[owner] += len(segment.ids)
            truncated[owner] |= segment.truncated
        return tokens, truncated


@dataclass(eq=False)
class Prepared:
    """The groups of a call, and the errors of its other asks."""

    groups: list[Group]
    errors: dict[int, IntarsiaError]

    @property
    def tokens(self) -> int:
        return sum(len(segment.ids) for group in self.groups for segment in group.inputs.segments)

    @property
    def truncated(self) -> int:
        """Return the number of asks whose text was cut."""
        return sum(
            len({group.place(row) for row, segment in enumerate(group.inputs.segments) if segment.truncated})
            for group in self.groups
        )


def prepare(asks: Sequence[Ask], resolve: Resolve, encoder: Encoder, *, truncate: bool) -> Prepared:
    """Return the rows of a call."""
    errors: dict[int, IntarsiaError] = {}
    groups: dict[tuple[Any, ...], Group] = {}
    unresolved: dict[tuple[Any, ...], IntarsiaError] = {}
    for place, ask in enumerate(asks):
        try:
            if ask.resolved_by in unresolved:
                raise unresolved[ask.resolved_by]
            # A task has only pairs or only single texts; the plain base takes both.
            key = (*ask.resolved_by, ask.embed, ask.task is None and isinstance(ask.text, str))
            group = groups.get(key)
            if group is None:
                group = groups[key] = Group(_resolved(ask, resolve, unresolved), embed=ask.embed)
            example = _example(ask, group.served)
        except IntarsiaError as error:
            errors[place] = error
            continue
        group.places.append(place)
        group.examples.append(example)
    found = [group for group in groups.values() if group.places]
    _tokenize(found, encoder, errors)
    if not truncate:
        _refuse_long(found, errors)
    return Prepared([group for group in found if group.places], errors)


def _resolved(ask: Ask, resolve: Resolve, unresolved: dict[tuple[Any, ...], IntarsiaError]) -> Served | None:
    if ask.task is None:
        return None
    try:
        return resolve(ask.task, ask.version, ask.swap)
    except IntarsiaError as error:
        unresolved[ask.resolved_by] = error
        raise


def _example(ask: Ask, served: Served | None) -> Example:
    if served is not None:
        interface = served.interface
        if not ask.embed:
            check_answers(interface.task_kind.kind, served.name)
        return interface.task_kind.parse_request(ask.text, served.name, interface.pairs)
    if not ask.embed:
        raise IntarsiaError("the plain base has no head and predicts nothing: name a task, or ask for a vector.")
    if isinstance(ask.text, str):
        return Example(ask.text)
    match ask.text:
        case [str(first), str(second)]:
            return Example(first, second)
    raise IntarsiaError(f"a vector is of a text or of a pair of texts, not of {type(ask.text).__name__}.")


def _tokenize(groups: Sequence[Group], encoder: Encoder, errors: dict[int, IntarsiaError]) -> None:
    """Set the inputs of every group. Groups of plain rows with one maximum length are tokenized in one call."""
    shared: dict[tuple[int | None, bool], list[Group]] = {}
    for group in groups:
        interface = None if group.served is None else group.served.interface
        if interface is None or not interface.task_kind.reads_tokens:
            limit = None if interface is None else interface.max_length
            shared.setdefault((limit, group.examples[0].pair is not None), []).append(group)
            continue
        try:
            made = interface.inputs(group.examples, encoder)
            group.inputs = _first_rows(made) if group.embed else made
        except IntarsiaError as error:
            errors.update(dict.fromkeys(group.places, error))
            group.places.clear()
    for (limit, _), members in shared.items():
        examples = [example for group in members for example in group.examples]
        try:
            segments = encoder.tokenize([e.text for e in examples], [e.pair for e in examples], max_length=limit)
        except IntarsiaError as error:
            for group in members:
                errors.update(dict.fromkeys(group.places, error))
                group.places.clear()
            continue
        first = 0
        for group in members:
            group.inputs = Inputs(segments[first : first + len(group.examples)])
            first += len(group.examples)


def _first_rows(inputs: Inputs) -> Inputs:
    """Return the first row of each example: a vector is of one row, and what follows it is cut."""
    firsts: dict[int, Segment] = {}
    for owner, segment in zip(inputs.owners, inputs.segments, strict=True):
        firsts[owner] = firsts[owner]._replace(truncated=True) if owner in firsts else segment
    return Inputs(list(firsts.values()))


def _refuse_long(groups: Sequence[Group], errors: dict[int, IntarsiaError]) -> None:
    for group in groups:
        if not any(segment.truncated for segment in group.inputs.segments):
            continue
        tokens, truncated = group._sizes()
        owners, places = group.inputs.owners, group.inputs.places
        kept = [i for i, long in enumerate(truncated) if not long]
        for i, place in enumerate(group.places):
            if truncated[i]:  # a long context becomes several rows: what is too long there is the question
                what = "question is longer than what" if owners else f"text is longer than the {tokens[i]} tokens that"
                errors[place] = IntarsiaError(f"the {what} this task reads. Shorten it, or allow truncation.")
        rows = [row for row, owner in enumerate(owners or range(len(truncated))) if not truncated[owner]]
        number = {old: new for new, old in enumerate(kept)}
        group.inputs = replace(
            group.inputs,
            segments=[group.inputs.segments[row] for row in rows],
            owners=[number[owners[row]] for row in rows] if owners else (),
            places=[places[row] for row in rows] if places else (),
        )
        group.examples = [group.examples[i] for i in kept]
        group.places = [group.places[i] for i in kept]


def _is_finite(output: np.ndarray) -> bool:
    """Return whether an output is finite; an output with fields has probabilities among them."""
    values = output if output.dtype.names is None else output["probabilities"]
    return bool(np.isfinite(values).all())
