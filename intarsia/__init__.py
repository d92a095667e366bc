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

from intarsia import threads
from intarsia.version import __version__ as __version__

if TYPE_CHECKING:
    from intarsia.bank.bank import Bank as Bank
    from intarsia.bank.bank import Evaluation as Evaluation
    from intarsia.client import Client as Client
    from intarsia.encoder.encoder import Encoder as Encoder
    from intarsia.errors import IntarsiaError as IntarsiaError
    from intarsia.errors import IntarsiaWarning as IntarsiaWarning
    from intarsia.methods.compositions import *  # noqa: F403
    from intarsia.methods.registry import *  # noqa: F403
    from intarsia.serve.limits import Limits as Limits
    from intarsia.serve.parallel import Parallel as Parallel
    from intarsia.serve.prediction import Prediction as Prediction
    from intarsia.tasks import Example as Example
    from intarsia.tasks import TaskData as TaskData
    from intarsia.tasks import load_data as load_data
    from intarsia.train.job import Settings as Settings

threads.prepare()  # before PyTorch is loaded

_MODULES = {
    "Bank": "intarsia.bank.bank",
    "Client": "intarsia.client",
    "Encoder": "intarsia.encoder.encoder",
    "Evaluation": "intarsia.bank.bank",
    "Example": "intarsia.tasks",
    "IntarsiaError": "intarsia.errors",
    "IntarsiaWarning": "intarsia.errors",
    "Limits": "intarsia.serve.limits",
    "Parallel": "intarsia.serve.parallel",
    "Prediction": "intarsia.serve.prediction",
    "Settings": "intarsia.train.job",
    "TaskData": "intarsia.tasks",
    "load_data": "intarsia.tasks",
}  # and every method, by its class


def open(
    folder: str | Path = "bank",
    encoder: str | Path | Encoder | None = None,
    *,
    device: str = "cpu",
    precision: str | None = None,
    limits: Limits | None = None,
) -> Bank:
    """Open a bank. The first `learn` creates the folder of a new bank.

    `encoder` is a `transformers` folder, a hub name or a loaded `Encoder`. Only a new bank over a base other than the
    embedded `minilm` needs it: an existing bank stores the name of its base and refuses any other base. `limits` bound
    what the engine that answers requests may hold.
    """
    from intarsia.bank.bank import Bank

    return Bank(folder, encoder, device=device, precision=precision, limits=limits)


def __getattr__(name: str) -> Any:
    if name == "__all__":  # without `open`, which would replace the builtin in `from intarsia import *`
        return sorted([*_MODULES, *_methods()])
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    if name == "sklearn":
        return importlib.import_module("intarsia.sklearn")
    if name[:1].isupper() and name in (methods := _methods()):  # a module's name is not: that one is to be imported
        return methods[name]
    raise AttributeError(f"module 'intarsia' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, without those that this module imports for itself."""
    return sorted([*_MODULES, *_methods(), "__version__", "open", "sklearn"])


def _methods() -> dict[str, Any]:
    """The methods' classes by name; importing them takes longer than the rest of this package."""
    from intarsia.methods import COMPOSITIONS, METHODS

    return {kind.__name__: kind for kind in (*METHODS.values(), *COMPOSITIONS.values())}
