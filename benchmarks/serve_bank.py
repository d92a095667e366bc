"""Banks of many random tasks over MiniLM, for the benchmark of services. Made once, and kept in .cache."""

from __future__ import annotations

import torch

from intarsia import Bottleneck
from intarsia.bank.bank import Bank
from intarsia.bank.inlay import Inlay
from intarsia.encoder.slots import start
from intarsia.methods import to_dict
from intarsia.provenance import versions
from intarsia.tasks.heads import Head

SPREAD = 0.05  # of the noise on the initial weights, so that tasks answer differently
LABELS = ("no", "yes")


def name_of(number: int) -> str:
    return f"task-{number:05d}"


def random_inlay(bank: Bank, number: int, size: int, name: str | None = None) -> Inlay:
    """A task with Houlsby adapters of this size, as if it had been learned."""
    encoder, method, head = bank.encoder, Bottleneck(size), Head(len(LABELS))
    specs = {f"method.{k}": v for k, v in method.tensors(encoder.shape).items()}
    specs |= {f"head.{k}": v for k, v in head.tensors(encoder.shape).items()}
    draw = torch.Generator().manual_seed(number)
    tensors = {k: v + SPREAD * torch.randn(v.shape, generator=draw) for k, v in start(specs, encoder, number).items()}
    count = sum(tensor.numel() for tensor in tensors.values())
    of_head = head.count(encoder.shape)
    description = encoder.description
    return Inlay(
        name=name or name_of(number),
        kind="label",
        labels=LABELS,
        method=to_dict(method),
        head={"pooling": "mean"},
        encoder={key: str(description[key]) for key in ("name", "fingerprint", "tokenizer")},
        parameters={
            "method": count - of_head, "head": of_head, "total": count, "base": encoder.shape.parameters
        },
        metrics={},
        training={"max_length": 128, "seed": number},
        data={"pairs": False},
        versions=versions(),
        parents=(),
        created="2026-01-01T00:00:00+00:00",
        tensors=tensors,
    )  # fmt: skip


def fill(bank: Bank, tasks: int, size: int) -> None:
    """Add tasks until there are `tasks`."""
    present = {entry.name for entry in bank.tasks()}
    for number in range(tasks):
        if name_of(number) not in present:
            bank.store.add(random_inlay(bank, number, size), encoder=bank.encoder)
