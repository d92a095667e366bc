"""AdapterFusion (Pfeiffer et al. 2021): attention, at each site, over what several adapters add there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from intarsia.encoder.sites import OUTPUT_SITES
from intarsia.errors import IntarsiaError
from intarsia.methods.compose import Composite, Part, own_method
from intarsia.methods.method import Spec, check_dropout

if TYPE_CHECKING:
    from intarsia.encoder.shape import Shape

STD = 0.02  # of the query's and the key's matrices at the start
OFF_DIAGONAL = 1e-6  # of the value's matrix at the start; its diagonal is 1
HOTTEST = 50.0  # the first temperature, if it falls


@dataclass(frozen=True, init=False, repr=False)
class Fuse(Composite):
    """Attention over the outputs of the parts, learned for each layer. The parts are usually frozen inlays."""

    parts: tuple[Part, ...]
    static: bool = False  # no value matrix, and therefore no penalty
    penalty_weight: float = 0.01  # of the squared distance of the value's matrix from the identity
    temperature: bool = False  # start with soft attention: the scores are divided by 50, falling to 1 in 980 steps
    dropout: float = 0.0  # on the scores, in training

    name: ClassVar[str] = "fuse"
    paper: ClassVar[str] = "Pfeiffer et al. 2021"
    trains: ClassVar[str] = "a query, a key and a value matrix at each site, and what its parts train"
    training_only: ClassVar[tuple[str, ...]] = ("penalty_weight", "dropout")
    recipe: ClassVar[dict[str, Any]] = {"learning_rate": 5e-5, "epochs": 10}

    def __init__(
        self,
        *parts: Part,
        static: bool = False,
        penalty_weight: float = 0.01,
        temperature: bool = False,
        dropout: float = 0.0,
    ) -> None:
        check_dropout(dropout)
        if not 0 <= penalty_weight < float("inf"):
            raise IntarsiaError(f"penalty_weight {penalty_weight} is not valid: expected a number of at least 0.")
        self._init(parts, static=static, penalty_weight=penalty_weight, temperature=temperature, dropout=dropout)

    def check(self, shape: Shape) -> None:
        super().check(shape)
        for part in self.methods:
            if own_method(part).changes_base:
                raise IntarsiaError(
                    f"Fuse cannot attend to {part.name}: it changes weights of the base, so it has no output of its "
                    "own at any site. Use adapters as parts, or Stack."
                )
        if not self.sites(shape):
            raise IntarsiaError(
                "Fuse has nothing to attend to: no part acts on the output of a sub-layer or a layer. Use adapters."
            )

    def sites(self, shape: Shape) -> list[tuple[str, int]]:
        """Return the (site, layer) pairs with attention, in the order of the layers."""
        fused = {p for part in self.methods for p in own_method(part).places(shape) if p[0] in OUTPUT_SITES}
        return sorted(fused, key=lambda place: (place[1], place[0]))

    def own_tensors(self, shape: Shape) -> dict[str, Spec]:
        d = shape.width
        specs: dict[str, Spec] = {}
        for site, layer in self.sites(shape):
            name = f"fusion.{layer}.{site}"
            for which in ("query", "key"):
                specs[f"{name}.{which}.weight"] = Spec((d, d), "normal", STD, decay=True)
                specs[f"{name}.{which}.bias"] = Spec((d,), "zeros")
            if not self.static:
                specs[f"{name}.value.weight"] = Spec((d, d), "identity", value=OFF_DIAGONAL)
            if self.temperature:
                specs[f"{name}.temperature"] = Spec((1,), "zeros", value=HOTTEST, trained=False)
        return specs

    def own_count(self, shape: Shape) -> int:
        d = shape.width
        return len(self.sites(shape)) * ((2 if self.static else 3) * d * d + 2 * d)
