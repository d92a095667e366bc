"""The shape of a base: the sizes of its layers, norms and weights, known without loading any weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from intarsia.encoder.sites import LINEAR_SITES, Family, family_of, layer_paths, places


@dataclass(frozen=True)
class NormShape:
    site: str
    layer: int
    width: int
    bias: bool


@dataclass(frozen=True)
class LinearShape:
    site: str
    layer: int
    inputs: int
    outputs: int
    bias: bool


@dataclass(frozen=True)
class WeightShape:
    """One parameter of the base, by its name in the `transformers` model."""

    name: str
    shape: tuple[int, ...]
    layers: tuple[int, ...]  # those it belongs to; () for embeddings, pooler and final norm
    norm: bool  # of a LayerNorm
    behind: bool  # of the pooler or the final norm: it stands behind all layers

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Shape:
    """What counting parameters needs to know of a base; made from a configuration alone, no weights."""

    family: str
    layers: int
    width: int
    heads: int
    parameters: int
    pooler: bool
    pre_norm: bool
    shared_layers: bool
    norms: tuple[NormShape, ...] = field(repr=False)
    linears: tuple[LinearShape, ...] = field(repr=False)
    weights: tuple[WeightShape, ...] = field(repr=False)
    words: WeightShape = field(repr=False)  # the word embeddings, one of the weights
    disentangled_attention: bool = False
    recordable: bool = True

    @classmethod
    def of(cls, config: Any) -> Shape:
        """The shape of `config`'s model (`transformers` builds it on the meta device: no memory, no weights)."""
        import torch
        from transformers import AutoModel

        family_of(config)  # the clear error first
        with torch.device("meta"):
            return cls.of_model(AutoModel.from_config(config))

    @classmethod
    def of_model(cls, model: Any) -> Shape:
        from torch import nn

        family = family_of(model.config)
        norms: list[NormShape] = []
        linears: list[LinearShape] = []
        for place in places(family, model):
            module = model.get_submodule(place.path)
            for layer in place.layers:
                for site in place.sites:
                    if isinstance(module, nn.LayerNorm):
                        norms.append(NormShape(site, layer, module.weight.shape[0], module.bias is not None))
                    elif isinstance(module, nn.Linear) and site in LINEAR_SITES:
                        out = module.out_features
                        if family.fused_query_key_value and site in ("query", "key", "value"):
                            out //= 3
                        linears.append(LinearShape(site, layer, module.in_features, out, module.bias is not None))
        weights = _weights(family, model)
        words = next(name for name, p in model.named_parameters() if p is model.get_input_embeddings().weight)
        return cls(
            family=model.config.model_type,
            layers=sum(len(layers) for _, layers in layer_paths(family, model)),
            width=model.config.hidden_size,
            heads=model.config.num_attention_heads,
            parameters=sum(p.numel() for p in model.parameters()),
            pooler=family.pooler is not None and getattr(model, family.pooler.split(".")[0], None) is not None,
            pre_norm=family.pre_norm,
            shared_layers=family.shared_layers,
            norms=tuple(sorted(norms, key=lambda n: (n.layer, n.site))),
            linears=tuple(sorted(linears, key=lambda n: (n.layer, n.site))),
            weights=weights,
            words=next(weight for weight in weights if weight.name == words),
            disentangled_attention=family.disentangled_attention,
            recordable=family.recordable,
        )

    def merge_refusal(self, site: str, layer: int) -> str | None:
        """Why a task's change at a site cannot be merged into a plain model of this base; None: it can be."""
        if self.shared_layers and layer >= 0:
            return (
                f"nothing can be merged into {self.family}: its layers share one set of weights, and a task has "
                "tensors of its own for each layer."
            )
        if self.disentangled_attention and site in ("query", "key"):
            return (
                f"query and key cannot be merged into {self.family}: it projects relative positions through the same "
                "layers, and a task changes what tokens read there, not positions."
            )
        return None

    def norm(self, site: str, layer: int) -> NormShape | None:
        return next((n for n in self.norms if n.site == site and n.layer == layer), None)

    def linear(self, site: str, layer: int) -> LinearShape:
        return next(n for n in self.linears if n.site == site and n.layer == layer)


def _weights(family: Family, model: Any) -> tuple[WeightShape, ...]:
    from torch import nn

    norms = {path for path, module in model.named_modules() if isinstance(module, nn.LayerNorm)}
    layers = dict(layer_paths(family, model))
    behind = tuple(path for path in (family.pooler, family.outside.get("final.norm")) if path is not None)
    found = []
    for name, parameter in model.named_parameters():
        own = next((served for prefix, served in layers.items() if name.startswith(f"{prefix}.")), ())
        path = name.rpartition(".")[0]
        found.append(WeightShape(name, tuple(parameter.shape), own, path in norms, path in behind))
    return tuple(found)
