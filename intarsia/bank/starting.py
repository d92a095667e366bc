"""Continuing from the weights of an inlay: its method and its tensors become the start of a training run."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from intarsia.bank.description import Description
from intarsia.bank.family import learned_on, task_and_version
from intarsia.bank.store import Store
from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaError
from intarsia.methods import Method, from_dict, running_key, short_name, to_dict
from intarsia.tasks.examples import TaskData
from intarsia.tasks.heads import Hidden, Pooling
from intarsia.tasks.kind_registry import kind_for
from intarsia.tasks.learned import HEAD, METHOD
from intarsia.train.job import Start


@dataclass(frozen=True)
class Begun:
    """What an inlay gives to the job that continues from it."""

    method: Method
    pooling: Pooling
    hidden: Hidden | None
    start: Start


def begin(
    store: Store, encoder: Encoder, name: str, data: TaskData, method: Method | None, pooling: Pooling | None
) -> Begun:
    """Return the start of a run on `data` from the task `name`, or from a version of it (`topic@2`)."""
    task, version = task_and_version(name)
    entry = store.entry(task, version)
    inlay = store.load(task, entry.version)
    learned = learned_on(store, inlay, encoder)
    stored = from_dict(inlay.method)
    if method is not None and running_key(method) != running_key(stored):
        raise IntarsiaError(
            f"training cannot continue from {name!r} with the method {short_name(to_dict(method))}: its tensors are "
            f"those of {short_name(inlay.method)}. Leave the method out, or give that one."
        )
    read = inlay.head.get("pooling", "mean")
    kept_form = pooling is None or pooling == read
    hidden = Hidden.of(inlay.head) if kept_form else None
    used: Pooling = pooling or ("mean" if read == "none" else read)
    tensors = {METHOD + key: tensor for key, tensor in learned.method_tensors.items()}
    if kept_form and _same_question(inlay, data):
        tensors |= {HEAD + key: tensor for key, tensor in _head(learned.head_tensors, inlay, data).items()}
    start = Start(task, entry.version, entry.header.digest, tensors)
    return Begun(method or stored, used, hidden, start)


def _same_question(inlay: Description, data: TaskData) -> bool:
    """Whether a head for the inlay's answers is one for the data's."""
    return inlay.kind == data.kind and tuple(inlay.labels) == tuple(data.labels)


def _head(tensors: dict[str, Tensor], inlay: Description, data: TaskData) -> dict[str, Tensor]:
    """Return the head's tensors. Scores are in standard units, which the new data may define otherwise."""
    if data.kind != "score":
        return tensors
    mean, spread = float(inlay.head.get("mean", 0.0)), float(inlay.head.get("spread", 1.0))
    new = kind_for(data)
    weight, bias = tensors["output.weight"], tensors["output.bias"]
    return {
        **tensors,
        "output.weight": weight * (spread / new.spread),
        "output.bias": (bias * spread + mean - new.mean) / new.spread,
    }
