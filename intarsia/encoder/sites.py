"""The sites at which a method can act: one short entry for each model family.

A *site* is a named place in a layer. The entry of a family maps each site to a submodule of the unmodified
`transformers` model. Attaching therefore only replaces a few submodules. To add a family, add an entry to `FAMILIES`
(docs/add-a-family.md shows an example) and a tiny configuration to the parity tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from intarsia.errors import EncoderError

if TYPE_CHECKING:
    from torch import nn

ATTENTION_OUTPUT, FFN_OUTPUT, LAYER_OUTPUT = "attention.output", "ffn.output", "layer.output"
OUTPUT_SITES = (ATTENTION_OUTPUT, FFN_OUTPUT, LAYER_OUTPUT)
PREFIX = "attention.prefix"  # extra keys and values for the attention of a layer
NORM_SITES = ("embedding.norm", "attention.norm", "ffn.norm", "final.norm")
LINEAR_SITES = ("query", "key", "value", "attention.dense", "ffn.up", "ffn.down")
OUTSIDE = -1  # the layer number of sites that belong to no layer: the embeddings and the final norm


@dataclass(frozen=True)
class MaskedWords:
    """The parameter paths in a family's masked-language-model class: the layer before the output, the output bias."""

    dense: str
    norm: str
    bias: str


@dataclass(frozen=True)
class Classifier:
    """The parameter paths in a family's sequence-classification class: a dense layer on the first token, followed by
    tanh and a linear output. ELECTRA uses gelu, DistilBERT uses relu, and ModernBERT adds a norm: these families have
    no entry."""

    dense: str
    output: str
    options: Mapping[str, str] = field(default_factory=dict)  # configuration values that this layout requires


_LIKE_ROBERTA: dict[str, Any] = {
    "masked_words": MaskedWords("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    "classifier": Classifier("classifier.dense", "classifier.out_proj"),
}


@dataclass(frozen=True)
class Family:
    """One model family: the paths of its submodules, relative to the model or (`within`) to a layer."""

    layers: str
    within: Mapping[str, str]  # site → path in a layer; sites that share a module act in this order
    outside: Mapping[str, str]  # site → path in the model
    attention: str  # path in a layer: the module whose input is the attention sub-layer's input
    masked_words: MaskedWords
    core: Literal["registry", "mpnet", "deberta"] = "registry"  # how its attention runs on packed batches
    pooler: str | None = "pooler.dense"
    token_types: bool = True
    positions_after_padding: bool = False  # RoBERTa: positions start at padding index + 1
    fused_query_key_value: bool = False
    shared_layers: bool = False  # ALBERT: many layers use one module
    pre_norm: bool = False  # ModernBERT: sub-layers normalise their input, not the residual sum
    # DeBERTa: the attention module projects relative positions through query and key, like tokens.
    disentangled_attention: bool = False
    attention_mask: bool = False  # the model needs a mask even without padding
    recordable: bool = True  # whether the GPU kernels can compute its attention
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
        recordable=False,  # its attention runs on a padded block, whose size differs between passes
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
        recordable=False,  # the attention kernel does not support its sliding windows
    ),
}


def family_of(config: Any) -> Family:
    """Return the entry for a `transformers` configuration; raise an error that lists the known families otherwise."""
    kind = getattr(config, "model_type", None)
    if kind not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise EncoderError(
            f"the model family {kind!r} is not known. Known families: {known}. "
            "To add a family, write its entry in intarsia/encoder/sites.py (docs/add-a-family.md)."
        )
    return FAMILIES[kind]


@dataclass(frozen=True)
class Place:
    """One module, the layers that use it (several only if layers share weights), and the sites it implements."""

    path: str
    layers: tuple[int, ...]
    sites: tuple[str, ...]


def places(family: Family, model: nn.Module) -> Iterator[Place]:
    """Yield every module that implements a site, in no particular order."""
    for path in dict.fromkeys(family.outside.values()):
        yield Place(path, (OUTSIDE,), tuple(s for s, p in family.outside.items() if p == path))
    for layer_path, layers in layer_paths(family, model):
        for path in dict.fromkeys(family.within.values()):
            yield Place(f"{layer_path}.{path}", layers, tuple(s for s, p in family.within.items() if p == path))


def layer_paths(family: Family, model: nn.Module) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield (path of a layer module, the layers that use it)."""
    modules: Any = model.get_submodule(family.layers)
    if not family.shared_layers:
        for i in range(len(modules)):
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
