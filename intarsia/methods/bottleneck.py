"""Bottleneck adapters (Houlsby et al. 2019, Parameter-Efficient Transfer Learning for NLP).

Each layer has two adapters: one on the output h of the attention and one on the output of the feed-forward sub-layer,
after dropout and before the residual sum: LN(x + A(h)) with A(h) = h + W_up gelu(W_down h + b_down) + b_up. Both
matrices start near zero, so A starts near the identity. The method also trains the LayerNorms. An adapter has
2md + d + m parameters.

The options cover the variants of the paper (section 3.6): other activations, a norm or more layers inside the adapter,
adapters after attention only, parallel adapters, and multiplicative adapters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from intarsia.encoder.shape import NormShape
from intarsia.encoder.sites import ATTENTION_OUTPUT, FFN_OUTPUT
from intarsia.errors import check_choice
from intarsia.methods.method import Method, Preset, Spec, Tensors, check_least, chosen_layers, sorted_layers
from intarsia.methods.norms import norm_count, norm_specs, trained_norms

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.shape import Shape
    from intarsia.encoder.site_view import SiteView

_PLACES = {"both": (ATTENTION_OUTPUT, FFN_OUTPUT), "attention": (ATTENTION_OUTPUT,), "ffn": (FFN_OUTPUT,)}
ACTIVATIONS = ("gelu", "relu", "tanh", "swish")
_INNER_NORMS = ("none", "layer", "batch")
PADDED_SIZES = (64, 256)  # in recorded passes smaller adapters are padded to these sizes


@dataclass(frozen=True)
class Bottleneck(Method):
    """Houlsby adapters of `size` hidden units."""

    size: int = 64
    places_in_layer: Literal["both", "attention", "ffn"] = "both"
    layers: tuple[int, ...] | None = None  # None: all
    activation: Literal["gelu", "relu", "tanh", "swish"] = "gelu"
    depth: int = 1  # hidden layers inside the adapter
    inner_norm: Literal["none", "layer", "batch"] = "none"  # on the hidden units, before the activation
    parallel: bool = False  # reads the sub-layer's input instead of its output
    multiplicative: bool = False  # h * (1 + u) instead of h + u
    norms: bool = True  # train the LayerNorms of these layers
    embedding_norm: bool | None = None  # train the embedding LayerNorm; None: only if every layer has adapters
    std: float = 1e-2  # both matrices start truncated-normal (1e-3 in the authors' program)

    name: ClassVar[str] = "bottleneck"
    paper: ClassVar[str] = "Houlsby et al. 2019"
    trains: ClassVar[str] = "two bottlenecks a layer, LayerNorms"
    presets: ClassVar[Mapping[str, Preset]] = {
        "houlsby": Preset("size"),
        "bottleneck": Preset("size", alias=True),
        "single": Preset(
            "size", {"places_in_layer": "ffn"}, "a bottleneck behind each feed-forward, LayerNorms", after="bapna"
        ),
        "attention-only": Preset(
            "size", {"places_in_layer": "attention"}, "a bottleneck behind each attention, LayerNorms", after="single"
        ),
        "parallel": Preset(
            "size", {"parallel": True}, "two bottlenecks a layer, in parallel, LayerNorms", after="attention-only"
        ),
    }
    training_only: ClassVar[tuple[str, ...]] = ("std",)

    def __post_init__(self) -> None:
        check_choice("places_in_layer", self.places_in_layer, _PLACES)
        check_choice("activation", self.activation, ACTIVATIONS)
        check_choice("inner_norm", self.inner_norm, _INNER_NORMS)
        sorted_layers(self)
        check_least(size=(self.size, 1), depth=(self.depth, 1, 64), std=(self.std, 0))

    @property
    def _plain(self) -> bool:
        return self.depth == 1 and self.inner_norm == "none" and not self.multiplicative

    @property
    def takes_undropped(self) -> bool:
        return self._plain and not self.parallel

    @property
    def wants(self) -> tuple[str, ...]:
        return ("sublayer_input",) if self.parallel else ()

    def recordable(self, shape: Shape) -> bool:
        return self.inner_norm != "batch"  # BatchNorm needs the slice of each owner

    def in_slots_of(self) -> Method:
        """Return the adapter with the next padded size: adapters of 8 units use slots of 64 units.

        Padding is exact. A padded unit has zero weights and outputs 0, because every activation is 0 at 0. It gets no
        gradient and does not change the gradient norm, so it stays 0.
        """
        if self.inner_norm != "none" or self.multiplicative:
            return self
        size = next((padded for padded in PADDED_SIZES if self.size <= padded), self.size)
        return replace(self, size=size, std=0.0)

    @property
    def wide(self) -> bool:
        return self.size > PADDED_SIZES[0]

    def without_layers(self, tensors: Tensors, first: int, last: int) -> dict[str, Tensor]:
        """Return the tensors with W_up and b_up set to 0, so that the adapters are the identity. LayerNorms stay."""
        sites = _PLACES[self.places_in_layer]
        removed = tuple(f"{layer}.{site}.up." for layer in range(first, last + 1) for site in sites)
        return {name: t.new_zeros(t.shape) if name.startswith(removed) else t for name, t in tensors.items()}

    def places(self, shape: Shape) -> frozenset[tuple[str, int]]:
        norms = {(n.site, n.layer) for n in self._trained_norms(shape)}
        return frozenset(norms | set(self._adapters(shape)))

    def tensors(self, shape: Shape) -> dict[str, Spec]:
        m, d = self.size, shape.width
        specs: dict[str, Spec] = {}
        for site, layer in self._adapters(shape):
            name = f"{layer}.{site}"
            specs |= adapter_specs(name, m, d, self.std)
            for i in range(1, self.depth):
                specs[f"{name}.hidden{i}.weight"] = Spec((m, m), "normal", self.std, decay=True)
                specs[f"{name}.hidden{i}.bias"] = Spec((m,), "zeros")
            if self.inner_norm != "none":
                specs[f"{name}.inner.weight"] = Spec((m,), "ones")
                specs[f"{name}.inner.bias"] = Spec((m,), "zeros")
            if self.inner_norm == "batch":
                specs[f"{name}.inner.mean"] = Spec((m,), "zeros", trained=False)
                specs[f"{name}.inner.variance"] = Spec((m,), "ones", trained=False)
        specs.update(norm_specs(self._trained_norms(shape)))
        return specs

    def count(self, shape: Shape) -> int:
        m, d = self.size, shape.width
        per_adapter = 2 * m * d + d + m + (self.depth - 1) * (m * m + m) + (2 * m if self.inner_norm != "none" else 0)
        adapters = len(self._layers(shape)) * len(_PLACES[self.places_in_layer])
        return adapters * per_adapter + norm_count(self._trained_norms(shape))

    def output(self, view: SiteView, h: Tensor) -> Tensor:
        name = f"{view.layer}.{view.site}"
        x = h
        if self.parallel:
            assert view.sublayer_input is not None
            x = view.sublayer_input
        if self._plain:
            return view.bottleneck(h, x, name, self.activation)
        hidden = view.linear(x, f"{name}.down")  # [tokens, m]
        if self.inner_norm == "layer":
            hidden = view.layer_norm(hidden, f"{name}.inner", 1e-5)
        elif self.inner_norm == "batch":
            hidden = view.batch_norm(hidden, f"{name}.inner")
        hidden = view.activate(hidden, self.activation)
        for i in range(1, self.depth):
            hidden = view.activate(view.linear(hidden, f"{name}.hidden{i}"), self.activation)
        u = view.linear(hidden, f"{name}.up")  # [tokens, d]
        return h + h * u if self.multiplicative else h + u

    def norm(self, view: SiteView, x: Tensor) -> Tensor:
        return view.base_norm(x, f"{view.layer}.{view.site}")

    def _layers(self, shape: Shape) -> tuple[int, ...]:
        return chosen_layers(self.layers, shape)

    def _adapters(self, shape: Shape) -> Iterator[tuple[str, int]]:
        """Yield (site, layer) of each adapter."""
        for layer in self._layers(shape):
            for site in _PLACES[self.places_in_layer]:
                yield site, layer

    def _trained_norms(self, shape: Shape) -> list[NormShape]:
        if self.norms:
            return trained_norms(shape, self._layers(shape), self.embedding_norm)
        return [n for n in shape.norms if self.embedding_norm and n.site == "embedding.norm"]


def adapter_specs(name: str, m: int, d: int, std: float) -> dict[str, Spec]:
    """Return the specs of the two matrices and two biases of one bottleneck."""
    return {
        f"{name}.down.weight": Spec((m, d), "normal", std, decay=True),
        f"{name}.down.bias": Spec((m,), "zeros"),
        f"{name}.up.weight": Spec((d, m), "normal", std, decay=True),
        f"{name}.up.bias": Spec((d,), "zeros"),
    }
