"""The heads of the task classes of `transformers`, as heads of Intarsia, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from intarsia.errors import ExchangeError
from intarsia.exchange.accounting import Weights
from intarsia.exchange.activations import activation_of
from intarsia.exchange.modules import Modules
from intarsia.tasks.heads import Head, Hidden

KINDS = {"SEQ_CLS": "label", "TOKEN_CLS": "tags", "QUESTION_ANS": "span"}
CLASSES = {
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
}
LIKE_ROBERTA = ("roberta", "xlm-roberta", "mpnet")
OF_THE_BASE = ("bert", "albert")  # the classifier reads the base's pooler


@dataclass(frozen=True)
class HiddenLayer:
    """The dense layer of a class for sequence classification on the first token, and its output layer."""

    dense: str
    output: str
    activation: str  # or the configuration value that names it
    norm: str | None = None


HIDDEN = {
    "distilbert": HiddenLayer("pre_classifier", "classifier", "relu"),
    "electra": HiddenLayer("classifier.dense", "classifier.out_proj", "gelu"),
    "deberta-v2": HiddenLayer("pooler.dense", "classifier", "config.pooler_hidden_act"),
    "modernbert": HiddenLayer("head.dense", "classifier", "config.classifier_activation", norm="head.norm"),
}


@dataclass(frozen=True)
class TaskHead:
    """A head with its tensors, and the task kind that it answers."""

    kind: str
    head: Head
    tensors: Mapping[str, Tensor]


def task_of(task_type: str | None, model_class: str | None) -> str | None:
    """Return the task type of a file: its own statement, or that of its model class."""
    if task_type in (None, "FEATURE_EXTRACTION"):
        found = [task for ending, task in CLASSES.items() if (model_class or "").endswith(ending)]
        return found[0] if found else None
    if task_type not in KINDS:
        raise ExchangeError(
            f"the adapter is for the task type {task_type}; expected one of {', '.join(KINDS)} or FEATURE_EXTRACTION."
        )
    return task_type


def read_head(
    weights: Weights,
    modules: Modules,
    task: str | None,
    name: Callable[[str], str],
    pooler: Mapping[str, Tensor] | None = None,
) -> TaskHead | None:
    """Take the head's tensors. `name` gives the tensor name of a module path of the task class. `pooler` are the
    weight and bias with which the adapter replaces the base's pooler."""
    if task is None:
        return None
    family = modules.encoder.shape.family
    if family == "modernbert":  # all of its classes have the hidden layer
        config = modules.encoder.model.config
        kind = {"SEQ_CLS": "label", "TOKEN_CLS": "tags", "QUESTION_ANS": "span"}[task]
        return _hidden(weights, modules, name, kind, config.classifier_pooling if task == "SEQ_CLS" else "none")
    if task == "QUESTION_ANS":
        return _linear(weights, modules, name("qa_outputs"), "span", "none")
    if task == "TOKEN_CLS":
        return _linear(weights, modules, name("classifier"), "tags", "none")
    if family in HIDDEN:
        return _hidden(weights, modules, name, "label", "cls")
    if family in LIKE_ROBERTA:
        dense = {f"pooler.{kind}": weights.take(f"{name('classifier.dense')}.{kind}") for kind in ("weight", "bias")}
        found = _linear(weights, modules, name("classifier.out_proj"), "label", "trained-pooler")
        return TaskHead(found.kind, found.head, {**dense, **found.tensors})
    if family in OF_THE_BASE:
        if pooler is None and not modules.encoder.shape.pooler:
            raise ExchangeError(
                "the head reads a pooler, but the bank's base has none: it was initialised at random in the other "
                "library and is not in the file."
            )
        found = _linear(weights, modules, name("classifier"), "label", "trained-pooler" if pooler else "pooler")
        own = {f"pooler.{kind}": tensor for kind, tensor in (pooler or {}).items()}
        return TaskHead(found.kind, found.head, {**own, **found.tensors})
    raise ExchangeError(f"heads of the family {family} cannot be imported for the task type {task}.")


def _hidden(weights: Weights, modules: Modules, name: Callable[[str], str], kind: str, pooling: str) -> TaskHead:
    """Take a head with a hidden layer. A layer without biases gets biases of 0."""
    layer, config, d = HIDDEN[modules.encoder.shape.family], modules.encoder.model.config, modules.encoder.shape.width
    found = _linear(weights, modules, name(layer.output), kind, pooling)
    option = layer.activation.removeprefix("config.")
    named: Any = getattr(config, option) if option != layer.activation else option
    hidden = Hidden(activation_of(named, f"the base's {option}"), norm=layer.norm is not None)
    tensors = {"hidden.weight": weights.take(f"{name(layer.dense)}.weight", (d, d))}
    tensors["hidden.bias"] = _or_zeros(weights, f"{name(layer.dense)}.bias", d)
    if layer.norm:
        tensors["norm.weight"] = weights.take(f"{name(layer.norm)}.weight", (d,))
        tensors["norm.bias"] = _or_zeros(weights, f"{name(layer.norm)}.bias", d)
    head = Head(found.head.outputs, found.head.pooling, hidden)
    return TaskHead(found.kind, head, {**tensors, **found.tensors})


def _or_zeros(weights: Weights, name: str, width: int) -> Tensor:
    found = weights.take_if(name, (width,))
    return torch.zeros(width) if found is None else found


def _linear(weights: Weights, modules: Modules, name: str, kind: str, pooling: str) -> TaskHead:
    d = modules.encoder.shape.width
    if f"{name}.weight" not in weights:
        raise ExchangeError(
            f"{weights.where} has no head ({name}.weight), but its configuration names a task with one. Was the head "
            "saved (modules_to_save)? To import the adapter without a head: --headless (headless=True)."
        )
    shape = weights.shape(f"{name}.weight")
    outputs = shape[0] if len(shape) == 2 else 0
    if not 1 <= outputs <= 100_000:
        raise ExchangeError(f"{weights.where}: {name}.weight has the shape {shape}; expected [outputs, {d}].")
    tensors = {"output.weight": weights.take(f"{name}.weight", (outputs, d))}
    tensors["output.bias"] = weights.take(f"{name}.bias", (outputs,))
    if kind == "label" and outputs == 1:
        kind = "score"
    return TaskHead(kind, Head(outputs, pooling), tensors)  # type: ignore[arg-type]
