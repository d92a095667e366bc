"""What one task learned, as a value: all that answering needs, and nothing about where it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from intarsia.errors import IntarsiaError
from intarsia.methods import Method, parents, short_name, to_dict
from intarsia.tasks.examples import Example
from intarsia.tasks.heads import Head
from intarsia.tasks.inputs import Inputs
from intarsia.tasks.task_kind import TaskKind

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder
    from intarsia.encoder.shape import Shape

METHOD, HEAD = "method.", "head."  # how the names of an inlay's tensors begin


@dataclass(frozen=True, eq=False)
class Learned:
    """A method, a head, a task kind, and the tensors of the first two (named `method.…` and `head.…`).

    `parents` are the frozen inlays on which the method is built, and those on which they are built, by digest.
    """

    method: Method
    head: Head
    task_kind: TaskKind
    tensors: Mapping[str, Tensor]
    parents: Mapping[str, Learned] = field(default_factory=dict)

    def check(self, shape: Shape) -> None:
        """Raise unless the tensors are exactly those of the method and the head on a base of this shape, and those of
        all its parents too."""
        self.check_parents()
        self._check_own(shape)
        for part in parents(self.method):
            self.parents[part.digest]._check_own(shape)

    def _check_own(self, shape: Shape) -> None:
        self.method.check(shape)
        specs = {METHOD + name: spec for name, spec in self.method.stored(shape).items()}
        specs |= {HEAD + name: spec for name, spec in self.head.tensors(shape, self.method.row_width(shape)).items()}
        expected = {name: _named_type(spec.integer, spec.shape) for name, spec in specs.items()}
        given = {name: f"{t.dtype} {tuple(t.shape)}".removeprefix("torch.") for name, t in self.tensors.items()}
        for name in (*expected, *given):
            if expected.get(name) != given.get(name):
                raise IntarsiaError(
                    f"the tensor {name[:100]!r} is {given.get(name, 'missing')}, but the method {self.method.name} and "
                    f"the head have {expected.get(name, 'no such tensor')} on this base."
                )
        self.method.check_values(shape, self.method_tensors)

    def check_parents(self) -> None:
        """Raise unless every frozen inlay on which the method is built is among `parents`, with its own method."""
        check_parents(self.method, self.parents)

    @property
    def method_tensors(self) -> dict[str, Tensor]:
        return named(self.tensors, METHOD)

    @property
    def head_tensors(self) -> dict[str, Tensor]:
        return named(self.tensors, HEAD)


def check_parents(method: Method, given: Mapping[str, Learned]) -> None:
    """Raise unless every frozen inlay on which a method is built is among those given, with its own method."""
    for part in parents(method):
        if part.digest not in given:
            raise IntarsiaError(
                f"the inlay is built on {part} ({part.digest[:12]}), which was not given. Give all its parents."
            )
        found = given[part.digest].method
        if found != part.method:
            raise IntarsiaError(
                f"the inlay is built on {part} with the method {short_name(to_dict(part.method))}, but the inlay "
                f"with the digest {part.digest[:12]} has the method {short_name(to_dict(found))}."
            )


@dataclass(frozen=True)
class Interface:
    """What turns a request into rows of tokens and the predictions for these rows into an answer."""

    task_kind: TaskKind
    pairs: bool = False  # a request is two texts
    max_length: int | None = None  # tokens of a row; None: as many as the encoder takes

    def inputs(self, examples: Sequence[Example], encoder: Encoder) -> Inputs:
        return self.task_kind.inputs(examples, encoder, self.max_length)


def _named_type(integer: bool, shape: tuple[int, ...]) -> str:
    return f"{'int64' if integer else 'float32'} {shape}"


def named(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
