"""Where a method may act: one short entry a model family.

A *site* is a named place in a layer. A family's entry says which submodule of the unmodified `transformers` model is
that place, so that attaching is a substitution of a few submodules and nothing else. To add a family, add an entry to
`FAMILIES` (docs/add-a-family.md walks through one) and a tiny configuration to the parity tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from intarsia.errors import EncoderError

if TYPE_CHECKING:
    from torch import nn

ATTENTION_OUTPUT, FFN_OUTPUT, LAYER_OUTPUT = "attention.output", "ffn.output", "layer.output"
PREFIX = "attention.prefix"  # extra keys and values that a layer's attention sees
NORM_SITES = ("embedding.norm", "attention.norm", "ffn.norm", "final.norm")
LINEAR_SITES = ("query", "key", "value", "attention.dense", "ffn.up", "ffn.down")
OUTSIDE = -1  # the layer number of sites that belong to no layer: the embeddings and the final norm


@dataclass(frozen=True)
class MaskedWords:
    """Where a family's class for masked words keeps the layer in front of its output, and the output's bias."""

    dense: str
    norm: str
    bias: str


@dataclass(frozen=True)
class Classifier:
    """Where a family's sequence-classification class keeps a dense layer on the first token, whose tanh goes to a
    linear output. ELECTRA's class has gelu there, DistilBERT's relu, and ModernBERT's a norm behind: these families
    have no entry."""

    dense: str
    output: str
    options: Mapping[str, str] = field(default_factory=dict)  # of the configuration, that make it so


_LIKE_ROBERTA: dict[str, Any] = {
    "masked_words": MaskedWords("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    "classifier": Classifier("classifier.dense", "classifier.out_proj"),
}


@dataclass(frozen=True)
class Family:
    """One model family: paths of submodules, relative to the model or (`within`) to a layer."""

    layers: str
    within: Mapping[str, str]  # site → path in a layer; two sites on one module act in this order
    outside: Mapping[str, str]  # site → path in the model
    attention: str  # path in a layer: the module whose input is the attention sub-layer's input
    masked_words: MaskedWords
    core: Literal["registry", "mpnet", "deberta"] = "registry"  # how its attention is made packed
    pooler: str | None = "pooler.dense"
    token_types: bool = True
    positions_after_padding: bool = False  # RoBERTa's habit: positions count from padding index + 1
    fused_query_key_value: bool = False
    shared_layers: bool = False  # ALBERT: one module serves many layers
    pre_norm: bool = False  # ModernBERT: sub-layers normalise their input, not the sum behind them
    # DeBERTa: the attention module computes with relative positions, and projects them through query and key too.
    disentangled_attention: bool = False
    attention_mask: bool = False  # the model needs a mask even where nothing is padded
    recordable: bool = True  # whether the GPU kernels compute its attention
    classifier: Classifier | None = None


_BERT = Family(
    layers="encoder.layer",
    within={
        "query": "attention.self.query",
        "key": "attention.self.key",
        "value": "attention.self.value",
        "attention.dense": "attention.output.dense",
        "attention.output": "attention.output.dropout",
        "attention.norm": "attention.output.LayerNorm",
        "ffn.up": "intermediate.dense",
        "ffn.down": "output.dense",
        "ffn.output": "output.dropout",
        "ffn.norm": "output.LayerNorm",
    },
    outside={"embedding.norm": "embeddings.LayerNorm", "embedding.output": "embeddings.dropout"},
    attention="attention.self",
    masked_words=MaskedWords(
        "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"
    ),
    classifier=Classifier("bert.pooler.dense", "classifier"),
)


def _like_bert(within: Mapping[str, str] | None = None, **changes: Any) -> Family:
    return Family(**{**_BERT.__dict__, **changes, "within": {**_BERT.within, **(within or {})}})


FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "roberta": _like_bert(positions_after_padding=True, **_LIKE_ROBERTA),
    "xlm-roberta": _like_bert(positions_after_padding=True, **_LIKE_ROBERTA),
    "electra": _like_bert(
        pooler=None,
        masked_words=MaskedWords(
            "generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head.bias"
        ),
        classifier=None,
    ),
    "mpnet": _like_bert(
        within={
            "query": "attention.attn.q",
            "key": "attention.attn.k",
            "value": "attention.attn.v",
            "attention.dense": "attention.attn.o",
            "attention.output": "attention.dropout",
            "attention.norm": "attention.LayerNorm",
        },
        attention="attention.attn",
        core="mpnet",
        token_types=False,
        positions_after_padding=True,
        **_LIKE_ROBERTA,
    ),
    "deberta-v2": _like_bert(
        within={
            "query": "attention.self.query_proj",
            "key": "attention.self.key_proj",
            "value": "attention.self.value_proj",
        },
        core="deberta",
        pooler=None,
        disentangled_attention=True,
        attention_mask=True,
        recordable=False,  # its attention runs on a padded block, whose size differs from pass to pass
        classifier=Classifier("pooler.dense", "classifier", {"pooler_hidden_act": "tanh"}),
    ),
    "distilbert": Family(
        layers="transformer.layer",
        within={
            "query": "attention.q_lin",
            "key": "attention.k_lin",
            "value": "attention.v_lin",
            "attention.dense": "attention.out_lin",
            "attention.output": "attention.out_lin",
            "attention.norm": "sa_layer_norm",
            "ffn.up": "ffn.lin1",
            "ffn.down": "ffn.lin2",
            "ffn.output": "ffn.dropout",
            "ffn.norm": "output_layer_norm",
        },
        outside={"embedding.norm": "embeddings.LayerNorm", "embedding.output": "embeddings.dropout"},
        attention="attention",
        masked_words=MaskedWords("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
        pooler=None,
        token_types=False,
    ),
    "albert": Family(
        layers="encoder.albert_layer_groups",
        within={
            "query": "attention.query",
            "key": "attention.key",
            "value": "attention.value",
            "attention.dense": "attention.dense",
            "attention.output": "attention.output_dropout",
            "attention.norm": "attention.LayerNorm",
            "ffn.up": "ffn",
            "ffn.down": "ffn_output",
            "ffn.output": "ffn_output",
            "ffn.norm": "full_layer_layer_norm",
        },
        outside={"embedding.norm": "embeddings.LayerNorm", "embedding.output": "embeddings.dropout"},
        attention="attention",
        masked_words=MaskedWords("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
        pooler="pooler",
        shared_layers=True,
        classifier=Classifier("albert.pooler", "classifier"),
    ),
    "modernbert": Family(
        layers="layers",
        within={
            "attention.norm": "attn_norm",
            "query": "attn.Wqkv",
            "key": "attn.Wqkv",
            "value": "attn.Wqkv",
            "attention.dense": "attn.Wo",
            "attention.output": "attn.out_drop",
            "ffn.norm": "mlp_norm",
            "ffn.up": "mlp.Wi",
            "ffn.down": "mlp.Wo",
            "ffn.output": "mlp.Wo",
        },
        outside={
            "embedding.norm": "embeddings.norm",
            "embedding.output": "embeddings.drop",
            "final.norm": "final_norm",
        },
        attention="attn",
        masked_words=MaskedWords("head.dense", "head.norm", "decoder.bias"),
        pooler=None,
        token_types=False,
        fused_query_key_value=True,
        pre_norm=True,
        recordable=False,  # its attention windows are not in the kernel
    ),
}


def family_of(config: Any) -> Family:
    """The entry for a `transformers` configuration, or an error that names the known families."""
    kind = getattr(config, "model_type", None)
    if kind not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise EncoderError(
            f"the model family {kind!r} is not known. Known families: {known}. "
            "To add one, write its entry in intarsia/encoder/sites.py (docs/add-a-family.md)."
        )
    return FAMILIES[kind]


@dataclass(frozen=True)
class Place:
    """One module and the layers it serves (several only where layers share weights), with the sites it stands for."""

    path: str
    layers: tuple[int, ...]
    sites: tuple[str, ...]


def places(family: Family, model: nn.Module) -> Iterator[Place]:
    """Every module that is a site, in no particular order."""
    for path in dict.fromkeys(family.outside.values()):
        yield Place(path, (OUTSIDE,), tuple(s for s, p in family.outside.items() if p == path))
    for prefix, layers in layer_paths(family, model):
        for path in dict.fromkeys(family.within.values()):
            yield Place(f"{prefix}.{path}", layers, tuple(s for s, p in family.within.items() if p == path))


def layer_paths(family: Family, model: nn.Module) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(path of a layer module, the layers it serves)."""
    stack: Any = model.get_submodule(family.layers)
    if not family.shared_layers:
        for i in range(len(stack)):
            yield f"{family.layers}.{i}", (i,)
        return
    config: Any = model.config
    inner = config.inner_group_num
    for group in range(config.num_hidden_groups):
        rounds = [
            i
            for i in range(config.num_hidden_layers)
            if int(i / (config.num_hidden_layers / config.num_hidden_groups)) == group
        ]
        for j in range(inner):
            yield f"{family.layers}.{group}.albert_layers.{j}", tuple(i * inner + j for i in rounds)


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
