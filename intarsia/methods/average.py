"""Average: the mean of what several parts give at each site, with weights that sum to 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from intarsia.errors import IntarsiaError
from intarsia.methods.compose import Composite, Part

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

    def options(self) -> dict[str, Any]:
        return {"weights": self.factors}

    @classmethod
    def of(cls, parts: Sequence[Part], **fields: Any) -> Average:
        return cls(*parts, weights=fields.get("factors"))
