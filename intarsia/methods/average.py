"""Average: the mean of what several parts give at each site, with weights that sum to 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from intarsia.encoder.compiled_site import CompiledSite
from intarsia.encoder.sites import PREFIX
from intarsia.errors import IntarsiaError
from intarsia.methods.compose import Composite, Part, own_method

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.shape import Shape
    from intarsia.encoder.site_view import SiteView

TOLERANCE = 1e-6


@dataclass(frozen=True, init=False, repr=False)
class Average(Composite):
    """The outputs of the parts, averaged at each site: the sum of w_i A_i(h)."""

    parts: tuple[Part, ...]
    factors: tuple[float, ...] | None = None  # the weights; None: all are equal

    name: ClassVar[str] = "average"
    trains: ClassVar[str] = "what its parts train"

    def __init__(self, *parts: Part, weights: Sequence[float] | None = None) -> None:
        given = None if weights is None else tuple(float(weight) for weight in weights)
        if given is not None and len(given) != len(parts):
            raise IntarsiaError(f"Average has {len(parts)} parts and {len(given)} weights; expected one for each part.")
        if given is not None and not abs(math.fsum(given) - 1) <= TOLERANCE:
            raise IntarsiaError(
                f"the weights of Average sum to {math.fsum(given):.6g}; expected 1, so that the average of equal parts "
                "is that part. Divide each weight by the sum."
            )
        self._init(parts, factors=given)

    @property
    def weights_of_parts(self) -> tuple[float, ...]:
        return self.factors or (1 / len(self.parts),) * len(self.parts)

    def check(self, shape: Shape) -> None:
        for method in map(own_method, self.methods):
            if method.changes_base:
                raise IntarsiaError(
                    f"Average cannot have the part {method.name}: it changes weights of the base, so it has no output "
                    "of its own at any site. Merge the inlays instead."
                )
            if any(site == PREFIX for site, _ in method.places(shape)):
                raise IntarsiaError(
                    f"Average cannot have the part {method.name}: keys and values of a prefix have no output of their "
                    "own that could be averaged. Use Stack, which gives the attention the prefixes of all parts."
                )
            if method.inverts_words:
                raise IntarsiaError(
                    f"Average cannot have the part {method.name} with an invertible adapter: the mean of invertible "
                    "functions has no inverse. Use Stack."
                )
        super().check(shape)

    def compiled_parts(self, shape: Shape) -> Sequence[Mapping[tuple[str, int], CompiledSite]] | None:
        found: list[dict[tuple[str, int], CompiledSite]] = []
        weights = self.weights_of_parts
        for method, weight in zip(map(own_method, self.methods), weights, strict=True):
            sites = method.compiled(shape)
            if sites is None or not weight or any(site.gain or site.magnitude for site in sites.values()):
                return None
            found.append({place: replace(site, weight=weight) for place, site in sites.items()})
        for place in {place for sites in found for place in sites}:
            adapters = [sites for sites in found if place in sites and sites[place].adapter]
            norms = [sites for sites in found if place in sites and sites[place].norm != "base"]
            rest = 0.0 if len(norms) == len(found) else 1.0 - sum(sites[place].weight for sites in norms)
            for number, sites in enumerate(adapters):
                sites[place] = replace(sites[place], mean=2 if number else 1)
            for number, sites in enumerate(norms):
                sites[place] = replace(sites[place], norm_mean=2 if number else 1, rest=rest)
        return found

    def output(self, view: SiteView, h: Tensor) -> Tensor:
        return h + self.change(view, h)

    def change(self, view: SiteView, h: Tensor) -> Tensor:
        weights = self.weights_of_parts
        changes = [weights[number] * method.change(part, h) for number, method, part in self.acting(view)]
        return sum(changes[1:], changes[0])

    def norm(self, view: SiteView, x: Tensor) -> Tensor:
        weights, acting = self.weights_of_parts, self.acting(view)
        total = sum(
            (weights[number] * method.norm(part, x) for number, method, part in acting[1:]),
            weights[acting[0][0]] * acting[0][1].norm(acting[0][2], x),
        )
        missing = 1.0 - sum(weights[number] for number, _, __ in acting)
        return total if len(acting) == len(weights) else total + missing * view.module(x)

    def options(self) -> dict[str, Any]:
        return {"weights": self.factors}

    @classmethod
    def of(cls, parts: Sequence[Part], **fields: Any) -> Average:
        return cls(*parts, weights=fields.get("factors"))
