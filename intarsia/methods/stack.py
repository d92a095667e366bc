"""Stack: each part acts on the output of the part before it, as a task adapter on a language adapter (MAD-X 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from intarsia.errors import check_choice
from intarsia.methods.compose import Composite, Part

Residual = Literal["library", "paper"]


@dataclass(frozen=True, init=False, repr=False)
class Stack(Composite):
    """Parts that act one after another, the lowest first.

    With adapters B1 and B2 and `residual="library"`: o1 = h + B1(h), o2 = o1 + B2(o1), as in AdapterHub's library.
    With "paper": o2 = h + B2(o1), as in the paper of MAD-X.
    """

    parts: tuple[Part, ...]
    residual: Residual = "library"

    name: ClassVar[str] = "stack"
    paper: ClassVar[str] = "Pfeiffer et al. 2020"
    trains: ClassVar[str] = "what its parts train"

    def __init__(self, *parts: Part, residual: Residual = "library") -> None:
        check_choice("residual", residual, ("library", "paper"))
        self._init(parts, residual=residual)
