"""The heads of AdapterHub's files: flexible heads of its own model classes, and the classes of `transformers`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from intarsia.errors import ExchangeError
from intarsia.exchange.accounting import Flags, Weights
from intarsia.exchange.activations import activation_of
from intarsia.exchange.heads import read_head, task_of
from intarsia.exchange.modules import Modules
from intarsia.exchange.source import Source
from intarsia.tasks.heads import Head, Hidden
from intarsia.tasks.word_head import WordHead, word_activation

CONFIG = "head_config.json"
WEIGHTS = ("model_head.safetensors", "pytorch_model_head.bin")
KINDS = {"classification": "label", "multilabel_classification": "labels", "tagging": "tags",
         "question_answering": "span"}  # fmt: skip
OF_TOKENS = ("tags", "span")


@dataclass(frozen=True)
class HubHead:
    """A head with its tensors, its task kind, and its labels."""

    kind: str
    head: Head
    tensors: Mapping[str, Tensor]
    labels: tuple[str, ...] = ()
    inverts: bool = field(default=False)  # its words pass through the inverse of an invertible adapter


def read_hub_head(source: Source, modules: Modules) -> HubHead | None:
    """Take the head of a folder, if it has one and the user wants it."""
    if source.headless:
        source.leave_out(CONFIG, *WEIGHTS)
        return None
    has_weights = source.first(*WEIGHTS) is not None
    if CONFIG not in source.files:
        if has_weights:
            raise ExchangeError(f"{source.name} has the weights of a head, but no {CONFIG}.")
        return None
    flags = source.config(CONFIG)
    flags.no_effect("hidden_size", "model_type", "model_name", "version", "type")
    model_class, name = flags.take("model_class", None), flags.take("name", None)
    config = flags.take("config", None)
    weights = source.weights(*WEIGHTS)
    if config is None:
        return _of_class(flags, weights, modules, str(model_class))
    flags.no_effect("label2id", "num_labels")
    own = Flags(f"{CONFIG}, config", config) if isinstance(config, dict) else None
    if own is None or not isinstance(name, str):
        raise ExchangeError(
            f"{CONFIG}: config is {config!r:.80} and name is {name!r:.80}; expected an object and a text."
        )
    source.account(own)
    return _flexible(own, weights, modules, f"heads.{name}.")


def _of_class(flags: Flags, weights: Weights, modules: Modules, model_class: str) -> HubHead:
    """Return the head of a task class of `transformers`."""
    task = task_of(None, model_class)
    if task is None:
        raise ExchangeError(
            f"{CONFIG}: the head of {model_class:.80} cannot be imported; expected a class for sequence or token "
            "classification or question answering. To import the adapter without the head: --headless (headless=True)."
        )
    labels = _labels(flags)
    flags.no_effect("num_labels")
    found = read_head(weights, modules, task, lambda path: path)
    assert found is not None
    if found.kind in ("score", "span"):
        labels = ()
    return HubHead(found.kind, found.head, found.tensors, _fitting(labels, found.head.outputs))


def _flexible(flags: Flags, weights: Weights, modules: Modules, name: str) -> HubHead:
    """Return a flexible head: layers with dropout before each, and an activation behind each but the last."""
    kind = flags.take("head_type")
    if kind == "masked_lm":
        return _words(flags, weights, modules, name)
    if kind not in KINDS:
        raise ExchangeError(
            f"{flags.where}: a head of the type {kind!r:.60} cannot be imported; expected {', '.join(KINDS)} or "
            "masked_lm. To import the adapter without the head: --headless (headless=True)."
        )
    flags.no_effect("dropout_prob")
    outputs, layers = flags.whole("num_labels", least=1, most=100_000), flags.whole("layers", least=1, most=100)
    bias, use_pooler = flags.yes("bias", True), flags.yes("use_pooler")
    activation = flags.take("activation_function", None)
    labels, task = _labels(flags), KINDS[kind]
    if layers > 2:
        raise ExchangeError(f"{flags.where}: a head of {layers} layers cannot be imported; expected 1 or 2.")
    last = {1: 1, 2: 4 if activation else 3}[layers]
    d = modules.encoder.shape.width
    tensors = {"output.weight": weights.take(f"{name}{last}.weight", (outputs, d))}
    tensors["output.bias"] = weights.take(f"{name}{last}.bias", (outputs,)) if bias else torch.zeros(outputs)
    if task == "label" and outputs == 1:
        task = "score"
    pooling = "none" if task in OF_TOKENS else "pooler" if use_pooler else "cls"
    hidden = None
    if layers == 2:
        hidden = Hidden(activation_of(activation or "linear", flags.where))
        first = {
            kind: weights.take(f"{name}1.{kind}", (d, d)[: 2 if kind == "weight" else 1]) for kind in ("weight", "bias")
        }
        if pooling == "cls" and hidden.activation == "tanh":  # this is a pooler of the task's own
            pooling, hidden = "trained-pooler", None
        where = "hidden" if hidden else "pooler"
        tensors |= {f"{where}.{kind}": tensor for kind, tensor in first.items()}
    if task in ("score", "span"):
        labels = ()
    return HubHead(task, Head(outputs, pooling, hidden), tensors, _fitting(labels, outputs))  # type: ignore[arg-type]


def _words(flags: Flags, weights: Weights, modules: Modules, name: str) -> HubHead:
    """Return a head for masked words, whose last layer is the base's word embeddings."""
    flags.no_effect("dropout_prob", "label2id", "shift_labels")
    encoder = modules.encoder
    words, e = encoder.shape.words.shape
    layers, activation = flags.whole("layers", least=1, most=100), flags.take("activation_function", None)
    flags.expect("vocab_size", words, because="it is the size of the base's vocabulary")
    flags.expect("embedding_size", e, because="it is the width of the base's word embeddings")
    base = word_activation(encoder)
    fits = layers == 2 and flags.yes("layer_norm") and flags.yes("bias") and bool(activation)
    if not fits or activation_of(activation, flags.where) != activation_of(base, "the base"):
        raise ExchangeError(
            f"{flags.where}: this head for masked words cannot be imported: expected 2 layers, layer_norm, bias and "
            f"the base's activation {base}. To import the adapter without the head: --headless (headless=True)."
        )
    d = encoder.shape.width
    tensors = {
        "dense.weight": weights.take(f"{name}0.weight", (e, d)),
        "dense.bias": weights.take(f"{name}0.bias", (e,)),
    }
    tensors |= {f"norm.{kind}": weights.take(f"{name}2.{kind}", (e,)) for kind in ("weight", "bias")}
    tied = weights.take(f"{name}3.weight", (words, e))
    if not torch.equal(tied, encoder.weights[encoder.shape.words.name].detach().float().cpu()):
        raise ExchangeError(f"{weights.where}: {name}3.weight is not the base's word embeddings, to which it is tied.")
    tensors["output.bias"] = weights.take(f"{name}3.bias", (words,))
    return HubHead("words", WordHead(), tensors, inverts=True)


def _labels(flags: Flags) -> tuple[str, ...]:
    """Take the labels in the order of the outputs; () if the file has none."""
    found: Any = flags.take("label2id", None)
    if not found:
        return ()
    if not isinstance(found, dict) or len(found) > 100_000:
        raise ExchangeError(f"{flags.where}: label2id is {found!r:.80}; expected an object of numbers.")
    try:
        numbers = {int(number): str(label) for label, number in found.items()}
    except (TypeError, ValueError):
        raise ExchangeError(f"{flags.where}: label2id is {found!r:.80}; expected an object of numbers.") from None
    if sorted(numbers) != list(range(len(found))):
        raise ExchangeError(f"{flags.where}: the numbers of label2id are not 0 to {len(found) - 1}, each once.")
    return tuple(numbers[i] for i in range(len(numbers)))


def _fitting(labels: tuple[str, ...], outputs: int) -> tuple[str, ...]:
    """Return the labels if the file has one for each output; the classes of `transformers` always write two."""
    return labels if len(labels) == outputs else ()
