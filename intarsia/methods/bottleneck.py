"""Bottleneck adapters (Houlsby et al. 2019, Parameter-Efficient Transfer Learning for NLP).

Each layer has two adapters: one on the output h of the attention and one on the output of the feed-forward sub-layer,
after dropout and before the residual sum: LN(x + A(h)) with A(h) = h + W_up gelu(W_down h + b_down) + b_up. Both
matrices start near zero, so A starts near the identity. The method also trains the LayerNorms. An adapter has
2md + d + m parameters.

The options cover the variants of the paper (section 3.6): other activations, a norm or more layers inside the adapter,
adapters after attention only, parallel adapters, and multiplicative adapters. They also cover the forms that AdapterHub
files have: with the residual x and the base's LayerNorm LN of the sub-layer, the adapter may read LN(h + x)
(`base_norm_before`) or h + x (`sum_before`), have LayerNorms of its own (`norm_before`, `norm_after`), add its output
to h, to h + x or to what it reads (`residual`), scale it (`scaling`, `learned_scaling`), and replace LN(h' + x) by h'
(`base_norm_after`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from intarsia.encoder.activation_names import ACTIVATION_NAMES, Activation
from intarsia.encoder.compiled_site import CompiledSite
from intarsia.encoder.shape import NormShape
from intarsia.encoder.sites import ATTENTION_OUTPUT, FFN_OUTPUT
from intarsia.errors import IntarsiaError, check_choice
from intarsia.methods import invertible
from intarsia.methods.method import (
    Layers,
    Method,
    Preset,
    Spec,
    Tensors,
    check_dropout,
    check_least,
    chosen_layers,
    sorted_layers,
)
from intarsia.methods.norms import norm_count, norm_specs, norms_behind, trained_norms

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.shape import Shape
    from intarsia.encoder.site_view import SiteView

_PLACES = {"both": (ATTENTION_OUTPUT, FFN_OUTPUT), "attention": (ATTENTION_OUTPUT,), "ffn": (FFN_OUTPUT,)}
_NORM_OF = {ATTENTION_OUTPUT: "attention.norm", FFN_OUTPUT: "ffn.norm"}
_INNER_NORMS = ("none", "layer", "batch")
_NORMS_AFTER = ("none", "change", "sum")
_RESIDUALS = ("output", "sum", "read")
_LEARNED_SCALINGS = ("none", "scalar", "channel")
_EPS = 1e-5  # of the adapter's own LayerNorms
PADDED_SIZES = (64, 256)  # in recorded passes smaller adapters are padded to these sizes


@dataclass(frozen=True)
class Bottleneck(Method):
    """Houlsby adapters of `size` hidden units."""

    size: int = 64
    places_in_layer: Literal["both", "attention", "ffn"] = "both"
    layers: Layers = None  # None: all
    activation: Activation = "gelu"
    depth: int = 1  # hidden layers inside the adapter
    inner_norm: Literal["none", "layer", "batch"] = "none"  # on the hidden units, before the activation
    parallel: bool = False  # reads the sub-layer's input instead of its output
    multiplicative: bool = False  # h * (1 + u) instead of h + u
    norms: bool = True  # train the LayerNorms of these layers
    embedding_norm: bool | None = None  # train the embedding LayerNorm; None: only if every layer has adapters
    std: float = 1e-2  # both matrices start truncated-normal (1e-3 in the authors' program)
    sizes: tuple[int, ...] | None = None  # one size for each of the layers, instead of `size`
    scaling: float = 1.0  # multiplies the adapter's change u
    learned_scaling: Literal["none", "scalar", "channel"] = "none"  # a trained factor of u, or one for each hidden unit
    dropout: float = 0.0  # on u, in training
    norm_before: bool = False  # a LayerNorm of the adapter's own on what it reads
    norm_after: Literal["none", "change", "sum"] = "none"  # a LayerNorm of the adapter's own on u, or on residual + u
    base_norm_before: bool = False  # reads the base's frozen LN(h + x)
    residual: Literal["output", "sum", "read"] = "output"  # u is added to h, to h + x, or to what it reads
    base_norm_after: bool = True  # the base adds x and applies its LN; False: the adapter's result is the sub-layer's
    sum_before: bool = False  # reads h + x
    invertible: bool = False  # an invertible adapter at the embeddings, as MAD-X has for languages
    invertible_reduction: int = 2  # of its hidden units

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
    training_only: ClassVar[tuple[str, ...]] = ("std", "dropout")
    newer: ClassVar[tuple[str, ...]] = (
        "sizes", "scaling", "learned_scaling", "dropout", "norm_before", "norm_after", "base_norm_before", "residual",
        "base_norm_after", "sum_before", "invertible", "invertible_reduction",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_choice("places_in_layer", self.places_in_layer, _PLACES)
        check_choice("activation", self.activation, ACTIVATION_NAMES)
        check_choice("inner_norm", self.inner_norm, _INNER_NORMS)
        check_choice("learned_scaling", self.learned_scaling, _LEARNED_SCALINGS)
        check_choice("norm_after", self.norm_after, _NORMS_AFTER)
        check_choice("residual", self.residual, _RESIDUALS)
        check_least(size=(self.size, 1), depth=(self.depth, 1, 64), std=(self.std, 0), scaling=(abs(self.scaling), 0))
        check_least(invertible_reduction=(self.invertible_reduction, 1))
        check_dropout(self.dropout)
        self._check_sizes()
        sorted_layers(self)
        if self.residual != "output" and not (self.base_norm_before or self.sum_before):
            raise IntarsiaError(
                f"residual {self.residual!r} needs base_norm_before=True or sum_before=True: it is what it reads."
            )
        if self.base_norm_before + self.sum_before + self.parallel > 1:
            raise IntarsiaError("base_norm_before, sum_before and parallel exclude each other: it reads one input.")
        if self.norms and not self.base_norm_after:
            raise IntarsiaError("base_norm_after=False needs norms=False: the LayerNorms would not be used.")

    def _check_sizes(self) -> None:
        if self.sizes is None:
            return
        for size in self.sizes:
            check_least(sizes=(size, 1))
        if not isinstance(self.layers, tuple):
            return  # `_size_of` compares with the base
        if list(self.layers) != sorted(set(self.layers)):
            raise IntarsiaError("sizes need their layers in ascending order, each of them once.")
        if len(self.sizes) != len(self.layers):
            raise IntarsiaError(f"{len(self.sizes)} sizes were given for {len(self.layers)} layers.")

    def check(self, shape: Shape) -> None:
        if shape.pre_norm and (self.base_norm_before or not self.base_norm_after):
            raise IntarsiaError(
                f"base_norm_before and base_norm_after=False do not work on {shape.family}: its LayerNorms stand "
                "before the sub-layers, not behind them."
            )
        if self.invertible:
            invertible.check(shape)
        self._size_of(shape)

    @property
    def _plain(self) -> bool:
        """Whether the adapter is one call of `view.bottleneck`."""
        inside = self.depth == 1 and self.inner_norm == "none" and not self.multiplicative
        return inside and self.norm_after == "none" and not self._scaled and not self.dropout

    @property
    def _scaled(self) -> bool:
        return self.scaling != 1.0 or self.learned_scaling != "none"

    @property
    def takes_undropped(self) -> bool:
        return self._plain and not self.wants and not self.norm_before and self.base_norm_after

    @property
    def wants(self) -> tuple[str, ...]:
        return ("sublayer_input",) if self.parallel or self.base_norm_before or self.sum_before else ()

    def recordable(self, shape: Shape) -> bool:
        return self.inner_norm != "batch"  # BatchNorm needs the slice of each owner

    def compiled(self, shape: Shape) -> Mapping[tuple[str, int], CompiledSite] | None:
        if not self._plain or self.norm_before or self.sum_before or not self.base_norm_after:
            return None
        if self.residual != "output":
            return None
        norms = norms_behind(self._trained_norms(shape))
        adapters = {(site.removesuffix(".output"), layer) for site, layer in self._adapters(shape)}
        reads: Literal["output", "input", "normalised"]
        reads = "input" if self.parallel else "normalised" if self.base_norm_before else "output"
        return {
            place: CompiledSite(place in adapters, self.activation, reads, norm="own" if place in norms else "base")
            for place in adapters | norms
        }

    def in_slots_of(self) -> Method:
        """Return the adapter with the next padded size: adapters of 8 units use slots of 64 units.

        Padding is exact. A padded unit has zero weights and outputs 0, because every activation is 0 at 0. It gets no
        gradient and does not change the gradient norm, so it stays 0. The sigmoid is not 0 at 0, so it is not padded.
        """
        if self.inner_norm != "none" or self.multiplicative or self.sizes is not None or self.activation == "sigmoid":
            return self
        size = next((padded for padded in PADDED_SIZES if self.size <= padded), self.size)
        return replace(self, size=size, std=0.0)

    @property
    def wide(self) -> bool:
        return max(self.sizes or (self.size,)) > PADDED_SIZES[0]

    def without_layers(self, tensors: Tensors, first: int, last: int) -> dict[str, Tensor]:
        """Return the tensors with W_up and b_up set to 0, so that the adapters are the identity. LayerNorms stay."""
        if self.norm_after == "sum" or self.residual != "output" or not self.base_norm_after:
            return super().without_layers(tensors, first, last)
        sites = _PLACES[self.places_in_layer]
        removed = tuple(f"{layer}.{site}.up." for layer in range(first, last + 1) for site in sites)
        return {name: t.new_zeros(t.shape) if name.startswith(removed) else t for name, t in tensors.items()}

    def places(self, shape: Shape) -> frozenset[tuple[str, int]]:
        norms = {(n.site, n.layer) for n in self._trained_norms(shape)}
        adapters = set(self._adapters(shape))
        skipped = set() if self.base_norm_after else {(_NORM_OF[site], layer) for site, layer in adapters}
        outside = {invertible.PLACE} if self.invertible else set()
        return frozenset(norms | adapters | skipped | outside)

    def tensors(self, shape: Shape) -> dict[str, Spec]:
        d, sizes = shape.width, self._size_of(shape)
        specs = invertible.specs(shape, self.invertible_reduction) if self.invertible else {}
        for site, layer in self._adapters(shape):
            name, m = f"{layer}.{site}", sizes[layer]
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
            for norm, present in (("norm_before", self.norm_before), ("norm_after", self.norm_after != "none")):
                if present:
                    specs[f"{name}.{norm}.weight"] = Spec((d,), "ones")
                    specs[f"{name}.{norm}.bias"] = Spec((d,), "zeros")
            if self.learned_scaling != "none":
                specs[f"{name}.scaling"] = Spec((self._factors(shape),), "ones")
        specs.update(norm_specs(self._trained_norms(shape)))
        return specs

    def count(self, shape: Shape) -> int:
        d = shape.width
        outside = 2 * d * (self.norm_before + (self.norm_after != "none")) + self._factors(shape)
        inner = 2 if self.inner_norm != "none" else 0
        layers = sum(
            2 * m * d + d + m + (self.depth - 1) * (m * m + m) + inner * m + outside
            for m in self._size_of(shape).values()
        )
        embeddings = invertible.count(shape, self.invertible_reduction) if self.invertible else 0
        return embeddings + layers * len(_PLACES[self.places_in_layer]) + norm_count(self._trained_norms(shape))

    def output(self, view: SiteView, h: Tensor) -> Tensor:
        if view.site == invertible.SITE:
            return invertible.forward(view, h, self.activation)
        read = self.reads(view, h)
        residual = h
        if self.residual == "read":
            residual = read
        elif self.residual == "sum":
            assert view.sublayer_input is not None
            residual = h + view.sublayer_input
        out = self._applied(view, residual, read)
        if self.base_norm_after:
            return out
        view.memory[_NORM_OF[view.site], view.layer] = out  # `norm` returns it
        return h

    def change(self, view: SiteView, h: Tensor) -> Tensor:
        if view.site == invertible.SITE or not self._plain or self.residual != "output":
            return super().change(view, h)
        return self._applied(view, h.new_zeros(h.shape), self.reads(view, h))

    def reads(self, view: SiteView, h: Tensor) -> Tensor:
        if self.parallel:
            assert view.sublayer_input is not None
            return view.sublayer_input
        if self.base_norm_before:
            return view.normalised(_NORM_OF[view.site], h)
        if self.sum_before:
            assert view.sublayer_input is not None
            return h + view.sublayer_input
        return h

    @property
    def reads_beside(self) -> bool:
        return self.parallel and not self.multiplicative

    def sole(self, shape: Shape) -> tuple[frozenset[tuple[str, int]], str]:
        if self.base_norm_after:
            return super().sole(shape)
        return self.places(shape), "with base_norm_after=False the adapter's result replaces that of the sub-layer."

    def _applied(self, view: SiteView, residual: Tensor, read: Tensor) -> Tensor:
        """Return the adapter's result for what it reads."""
        name = f"{view.layer}.{view.site}"
        if self.norm_before:
            read = view.layer_norm(read, f"{name}.norm_before", _EPS)
        if self._plain:
            return view.bottleneck(residual, read, name, self.activation)
        return self._combined(view, name, residual, self._change(view, name, read))

    @property
    def inverts_words(self) -> bool:
        return self.invertible

    def words(self, tensors: Tensors, rows: Tensor) -> Tensor:
        return invertible.inverse(tensors, rows, self.activation) if self.invertible else rows

    def _change(self, view: SiteView, name: str, x: Tensor) -> Tensor:
        """Return u, the output of the two matrices: x [tokens, d] → [tokens, d]."""
        hidden = view.linear(x, f"{name}.down")  # [tokens, m]
        if self.inner_norm == "layer":
            hidden = view.layer_norm(hidden, f"{name}.inner", 1e-5)
        elif self.inner_norm == "batch":
            hidden = view.batch_norm(hidden, f"{name}.inner")
        hidden = view.activate(hidden, self.activation)
        for i in range(1, self.depth):
            hidden = view.activate(view.linear(hidden, f"{name}.hidden{i}"), self.activation)
        u = view.linear(hidden, f"{name}.up")
        if self.scaling != 1.0:
            u = u * self.scaling
        if self.learned_scaling != "none":
            u = u * view.each(f"{name}.scaling")
        return view.drop(u, self.dropout)

    def _combined(self, view: SiteView, name: str, residual: Tensor, u: Tensor) -> Tensor:
        if self.norm_after == "change":
            u = view.layer_norm(u, f"{name}.norm_after", _EPS)
        out = residual + (residual * u if self.multiplicative else u)
        return view.layer_norm(out, f"{name}.norm_after", _EPS) if self.norm_after == "sum" else out

    def norm(self, view: SiteView, x: Tensor) -> Tensor:
        if not self.base_norm_after and (view.site, view.layer) in view.memory:
            return view.memory.pop((view.site, view.layer))
        return view.base_norm(x, f"{view.layer}.{view.site}")

    def _layers(self, shape: Shape) -> tuple[int, ...]:
        return chosen_layers(self.layers, shape)

    def _size_of(self, shape: Shape) -> dict[int, int]:
        """Return the number of hidden units in each layer."""
        layers = self._layers(shape)
        if self.sizes is None:
            return dict.fromkeys(layers, self.size)
        if len(self.sizes) != len(layers):
            raise IntarsiaError(f"{len(self.sizes)} sizes were given for {len(layers)} layers.")
        return dict(zip(layers, self.sizes, strict=True))

    def _factors(self, shape: Shape) -> int:
        """Return the length of an adapter's vector of learned factors."""
        return {"none": 0, "scalar": 1, "channel": shape.width}[self.learned_scaling]

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
