"""What a method is: a small frozen config that says which sites get which tensors and what they do there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from intarsia.errors import IntarsiaError

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.owned import Owned
    from intarsia.encoder.sites import Shape


@dataclass(frozen=True)
class Spec:
    """One tensor of an inlay: its shape, how it starts, and how the optimizer treats it."""

    shape: tuple[int, ...]
    start: Literal["zeros", "ones", "normal", "base"]
    std: float = 0.0  # of a "normal" start: truncated at two standard deviations
    site: tuple[str, int] | None = None  # of a "base" start: copied from this site's module …
    base: Literal["weight", "bias"] = "weight"  # … and this tensor of it
    decay: bool = False  # weight decay applies
    trained: bool = True  # False: kept with the inlay, but no gradient reaches it (running statistics)

    @property
    def size(self) -> int:
        count = 1
        for n in self.shape:
            count *= n
        return count


@runtime_checkable
class Method(Protocol):
    """The interface of every method in this folder. A method knows nothing of training or serving."""

    name: ClassVar[str]
    start_only: ClassVar[tuple[str, ...]]  # options that only say how training starts, not what is computed

    @property
    def wants_sublayer_input(self) -> bool:
        """Whether `Owned.sublayer_input` is needed at the output sites."""
        ...

    def places(self, shape: Shape) -> frozenset[tuple[str, int]]:
        """The (site, layer) pairs where the method acts."""
        ...

    def tensors(self, shape: Shape) -> dict[str, Spec]:
        """Every tensor of the method on a base of this shape, by name."""
        ...

    def count(self, shape: Shape) -> int:
        """Trained parameters in closed form; equal to the trained tensors of `tensors`."""
        ...

    def output(self, own: Owned, h: Tensor) -> Tensor:
        """At an output or linear site: the method's own tokens `h` [tokens, width] → their new values."""
        ...

    def norm(self, own: Owned, x: Tensor) -> Tensor:
        """At a norm site: the method's own tokens, normalised."""
        ...


def to_dict(method: Any) -> dict[str, Any]:
    """A method's config as plain JSON values."""
    return {"type": method.name, **dataclasses.asdict(method)}


def running_key(method: Any) -> tuple[Any, ...]:
    """Equal for methods that compute the same with the same tensors: these share one stack of slots."""
    options = dataclasses.asdict(method)
    return (method.name, *((k, v) for k, v in sorted(options.items()) if k not in method.start_only))


def check_choice(option: str, value: Any, choices: Mapping[str, Any] | tuple[str, ...]) -> None:
    if value not in choices:
        raise IntarsiaError(f"{option} {value!r} is not known; expected one of: {', '.join(choices)}.")


def check_layers(layers: tuple[int, ...], shape: Shape) -> None:
    wrong = [i for i in layers if not 0 <= i < shape.layers]
    if wrong or not layers:
        raise IntarsiaError(f"layers {list(layers)} do not fit this base: it has layers 0 to {shape.layers - 1}.")
