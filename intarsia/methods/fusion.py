"""AdapterFusion (Pfeiffer et al. 2021): attention, at each site, over what several adapters add there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from intarsia.encoder.compiled_site import CompiledSite
from intarsia.encoder.sites import NORM_SITES, OUTPUT_SITES
from intarsia.errors import IntarsiaError
from intarsia.methods.compose import Composite, Part, own_method
from intarsia.methods.method import Spec, Tensors, check_dropout

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.shape import Shape
    from intarsia.encoder.site_view import SiteView

STD = 0.02  # of the query's and the key's matrices at the start
OFF_DIAGONAL = 1e-6  # of the value's matrix at the start; its diagonal is 1
HOTTEST, COOLING = 50.0, 0.05  # the first temperature, if it falls, and by how much it falls a step


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
            inside = sorted({site for site, _ in own_method(part).places(shape)} - {*OUTPUT_SITES, *NORM_SITES})
            if inside:
                raise IntarsiaError(
                    f"Fuse cannot attend to {own_method(part).name}: it acts at {inside[0]}, and attention over "
                    "the parts is defined at the outputs of sub-layers and layers only. Use adapters as parts."
                )
        if not self.own_places(shape):
            raise IntarsiaError(
                "Fuse has nothing to attend to: no part acts on the output of a sub-layer or a layer. Use adapters."
            )

    def own_places(self, shape: Shape) -> list[tuple[str, int]]:
        """Return the (site, layer) pairs with attention, in the order of the layers."""
        fused = {p for part in self.methods for p in own_method(part).places(shape) if p[0] in OUTPUT_SITES}
        return sorted(fused, key=lambda place: (place[1], place[0]))

    def own_tensors(self, shape: Shape) -> dict[str, Spec]:
        d = shape.width
        specs: dict[str, Spec] = {}
        for site, layer in self.own_places(shape):
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
        return len(self.own_places(shape)) * ((2 if self.static else 3) * d * d + 2 * d)

    def recordable(self, shape: Shape) -> bool:
        return not self.temperature and super().recordable(shape)  # the host lowers the temperature of each slot

    @property
    def wide(self) -> bool:
        return True

    @property
    def reads_beside(self) -> bool:
        return False

    def compiled_parts(self, shape: Shape) -> Sequence[Mapping[tuple[str, int], CompiledSite]] | None:
        found: list[dict[tuple[str, int], CompiledSite]] = []
        fusion: dict[tuple[str, int], CompiledSite] = {}
        for method in map(own_method, self.methods):
            sites = method.compiled(shape)
            if sites is None or self.temperature:
                return None
            adapters = {place: site for place, site in sites.items() if site.adapter}
            found.append({**sites, **{place: replace(site, fused=True) for place, site in adapters.items()}})
            for place, site in adapters.items():  # the query reads what the first part reads
                fusion.setdefault(place, CompiledSite(fusion=True, reads=site.reads))
        return [*found, fusion]

    def output(self, view: SiteView, h: Tensor) -> Tensor:
        return h + self.change(view, h)

    def change(self, view: SiteView, h: Tensor) -> Tensor:
        """Return W_v of the parts' changes, weighted by their attention.

        q · W_k c is computed as (W_k' q) · c, and the sum of W_v c as W_v of the sum: a matrix product each, however
        many parts there are.
        """
        import torch

        name = f"fusion.{view.layer}.{view.site}"
        changes = [method.change(part, h) for _, method, part in self.acting(view)]  # each [tokens, d]
        query = view.linear(self.reads(view, h), f"{name}.query")
        keyed = view.linear_transposed(query, f"{name}.key")
        wide = torch.promote_types(h.dtype, torch.float32)  # of the sums
        shift = (query * view.each(f"{name}.key.bias")).sum(1, dtype=wide)
        scores = torch.stack([(keyed * change).sum(1, dtype=wide) + shift for change in changes], 1)  # [tokens, parts]
        shares = torch.softmax(view.drop(scores, self.dropout) / self._temperature(view, name), 1).to(h.dtype)
        mixed = shares[:, :1] * changes[0]
        for number, change in enumerate(changes[1:], 1):
            mixed = mixed + shares[:, number : number + 1] * change
        return mixed if self.static else view.linear(mixed, f"{name}.value")

    def _temperature(self, view: SiteView, name: str) -> Tensor | float:
        """Return the temperature of each token's owner; in training it then falls."""
        if not self.temperature:
            return 1.0
        by_slot = view.tensors[f"{name}.temperature"]
        now = view.each(f"{name}.temperature").clone()
        if view.training:
            for slot in set(view.owners.slots):
                by_slot.data[slot].sub_(COOLING).clamp_(min=1.0)
        return now

    def own_penalty(self, shape: Shape, tensors: Tensors) -> Tensor | None:
        import torch

        if self.static or not self.penalty_weight:
            return None
        total = None
        for site, layer in self.own_places(shape):
            value = tensors[f"fusion.{layer}.{site}.value.weight"]
            distance = (value - torch.eye(shape.width, device=value.device, dtype=value.dtype)).square().sum()
            total = distance if total is None else total + distance
        return None if total is None else self.penalty_weight * total
