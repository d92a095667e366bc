"""Heads of Intarsia as flexible heads of AdapterHub; for ModernBERT, which has none there, as those of its classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from intarsia.errors import ExchangeError
from intarsia.exchange.activations import THEIRS
from intarsia.exchange.adapter import Adapter
from intarsia.exchange.adapterhub_heads import KINDS
from intarsia.exchange.class_heads import class_head
from intarsia.exchange.modules import Modules
from intarsia.tasks.word_head import word_activation

MODELS = {
    "albert": "AlbertAdapterModel",
    "bert": "BertAdapterModel",
    "deberta-v2": "DebertaV2AdapterModel",
    "distilbert": "DistilBertAdapterModel",
    "electra": "ElectraAdapterModel",
    "roberta": "RobertaAdapterModel",
    "xlm-roberta": "XLMRobertaAdapterModel",
}
TYPES = {**{kind: head for head, kind in KINDS.items()}, "score": "classification"}


@dataclass(frozen=True)
class WrittenHead:
    """The entries of `head_config.json` and the tensors by their names."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]


def written_head(adapter: Adapter, modules: Modules, name: str) -> WrittenHead:
    """Return the head as AdapterHub's; raise with the reason if it has no such head."""
    labels = {label: i for i, label in enumerate(adapter.labels)} or None
    if modules.encoder.shape.family not in MODELS:
        return _of_class(adapter, modules, labels)
    start = f"heads.{name}."
    if adapter.kind == "words":
        return _words(adapter, modules, name)
    head = adapter.head
    assert head is not None
    if head.pooling == "mean":
        raise ExchangeError(
            "the heads of adapters read the first token; this one reads the mean of the tokens. Learn the task with "
            "--pooling cls, pooler or trained-pooler."
        )
    if head.hidden and (head.hidden.norm or head.pooling == "trained-pooler"):
        raise ExchangeError("the heads of adapters have no LayerNorm, and at most one layer in front of the output.")
    tensors = adapter.head_tensors
    found: dict[str, Tensor] = {}
    activation, last, first = None, 1, ""
    if head.pooling == "trained-pooler":
        activation, last, first = "tanh", 4, "pooler"
    elif head.hidden:
        activation, last, first = THEIRS[head.hidden.activation], 4, "hidden"
    for kind in ("weight", "bias"):
        if first:
            found[f"{start}1.{kind}"] = tensors[f"{first}.{kind}"]
        found[f"{start}{last}.{kind}"] = tensors[f"output.{kind}"]
    config = {
        "head_type": TYPES[adapter.kind], "num_labels": head.outputs, "layers": 1 + bool(first),
        "activation_function": activation, "label2id": labels, "dropout_prob": None,
    }  # fmt: skip
    if head.pooling != "none":
        config |= {"use_pooler": head.pooling == "pooler", "bias": True}
    return WrittenHead({"config": config, **_model(modules)}, found)


def _model(modules: Modules) -> dict[str, str]:
    return {"model_class": MODELS[modules.encoder.shape.family]}


def _words(adapter: Adapter, modules: Modules, name: str) -> WrittenHead:
    encoder, tensors, start = modules.encoder, adapter.head_tensors, f"heads.{name}."
    words, e = encoder.shape.words.shape
    config = {
        "head_type": "masked_lm", "vocab_size": words, "embedding_size": e, "layers": 2,
        "activation_function": word_activation(encoder), "layer_norm": True, "bias": True, "shift_labels": False,
        "label2id": None, "dropout_prob": None,
    }  # fmt: skip
    found = {f"{start}0.{kind}": tensors[f"dense.{kind}"] for kind in ("weight", "bias")}
    found |= {f"{start}2.{kind}": tensors[f"norm.{kind}"] for kind in ("weight", "bias")}
    found[f"{start}3.weight"] = encoder.weights[encoder.shape.words.name].detach().float().cpu().clone()
    found[f"{start}3.bias"] = tensors["output.bias"]
    return WrittenHead({"config": config, **_model(modules)}, found)


def _of_class(adapter: Adapter, modules: Modules, labels: dict[str, int] | None) -> WrittenHead:
    found = class_head(adapter, modules)
    model = found.auto_class.replace("AutoModel", "ModernBert")
    assert adapter.head is not None
    config = {"config": None, "label2id": labels, "num_labels": adapter.head.outputs, "model_class": model}
    return WrittenHead(config, dict(found.tensors))
