"""The shape of a base: the sizes of its layers, norms and weights, known without loading any weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from intarsia.encoder.sites import LINEAR_SITES, Family, family_of, layer_paths, places


@dataclass(frozen=True)
class NormShape:
    """The size of one LayerNorm."""

    site: str
    layer: int
    width: int
    bias: bool


@dataclass(frozen=True)
class LinearShape:
    """The size of the linear layer at one site."""

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
    layers: tuple[int, ...]  # the layers that use it; () for embeddings, pooler and final norm
    norm: bool  # True for the weight or bias of a LayerNorm
    behind: bool  # True for the pooler and the final norm, which run after all layers

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Shape:
    """The sizes of a base. A configuration is enough to compute them; no weights are needed."""

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
    words: WeightShape = field(repr=False)  # the word embeddings, which are also in `weights`
    disentangled_attention: bool = False
    recordable: bool = True
    positions: int = 0  # the most tokens of a text: the base has no further positions

    @classmethod
    def of(cls, config: Any) -> Shape:
        """Return the shape of the model of `config`, which is built on the meta device without memory or weights."""
        import torch
        from transformers import AutoModel

        family_of(config)  # raises a clear error before `transformers` can raise its own
        with torch.device("meta"):
            return cls.of_model(AutoModel.from_config(config))

    @classmethod
    def of_model(cls, model: Any) -> Shape:
        """Return the shape of a `transformers` model."""
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
            positions=model.config.max_position_embeddings - first_position(model.config),
        )

    def merge_refusal(self, site: str, layer: int) -> str | None:
        """Return the reason why a change at a site cannot be merged into the weights of this base, or None."""
        if self.shared_layers and layer >= 0:
            return (
                f"an inlay cannot be merged into {self.family}: its layers share one set of weights, and the inlay has "
                "separate tensors for each layer. Serve the inlay from a bank instead."
            )
        if self.disentangled_attention and site in ("query", "key"):
            return (
                f"query and key cannot be merged into {self.family}: the same layers project relative positions, and "
                "the inlay changes only the projections of tokens. Serve the inlay from a bank instead."
            )
        return None

    def norm(self, site: str, layer: int) -> NormShape | None:
        return next((n for n in self.norms if n.site == site and n.layer == layer), None)

    def linear(self, site: str, layer: int) -> LinearShape:
        return next(n for n in self.linears if n.site == site and n.layer == layer)


def first_position(config: Any) -> int:
    """Return the position of a text's first token."""
    return int(config.pad_token_id) + 1 if family_of(config).positions_after_padding else 0


def _weights(family: Family, model: Any) -> tuple[WeightShape, ...]:
    """Return every parameter of the model, in its order."""
    from torch import nn

    norms = {path for path, module in model.named_modules() if isinstance(module, nn.LayerNorm)}
    layers = dict(layer_paths(family, model))
    behind = tuple(path for path in (family.pooler, family.outside.get("final.norm")) if path is not None)
    weights = []
    for name, parameter in model.named_parameters():
        used_by = next((users for layer_path, users in layers.items() if name.startswith(f"{layer_path}.")), ())
        path = name.rpartition(".")[0]
        weights.append(WeightShape(name, tuple(parameter.shape), used_by, path in norms, path in behind))
    return tuple(weights)
