"""The values that each setting may have. Checking needs no PyTorch, so a command line refuses wrong ones at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from intarsia.errors import IntarsiaError, check_seed, did_you_mean
from intarsia.tasks.lengths import FEWEST

BALANCED = "balanced"
WHOLE, NUMBER, SWITCH = "a whole number", "a number", "True or False"
TYPES = {
    **dict.fromkeys(("learning_rate", "warmup", "threshold"), NUMBER),
    **dict.fromkeys(("epochs", "batch_size", "max_length", "seed", "patience"), WHOLE),
    **dict.fromkeys(("dropout", "trunk_dropout", "calibrate"), SWITCH),
}
OPTIONAL = ("patience", "threshold", "class_weights")  # settings that may be None


def checked_value(setting: str, value: Any, name: str | None = None) -> Any:
    """Return a setting's value as a plain Python value; raise if it is wrong. `name`: what the message calls it."""
    name = name or setting
    if value is None and setting in OPTIONAL:
        return None
    if setting == "class_weights":
        return _class_weights(value, name)
    plain = _typed(setting, value, name)
    if setting in _RANGES:
        _RANGES[setting](plain, name)
    return plain


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _typed(setting: str, value: Any, name: str) -> Any:
    plain = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value  # NumPy's numbers
    kind = TYPES[setting]
    right = {
        WHOLE: isinstance(plain, int) and not isinstance(plain, bool),
        NUMBER: is_number(plain),
        SWITCH: isinstance(plain, bool),
    }
    if not right[kind]:
        expected = f"{kind} or None" if setting in OPTIONAL else kind
        raise IntarsiaError(f"{name} must be {expected}, not {value!r} ({type(value).__name__}).")
    if not math.isfinite(plain):
        raise IntarsiaError(f"{name} must be finite, not {plain}.")
    return plain


def _positive(value: float, name: str) -> None:
    if value <= 0:
        raise IntarsiaError(f"{name} must be greater than 0, not {value}.")


def _length(value: int, name: str) -> None:
    _positive(value, name)
    if value < FEWEST:
        raise IntarsiaError(
            f"{name} {value} leaves no word, because each text has two special tokens; expected at least {FEWEST}."
        )


def _warmup(value: float, name: str) -> None:
    if not 0 <= value < 1:
        raise IntarsiaError(f"{name} is a share of the steps and must be at least 0 and below 1, not {value}.")


def _patience(value: int, name: str) -> None:
    if value < 1:
        raise IntarsiaError(f"{name} must be at least 1 epoch, not {value}.")


def _threshold(value: float, name: str) -> None:
    if not 0 < value < 1:
        raise IntarsiaError(f"{name} is a probability and must be between 0 and 1, not {value}.")


_RANGES: dict[str, Callable[[Any, str], None]] = {
    **dict.fromkeys(("learning_rate", "epochs", "batch_size"), _positive),
    "max_length": _length,
    "warmup": _warmup,
    "patience": _patience,
    "threshold": _threshold,
    "seed": check_seed,
}


def _class_weights(value: Any, name: str) -> Any:
    """The word `balanced`, or a mapping from labels to weights above 0. The data tells whether the labels exist."""
    if isinstance(value, str):
        if value != BALANCED:
            raise IntarsiaError(
                f"{name} {value!r} is not known.{did_you_mean(value, [BALANCED])} Expected {BALANCED!r} or a weight "
                "for each label."
            )
        return value
    if hasattr(value, "to_dict"):  # a Series of pandas
        value = value.to_dict()
    if not isinstance(value, Mapping):
        raise IntarsiaError(
            f"{name}: expected {BALANCED!r} or a mapping from labels to weights, found a {type(value).__name__}."
        )
    weights = {label: w.item() if hasattr(w, "item") else w for label, w in value.items()}
    for label, weight in weights.items():
        if not is_number(weight) or not 0 < weight < math.inf:
            raise IntarsiaError(f"{name}: the weight of {label!r} is {weight!r}; expected a number of more than 0.")
    return weights
