"""Stack: each part acts on the output of the part before it, as a task adapter on a language adapter (MAD-X 2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from intarsia.encoder.compiled_site import CompiledSite
from intarsia.encoder.sites import OUTPUT_SITES
from intarsia.errors import IntarsiaError, check_choice
from intarsia.methods.compose import Composite, Part, own_method

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.shape import Shape
    from intarsia.encoder.site_view import SiteView

Residual = Literal["library", "paper"]


@dataclass(frozen=True, init=False, repr=False)
class Stack(Composite):
    """Parts that act one after another, the lowest first.

    With adapters B1 and B2 and `residual="library"`: o1 = h + B1(h), o2 = o1 + B2(o1), as in AdapterHub's library.
    With "paper": o2 = h + B2(o1), as in the paper of MAD-X. At the linear layers of the base, the differences of all
    parts add up in both forms.
    """

    parts: tuple[Part, ...]
    residual: Residual = "library"

    name: ClassVar[str] = "stack"
    paper: ClassVar[str] = "Pfeiffer et al. 2020"
    trains: ClassVar[str] = "what its parts train"

    def __init__(self, *parts: Part, residual: Residual = "library") -> None:
        check_choice("residual", residual, ("library", "paper"))
        self._init(parts, residual=residual)

    def check(self, shape: Shape) -> None:
        super().check(shape)
        if self.residual == "library":
            return
        below: set[tuple[str, int]] = set()
        for method in map(own_method, self.methods):
            outputs = {place for place in method.places(shape) if place[0] in OUTPUT_SITES}
            if method.reads_beside and outputs & below:
                raise IntarsiaError(
                    f"Stack with residual='paper' cannot have {method.name} with these options above another part: it "
                    "does not read the output of that part, so that part would have no effect. Use "
                    "residual='library'."
                )
            below |= outputs

    def compiled_parts(self, shape: Shape) -> Sequence[Mapping[tuple[str, int], CompiledSite]] | None:
        found: list[Mapping[tuple[str, int], CompiledSite]] = []
        for method in map(own_method, self.methods):
            parts = method.compiled_parts(shape)
            if parts is None or (self.residual == "paper" and isinstance(method, Composite)):
                return None
            if self.residual == "paper":
                parts = [{place: replace(site, restarts=True) for place, site in part.items()} for part in parts]
            found += parts
        return found

    def output(self, view: SiteView, h: Tensor) -> Tensor:
        if self._keeps_h(view):
            return h + self.change(view, h)
        out = h
        for _, method, part in self.acting(view):
            out = method.output(part, out)
        return out

    def change(self, view: SiteView, h: Tensor) -> Tensor:
        out, total = h, None
        for _, method, part in self.acting(view):
            change = method.change(part, out)
            total = change if total is None or self._keeps_h(view) else total + change
            out = h + total
        assert total is not None, "a composition acts where one of its parts acts"
        return total

    def _keeps_h(self, view: SiteView) -> bool:
        return self.residual == "paper" and view.site in OUTPUT_SITES
