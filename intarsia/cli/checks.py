"""Checks of options, made while the command line is read: before PyTorch is loaded and before any data is."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal, cast

from intarsia import files
from intarsia.errors import IntarsiaError, check_choice, did_you_mean
from intarsia.tasks.examples import KINDS

POOLINGS = ("mean", "cls", "pooler", "trained-pooler")
PRECISIONS = ("bf16", "float32", "int8")
DEVICE = re.compile(r"cpu|cuda(:\d+)?")


def one_of(option: str, choices: Collection[str]) -> Callable[[str | None], str | None]:
    """Return a callback that refuses any value but the choices."""

    def check(value: str | None) -> str | None:
        if value is not None:
            check_choice(option, value, choices)
        return value

    return check


def setting(name: str) -> Callable[[Any], Any]:
    """Return a callback that refuses a value that the setting of this name cannot have."""

    def check(value: Any) -> Any:
        if value is not None:
            from intarsia.train.setting_values import checked_value

            checked_value(name, value, f"--{name.replace('_', '-')}")
        return value

    return check


def read_length(text: str | None) -> int | Literal["auto"] | None:
    """Return the value of --max-length."""
    if text is None or text == "auto":
        return cast(Literal["auto"] | None, text)
    try:
        return int(text)
    except ValueError:
        raise IntarsiaError(f"--max-length {text!r} is neither a number of tokens nor auto.") from None


def read_class_weights(text: str | None) -> str | dict[str, float] | None:
    """Return the value of --class-weights: a word, or weights by label."""
    if text is None or "=" not in text:
        return text
    weights = {}
    for part in text.split(","):
        label, _, weight = part.rpartition("=")
        try:
            weights[label.strip()] = float(weight)
        except ValueError:
            raise IntarsiaError(f"--class-weights: {part!r} is not LABEL=WEIGHT, such as spam=5.") from None
    return weights


def max_length(value: str | None) -> str | None:
    length = read_length(value)
    if length != "auto":
        setting("max_length")(length)
    return value


def class_weights(value: str | None) -> str | None:
    setting("class_weights")(read_class_weights(value))
    return value


def at_least_one(option: str) -> Callable[[int | None], int | None]:
    """Return a callback for a number of things."""

    def check(value: int | None) -> int | None:
        if value is not None and value < 1:
            raise IntarsiaError(f"{option} must be at least 1, not {value}.")
        return value

    return check


def output_folder(value: Path | None) -> Path | None:
    """Refuse a folder that cannot be written to or made."""
    if value is not None:
        files.check_writable(value)
    return value


def output_file(path: Path | None) -> Path | None:
    """Refuse a file that cannot be written; devices and pipes are not looked at."""
    if path is None or files.writes_through(path):
        return path
    if path.is_dir():
        raise IntarsiaError(f"{path} is a folder; expected the name of a file.")
    if not path.absolute().parent.is_dir():
        raise IntarsiaError(f"The folder {path.parent} does not exist; create it first.")
    files.check_writable(path.absolute().parent)
    return path


def method(value: str | None) -> str | None:
    """Refuse what is neither a method nor a composition, with its options; `--set` may still change them."""
    if value is not None:
        from intarsia.methods import parse

        parse(value)
    return value


def device(value: str) -> str:
    if not DEVICE.fullmatch(value):
        raise IntarsiaError(f"the device {value!r} is not known; expected cpu, cuda or cuda:1.")
    return value


def trackers(values: list[str] | None) -> list[str]:
    """Refuse trackers that are not known, or whose library is not installed."""
    from intarsia.trackers import check_name

    for value in values or ():
        check_name(value)
    return values or []


def metric(value: str | None) -> str | None:
    """Refuse a name that is a metric of no kind; whether it fits the task's kind is checked with the data."""
    if value is not None:
        from intarsia.tasks.metrics import metrics_of, names_a_metric

        if not names_a_metric(value):
            names = dict.fromkeys(name for kind in KINDS for name in metrics_of(kind))
            known = "; ".join(f"{kind}: {', '.join(metrics_of(kind))}" for kind in KINDS)
            near = did_you_mean(value, names)
            raise IntarsiaError(f"the metric {value!r} is not known.{near} Metrics by kind of task: {known}.")
    return value
