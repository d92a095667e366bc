"""Writing a head of Intarsia as that of a task class of `transformers`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from intarsia.errors import ExchangeError
from intarsia.exchange.activations import activation_of
from intarsia.exchange.adapter import Adapter
from intarsia.exchange.heads import CLASSES, HIDDEN, KINDS, LIKE_ROBERTA, OF_THE_BASE
from intarsia.exchange.modules import Modules
from intarsia.tasks.heads import pooler_instead

TASKS = {"labels": "SEQ_CLS", "score": "SEQ_CLS", **{kind: task for task, kind in KINDS.items()}}


@dataclass(frozen=True)
class ClassHead:
    """The head of a task class: tensors by their names in it, and the modules that they belong to."""

    task: str  # SEQ_CLS, TOKEN_CLS or QUESTION_ANS
    tensors: Mapping[str, Tensor]
    modules: tuple[str, ...]

    @property
    def auto_class(self) -> str:
        """The class of `transformers` that has the head."""
        return f"AutoModel{next(ending for ending, task in CLASSES.items() if task == self.task)}"


def class_head(adapter: Adapter, modules: Modules) -> ClassHead:
    """Return the head of an adapter as that of the family's task class; raise with the reason if no class has it."""
    assert adapter.head is not None
    shape, config = modules.encoder.shape, modules.encoder.model.config
    family, head = shape.family, adapter.head
    if adapter.kind not in TASKS:
        raise ExchangeError(f"no task class of transformers answers the kind {adapter.kind!r}.")
    task, own_tensors = TASKS[adapter.kind], dict(adapter.head_tensors)
    pooling = {"TOKEN_CLS": "none", "QUESTION_ANS": "none"}.get(task)
    output, layers = "classifier", {}
    if family == "modernbert" or (task == "SEQ_CLS" and family in HIDDEN):
        own = HIDDEN[family]
        option = own.activation.removeprefix("config.")
        activation = activation_of(getattr(config, option) if option != own.activation else option, option)
        pooling = pooling or (config.classifier_pooling if family == "modernbert" else "cls")
        hidden = head.hidden
        if hidden is None and head.pooling == "trained-pooler" and activation == "tanh" and not own.norm:
            layers = {own.dense: "pooler"}  # the same function
            pooling = "trained-pooler"
        elif hidden is None or (hidden.activation, hidden.norm) != (activation, own.norm is not None):
            raise _no_class(adapter, family, f"a hidden layer with {activation}{' and a norm' * bool(own.norm)}")
        else:
            layers = {own.dense: "hidden", **({own.norm: "norm"} if own.norm else {})}
        output = own.output
    elif head.hidden is not None:
        raise _no_class(adapter, family, "no hidden layer")
    elif task == "QUESTION_ANS":
        output = "qa_outputs"
    elif task == "SEQ_CLS" and family in LIKE_ROBERTA:
        layers, output = {"classifier.dense": "pooler"}, "classifier.out_proj"
        pooling = "pooler" if head.pooling == "pooler" else "trained-pooler"  # the base's pooler is the same function
        if pooling == "pooler":
            own_tensors |= dict(_pooler(adapter, modules))
    elif task == "SEQ_CLS" and family in OF_THE_BASE:
        pooling = "trained-pooler" if head.pooling == "trained-pooler" else "pooler"
        if pooling == "trained-pooler":
            layers = {f"{modules.prefix}.{modules.encoder.family.pooler}": "pooler"}
    if head.pooling != pooling:
        raise _no_class(adapter, family, f"the pooling {pooling}")
    layers[output] = "output"
    tensors = {
        f"{path}.{kind}": own_tensors[f"{own}.{kind}"] for path, own in layers.items()
        for kind in ("weight", "bias")
    }  # fmt: skip
    return ClassHead(task, _without_biases(tensors, family, config), tuple(layers))


def _pooler(adapter: Adapter, modules: Modules) -> Iterator[tuple[str, Tensor]]:
    """Yield the weight and bias of the base's pooler, as the method changes them."""
    method, shape, base = adapter.method, modules.encoder.shape, modules.encoder.weights
    changed: Mapping[str, Tensor] = {}
    if method.changes_base:
        changed = method.weights(method.phases(shape)[-1].name, shape, adapter.tensors, adapter.tensors, base)
    instead = pooler_instead(modules.encoder, adapter.tensors, changed)
    for kind in ("weight", "bias"):
        yield f"pooler.{kind}", instead.get(kind, base[f"{modules.pooler}.{kind}"]).detach().float().cpu()


def _without_biases(tensors: dict[str, Tensor], family: str, config: object) -> dict[str, Tensor]:
    """Leave out biases that the class does not have: they must be 0."""
    if family != "modernbert":
        return tensors
    for option, name in (("classifier_bias", "head.dense.bias"), ("norm_bias", "head.norm.bias")):
        if not getattr(config, option) and bool(torch.count_nonzero(tensors.pop(name))):
            raise ExchangeError(
                f"the head's {name.removeprefix('head.')} was trained, but the class of transformers for this base has "
                f"no such bias ({option} is false)."
            )
    return tensors


def _no_class(adapter: Adapter, family: str, expected: str) -> ExchangeError:
    assert adapter.head is not None
    hidden = adapter.head.hidden
    layer = f" and a hidden layer with {hidden.activation}{' and a norm' * hidden.norm}" if hidden else ""
    return ExchangeError(
        f"no class of transformers has this head: the task {adapter.name!r} reads the pooling {adapter.head.pooling}"
        f"{layer}; the class for {family} has {expected}. Learn the task with such a head, or export it with "
        "--format inlay."
    )
