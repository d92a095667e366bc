"""The modules of the bank's base by the names that other libraries use, and the sites that they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from intarsia.encoder.sites import LINEAR_SITES, NORM_SITES, OUTSIDE, places
from intarsia.errors import ExchangeError

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder
    from intarsia.methods import Method


POSITIONS = {"c2p": "key", "p2c": "query"}  # DeBERTa's kinds of scores, and the layers that project their positions


@dataclass(frozen=True)
class Part:
    """A part of a module: a site in a layer, and the rows of the module's weight that it covers."""

    site: str
    layer: int
    rows: slice


class Modules:
    """The modules of a base. Paths are those of the unmodified `transformers` model, without a class prefix."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.prefix = str(encoder.model.base_model_prefix)  # "bert" in `bert.encoder.layer.0…`

    @cached_property
    def linears(self) -> Mapping[str, tuple[Part, ...]]:
        """path → the linear sites that the module is: three for a fused query-key-value layer, one for each layer that
        uses it if layers share it."""
        return self._parts(LINEAR_SITES, 2)

    @cached_property
    def norms(self) -> Mapping[str, tuple[Part, ...]]:
        """path → the norm sites that the module is."""
        return self._parts(NORM_SITES, 1)

    @cached_property
    def paths(self) -> Mapping[tuple[str, int], str]:
        """(site, layer) → the path of its module."""
        both = {**self.linears, **self.norms}
        return {(part.site, part.layer): path for path, parts in both.items() for part in parts}

    @cached_property
    def with_weights(self) -> tuple[str, ...]:
        """All modules of the base that have a weight: linear layers, norms, embeddings, the pooler."""
        return tuple(name.removesuffix(".weight") for name in self.encoder.weights if name.endswith(".weight"))

    @cached_property
    def named(self) -> tuple[str, ...]:
        """All modules that another library could find by the end of their name: those with weights, and those at
        sites, which may have none (ModernBERT's first norm)."""
        at_sites = (place.path for place in places(self.encoder.family, self.encoder.model))
        return tuple(dict.fromkeys((*self.with_weights, *at_sites)))

    def weight(self, path: str) -> Tensor:
        return self.encoder.weights[f"{path}.weight"]

    def bias(self, path: str) -> Tensor | None:
        return self.encoder.weights.get(f"{path}.bias")

    def of_the_base(self, method: Method) -> dict[str, Tensor]:
        """Return copies of the base's values for all tensors of a method that start there."""
        found = {}
        for name, spec in method.stored(self.encoder.shape).items():
            if spec.start == "base" and spec.site is not None:
                base = self.encoder.at_site(*spec.site, spec.tensor).tensor
                found[name] = base.detach().float().cpu().clone()
        return found

    @property
    def pooler(self) -> str | None:
        """The path of the base's pooler, if it has one."""
        return self.encoder.family.pooler if self.encoder.shape.pooler else None

    def check_own(self, path: str, where: str) -> None:
        """Raise if the module computes more than its site: then a change of the module is no change of a method."""
        config = self.encoder.model.config
        if not (self.encoder.shape.disentangled_attention and config.relative_attention and config.share_att_key):
            return
        positions = {POSITIONS[kind] for kind in config.pos_att_type or () if kind in POSITIONS}
        if any(part.site in positions for part in self.linears[path]):
            raise ExchangeError(
                f"{where} changes {path!r}. In {self.encoder.shape.family} this layer projects the tokens and the "
                "relative positions; a method of Intarsia acts on tokens only, so its answers would differ."
            )

    def strip(self, name: str) -> str:
        """Return a name without the prefix that task classes of `transformers` give to their base."""
        return name.removeprefix(f"{self.prefix}.")

    def _parts(self, sites: tuple[str, ...], dimensions: int) -> dict[str, tuple[Part, ...]]:
        found: dict[str, tuple[Part, ...]] = {}
        for place in places(self.encoder.family, self.encoder.model):
            tensor = self.encoder.weights.get(f"{place.path}.weight")
            if tensor is None or tensor.ndim != dimensions:
                continue
            parts = tuple(self._own(place.sites, place.layers, sites))
            if parts:
                found[place.path] = parts
        return found

    def _own(self, have: tuple[str, ...], layers: tuple[int, ...], sites: tuple[str, ...]) -> Iterator[Part]:
        for layer in layers or (OUTSIDE,):
            for site in have:
                if site in sites:
                    yield Part(site, layer, self.encoder.at_site(site, layer, "weight").rows)
