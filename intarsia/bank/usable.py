"""What an inlay must be to be used, beyond its format: consistent with itself, and all of its weights finite.

Checks that need the base are in `Learned.check`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from intarsia.bank.container import Block, TensorSpec
from intarsia.bank.description import Description
from intarsia.errors import IntarsiaError

NOT_FINITE = "the weights {!r} contain NaN or infinity"
METHOD, INDEX = "method.", ".index"  # the entries of a sparse difference; all other tensors are weights
FLOAT_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


def usable_fault(inlay: Description, layout: Mapping[str, TensorSpec]) -> str | None:
    """Return why an inlay that fits the schema cannot be used, or None."""
    for name, spec in layout.items():
        expected = "I64" if name.startswith(METHOD) and name.endswith(INDEX) else "F32"
        if spec.dtype != expected:
            return f"the tensor {name[:100]!r} has the type {spec.dtype}; expected {expected}"
    return _labels_fault(inlay) or _head_fault(inlay, layout) or _count_fault(inlay, layout) or _method_fault(inlay)


def all_finite(dtype: str, block: Block) -> bool:
    """Return whether a block of a tensor's values has neither NaN nor infinity."""
    import numpy as np

    if dtype == "BF16":  # the upper half of a float32
        return bool(((np.frombuffer(block, "<u2") & 0x7F80) != 0x7F80).all())
    kind = FLOAT_TYPES.get(dtype)
    return kind is None or bool(np.isfinite(np.frombuffer(block, kind)).all())


def _labels_fault(inlay: Description) -> str | None:
    labels = inlay.labels
    if len(set(labels)) < len(labels):
        return "a label occurs twice"
    named = inlay.kind in ("label", "labels", "tags")
    if named and not labels:
        return f"the kind {inlay.kind} needs labels, but it has none"
    thresholds = inlay.head.get("thresholds") or []
    if thresholds and len(thresholds) != len(labels):
        return f"it has {len(thresholds)} thresholds for {len(labels)} labels"
    return f"the kind {inlay.kind} has no labels, but it has {len(labels)}" if labels and not named else None


def _head_fault(inlay: Description, layout: Mapping[str, TensorSpec]) -> str | None:
    """The outputs of the head must be those of the kind. (A head for words has the base's vocabulary.)"""
    if inlay.kind == "none":
        return _headless_fault(inlay, layout)
    reads_tokens = inlay.kind in ("tags", "span", "words")
    if reads_tokens != (inlay.head["pooling"] == "none"):
        return f"the pooling {inlay.head['pooling']} does not fit the kind {inlay.kind}"
    if inlay.kind == "words":
        return None
    outputs: Any = {"score": 1, "span": 2}.get(inlay.kind, len(inlay.labels))
    stated = inlay.head.get("outputs")
    if stated is not None and stated != outputs:
        return f"its head states {stated!r} outputs; its kind and labels need {outputs}"
    for name, dimensions in (("head.output.weight", 2), ("head.output.bias", 1)):
        shape = layout[name].shape if name in layout else ()
        if len(shape) != dimensions or shape[0] != outputs:
            return f"the tensor {name!r} has the shape {shape}; its kind and labels need {outputs} outputs"
    return None


def _headless_fault(inlay: Description, layout: Mapping[str, TensorSpec]) -> str | None:
    if inlay.head["pooling"] == "none":
        return "the pooling none does not fit an inlay without a head"
    surplus = next((name for name in layout if name.startswith("head.")), None)
    if surplus is not None or inlay.head.get("outputs"):
        return f"the kind none has no head, but it has {repr(surplus) if surplus else 'outputs'}"
    return None


def _count_fault(inlay: Description, layout: Mapping[str, TensorSpec]) -> str | None:
    counts = inlay.parameters
    if counts["total"] != counts["method"] + counts["head"]:
        return (
            f"it states {counts['total']} trained parameters; method and head make {counts['method'] + counts['head']}"
        )
    head = sum(math.prod(spec.shape) for name, spec in layout.items() if name.startswith("head."))
    if head != counts["head"]:
        return f"it states {counts['head']} parameters of the head, but holds {head}"
    return None


def _method_fault(inlay: Description) -> str | None:
    """A method that this version does not know is no fault of the file: using the task raises."""
    from intarsia.methods import COMPOSITIONS, METHODS, from_dict, names, parents

    if inlay.method["type"] not in {**METHODS, **COMPOSITIONS}:
        return None
    try:
        method = from_dict(inlay.method)
    except IntarsiaError as error:
        return str(error).removesuffix(".")
    if unknown := names(method):
        return f"its method names the task {unknown[0][:100]!r} instead of an inlay"
    if {parent.digest for parent in parents(method)} != set(inlay.parents):
        return "its method is built on other inlays than it states"
    return None
