"""Checks of options, made while the command line is read: before PyTorch is loaded and before any data is."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

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
