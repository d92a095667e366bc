"""Intarsia stores many NLP tasks as small inlays over one frozen transformer.

    import intarsia
    from intarsia import Bottleneck

    bank = intarsia.open("bank")
    bank.learn("spam", "spam.csv", method=Bottleneck(64))
    bank.predict("spam", ["You have won!"])

Public names are imported on first use, so importing this package imports neither torch nor transformers.
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
_MODULES = {
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
    """Open a bank. The first `learn` creates the folder of a new bank.

    `encoder` is a `transformers` folder, a hub name or a loaded `Encoder`. Only a new bank over a base other than the
    embedded `minilm` needs it: an existing bank stores the name of its base and refuses any other base.
    """
    from intarsia.bank.bank import Bank

    return Bank(folder, encoder, device=device, precision=precision)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'intarsia' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
