"""Intarsia: many tasks as small inlays over one frozen base.

    import intarsia
    from intarsia import Bottleneck

    bank = intarsia.open("bank")
    bank.learn("spam", "spam.csv", method=Bottleneck(64))
    bank.predict("spam", ["You have won!"])

Names load when first used: importing this package imports neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.version import __version__ as __version__

if TYPE_CHECKING:
    from intarsia.bank.bank import Bank, Evaluation
    from intarsia.encoder.encoder import Encoder
    from intarsia.errors import IntarsiaError
    from intarsia.methods import (
        IA3,
        PAL,
        Bapna,
        BitFit,
        Bottleneck,
        DiffPruning,
        Features,
        Full,
        LayerNorms,
        LoRA,
        LotteryTicket,
        Pfeiffer,
        Prefix,
        TopLayers,
    )  # fmt: skip
    from intarsia.serve.prediction import Prediction
    from intarsia.tasks import Example, TaskData, load_data
    from intarsia.train.job import Settings

_METHODS = (
    "IA3", "PAL", "Bapna", "BitFit", "Bottleneck", "DiffPruning", "Features", "Full", "LayerNorms", "LoRA",
    "LotteryTicket", "Pfeiffer", "Prefix", "TopLayers",
)  # fmt: skip
_WHERE = {
    **dict.fromkeys(_METHODS, "intarsia.methods"),
    "Bank": "intarsia.bank.bank",
    "Encoder": "intarsia.encoder.encoder",
    "Evaluation": "intarsia.bank.bank",
    "Example": "intarsia.tasks",
    "IntarsiaError": "intarsia.errors",
    "Prediction": "intarsia.serve.prediction",
    "Settings": "intarsia.train.job",
    "TaskData": "intarsia.tasks",
    "load_data": "intarsia.tasks",
}

__all__ = [
    "IA3",
    "PAL",
    "Bank",
    "Bapna",
    "BitFit",
    "Bottleneck",
    "DiffPruning",
    "Encoder",
    "Evaluation",
    "Example",
    "Features",
    "Full",
    "IntarsiaError",
    "LayerNorms",
    "LoRA",
    "LotteryTicket",
    "Pfeiffer",
    "Prediction",
    "Prefix",
    "Settings",
    "TaskData",
    "TopLayers",
    "load_data",
    "open",
]


def open(
    folder: str | Path = "bank",
    encoder: str | Path | Encoder | None = None,
    *,
    device: str = "cpu",
    precision: str | None = None,
) -> Bank:
    """Open a bank; a new one is begun at the first `learn`.

    `encoder` is needed only to begin a bank over another base than the embedded `minilm`: a `transformers` folder, a
    hub name, or a loaded `Encoder`. A bank remembers its base and refuses any other.
    """
    from intarsia.bank.bank import Bank

    return Bank(folder, encoder, device=device, precision=precision)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'intarsia' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
