"""From asks to rows: resolve the tasks, check and tokenize the texts. Runs in the threads of the callers.

A bad ask gets its own error, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import Segment
from intarsia.errors import IntarsiaError
from intarsia.serve.ask import Ask
from intarsia.serve.served import Served
from intarsia.tasks.examples import Example, check_answers
from intarsia.tasks.inputs import Inputs


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

    def row_places(self) -> Sequence[int]:
        """Return for each segment the place in the call of the ask that it belongs to."""
        return [self.places[owner] for owner in self.inputs.owners] if self.inputs.owners else self.places

    def sizes(self) -> list[tuple[int, bool]]:
        """Return for each example how many tokens it has, and whether its text was longer."""
        if not self.inputs.owners:
            return [(len(segment.ids), segment.truncated) for segment in self.inputs.segments]
        tokens, truncated = [0] * len(self.places), [False] * len(self.places)
        for owner, segment in zip(self.inputs.owners, self.inputs.segments, strict=True):
            tokens[owner] += len(segment.ids)
            truncated[owner] |= segment.truncated
        return list(zip(tokens, truncated, strict=True))


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
        return sum(long for group in self.groups for _, long in group.sizes())


def prepare(asks: Sequence[Ask], resolve: Resolve, encoder: Encoder, *, truncate: bool) -> Prepared:
    """Return the rows of a call."""
    errors: dict[int, IntarsiaError] = {}
    members: dict[tuple[Any, ...], list[int]] = {}
    for place, ask in enumerate(asks):
        # A task has only pairs or only single texts; the plain base takes both.
        key = ask.task, ask.version, ask.swap, ask.embed, ask.task is None and isinstance(ask.text, str)
        members.setdefault(key, []).append(place)
    groups = [_group(asks, places, resolve, errors) for places in members.values()]
    found = [group for group in groups if group.places]
    _tokenize(found, encoder, errors)
    if not truncate:
        _refuse_long(found, errors)
    return Prepared([group for group in found if group.places], errors)


def _group(asks: Sequence[Ask], places: list[int], resolve: Resolve, errors: dict[int, IntarsiaError]) -> Group:
    """Return the asks at these places, which differ in their texts only; those that are wrong get an error."""
    first = asks[places[0]]
    group = Group(None, embed=first.embed)
    try:
        parse = _parser(first, group, resolve)
    except IntarsiaError as error:
        errors.update(dict.fromkeys(places, error))
        return group
    for place in places:
        try:
            example = parse(asks[place].text)
        except IntarsiaError as error:
            errors[place] = error
            continue
        group.places.append(place)
        group.examples.append(example)
    return group


def _parser(ask: Ask, group: Group, resolve: Resolve) -> Callable[[Any], Example]:
    """Resolve the task of a group, and return what turns its texts into examples."""
    if ask.task is None:
        if not ask.embed:
            raise IntarsiaError("the plain base has no head and predicts nothing: name a task, or ask for a vector.")
        return _plain_example
    served = group.served = resolve(ask.task, ask.version, ask.swap)
    kind, pairs = served.interface.task_kind, served.interface.pairs
    if not ask.embed:
        check_answers(kind.kind, served.name)
    return lambda text: kind.parse_request(text, served.name, pairs)


def _plain_example(text: Any) -> Example:
    """Return a text for the plain base as an example."""
    if isinstance(text, str):
        return Example(text)
    match text:
        case [str(first), str(second)]:
            return Example(first, second)
    raise IntarsiaError(f"a vector is of a text or of a pair of texts, not of {type(text).__name__}.")


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
        sizes = group.sizes()
        owners, places = group.inputs.owners, group.inputs.places
        kept = [i for i, (_, long) in enumerate(sizes) if not long]
        for place, (tokens, long) in zip(group.places, sizes, strict=True):
            if long:  # a long context becomes several rows: what is too long there is the question
                what = "question is longer than what" if owners else f"text is longer than the {tokens} tokens that"
                errors[place] = IntarsiaError(f"the {what} this task reads. Shorten it, or allow truncation.")
        rows = [row for row, owner in enumerate(owners or range(len(sizes))) if not sizes[owner][1]]
        number = {old: new for new, old in enumerate(kept)}
        group.inputs = replace(
            group.inputs,
            segments=[group.inputs.segments[row] for row in rows],
            owners=[number[owners[row]] for row in rows] if owners else (),
            places=[places[row] for row in rows] if places else (),
        )
        group.examples = [group.examples[i] for i in kept]
        group.places = [group.places[i] for i in kept]
