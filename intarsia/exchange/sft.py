"""`composable-sft`: sparse differences of the base's weights, and whole weights of a head, in `pytorch_diff.bin`.

{"diffs": {parameter: {"size", "index_steps", "values"}}, "abs": {parameter: tensor}}. The entries of a difference are
numbered column by column (the first index runs fastest), in ascending order; `index_steps` are the distances from each
number to the next. Names are those of the task class, so a parameter of BERT begins with `bert.`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from intarsia.encoder.shape import WeightShape
from intarsia.errors import ExchangeError
from intarsia.exchange.accounting import Flags, Weights
from intarsia.exchange.adapter import Adapter
from intarsia.exchange.class_heads import class_head
from intarsia.exchange.heads import HIDDEN, OF_THE_BASE, read_head
from intarsia.exchange.modules import Modules
from intarsia.exchange.source import Source
from intarsia.methods import DiffPruning, LotteryTicket
from intarsia.methods.sparse import spans, split

FILE = "pytorch_diff.bin"
NAME = "composable-sft"


def recognises(source: Source) -> bool:
    return FILE in source.files


def read(source: Source, modules: Modules) -> Adapter:
    """Return the difference and the head of a composable-sft folder."""
    content = source.load(FILE)
    parts = Flags(FILE, content) if isinstance(content, dict) else None
    if parts is None or "diffs" not in parts:
        raise ExchangeError(f"{FILE} is no difference of {NAME}: expected the entries 'diffs' and 'abs'.")
    diffs, whole = parts.nested("diffs"), parts.take("abs", None) or {}
    if not isinstance(whole, dict) or not all(isinstance(value, Tensor) for value in whole.values()):
        raise ExchangeError(f"{FILE}: 'abs' is not a mapping from names to tensors.")
    found = {modules.strip(name): _entries(name, Flags(f"{FILE}, {name}", diffs.take(name)), modules) for name in diffs}
    parts.check_empty()
    if len(found) != len(list(diffs)):
        raise ExchangeError(f"{FILE} has two differences of one parameter.")
    weights = source.account(Weights(f"{FILE}, abs", whole))
    method, tensors = _method(found, modules)
    pooler = _pooler(weights, modules)
    head = read_head(weights, modules, _task(weights, modules), lambda name: name, pooler)
    if head is None and pooler is not None:
        raise ExchangeError(f"{FILE} has a whole pooler, but no head that reads it.")
    return Adapter(
        method=method,
        tensors=tensors,
        kind=head.kind if head else "none",
        head=head.head if head else None,
        head_tensors=head.tensors if head else {},
        library=NAME,
    )


def write(adapter: Adapter, modules: Modules, folder: Path) -> None:
    """Write a sparse difference with its head."""
    method, shape = adapter.method, modules.encoder.shape
    if not isinstance(method, LotteryTicket | DiffPruning):
        raise ExchangeError(
            f"the method {method.name} is no sparse difference, and {NAME} has nothing else. Methods that it can take: "
            f"{LotteryTicket.name}, {DiffPruning.name}. A method that can be merged can be exported as `merged`."
        )
    whole = class_head(adapter, modules).tensors if adapter.head else {}
    prefix = f"{modules.prefix}."
    weights, index, values = list(method.trained(shape)), adapter.tensors["index"], adapter.tensors["values"]
    diffs = {}
    # A class whose head does not read the base's pooler has none, so its entries have no place and no effect.
    pooler = f"{modules.pooler}."
    reads = adapter.head is not None and adapter.head.pooling == "pooler" and shape.family in OF_THE_BASE
    for weight, part, places in split(weights, index):
        if weight.name.startswith(pooler) and not reads:
            continue
        numbers, order = _by_column(places, weight.shape).sort()
        steps = torch.diff(numbers, prepend=numbers.new_zeros(1))
        diffs[prefix + weight.name] = {
            "size": torch.Size(weight.shape),
            "index_steps": steps.tolist(),
            "values": values[part][order].clone(),
        }
    torch.save({"diffs": diffs, "abs": {name: tensor.clone() for name, tensor in whole.items()}}, folder / FILE)


def _entries(name: str, flags: Flags, modules: Modules) -> tuple[Tensor, Tensor]:
    """Return the row-major numbers and the values of one parameter's entries, sorted by number."""
    own = modules.strip(name)
    base = modules.encoder.weights.get(own)
    if base is None:
        raise ExchangeError(f"{FILE} changes {name!r}, which this base does not have.")
    size, steps, values = (flags.take(key) for key in ("size", "index_steps", "values"))
    flags.check_empty()
    if not isinstance(size, list | tuple) or tuple(size) != tuple(base.shape):
        raise ExchangeError(f"{FILE}: {name!r} has the size {tuple(size)!r:.60}; this base has {tuple(base.shape)}.")
    values = Weights(FILE, {name: values}).take(name) if isinstance(values, Tensor) else torch.zeros(0, 0)
    numbers = _numbers(steps)
    total = math.prod(base.shape)
    sorted_ = numbers is not None and bool((numbers[1:] > numbers[:-1]).all())
    if numbers is None or not sorted_ or values.shape != numbers.shape or (len(numbers) and not (
        int(numbers[0]) >= 0 and int(numbers[-1]) < total
    )):  # fmt: skip
        raise ExchangeError(
            f"{FILE}: the entries of {name!r} are damaged: expected ascending numbers below {total}, and a value each."
        )
    places, order = _by_row(numbers, tuple(base.shape)).sort()
    return places, values[order]


def _numbers(steps: Any) -> Tensor | None:
    """Return the numbers of entries from their distances; None if they are no whole numbers."""
    import numpy as np

    whole = isinstance(steps, list) and all(isinstance(s, int | np.integer) and abs(int(s)) < 2**40 for s in steps)
    return torch.from_numpy(np.cumsum(np.array(steps, dtype=np.int64))) if whole else None


def _by_row(numbers: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return the row-major numbers of entries that are numbered column by column."""
    found = torch.zeros_like(numbers)
    for length, step in zip(size, _steps(size), strict=True):  # the first index runs fastest
        found += numbers % length * step
        numbers = numbers // length
    return found


def _by_column(numbers: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return the column-major numbers of entries that are numbered row by row."""
    found, step = torch.zeros_like(numbers), 1
    for length, row_step in zip(size, _steps(size), strict=True):
        found += numbers // row_step % length * step
        step *= length
    return found


def _steps(size: tuple[int, ...]) -> list[int]:
    """Return the distance between neighbours along each dimension, row by row."""
    return [math.prod(size[i + 1 :]) for i in range(len(size))]


def _method(found: Mapping[str, tuple[Tensor, Tensor]], modules: Modules) -> tuple[LotteryTicket, dict[str, Tensor]]:
    shape = modules.encoder.shape
    norms = {weight.name for weight in shape.weights if weight.norm}
    count = sum(len(values) for _, values in found.values())
    if not count:
        raise ExchangeError(f"{FILE} changes no entry of the base.")
    method = LotteryTicket(entries=count, norms=any(name in norms for name in found))
    first: dict[str, int] = {weight.name: start for weight, start in spans(_trained(method, modules))}
    ordered = sorted(found, key=first.__getitem__)
    index = torch.cat([found[name][0] + first[name] for name in ordered])
    return method, {"index": index, "values": torch.cat([found[name][1] for name in ordered])}


def _trained(method: LotteryTicket, modules: Modules) -> list[WeightShape]:
    return list(method.trained(modules.encoder.shape))


def _task(weights: Weights, modules: Modules) -> str | None:
    """Return the task type whose head the names belong to. Some are those of two classes; then it is that for texts."""
    if "qa_outputs.weight" in weights:
        return "QUESTION_ANS"
    dense = (*(f"{layer.dense}.weight" for layer in HIDDEN.values()), "classifier.dense.weight")
    if any(name in weights for name in dense):
        return "SEQ_CLS"
    if "classifier.weight" not in weights:
        return None
    return "SEQ_CLS" if modules.encoder.shape.family in OF_THE_BASE else "TOKEN_CLS"


def _pooler(weights: Weights, modules: Modules) -> dict[str, Tensor] | None:
    """Take the pooler's weight and bias, if the file has them as whole tensors."""
    if modules.pooler is None:
        return None
    names = {kind: f"{modules.prefix}.{modules.pooler}.{kind}" for kind in ("weight", "bias")}
    if not any(name in weights for name in names.values()):
        return None
    base = modules.encoder.weights
    return {kind: weights.take(name, tuple(base[f"{modules.pooler}.{kind}"].shape)) for kind, name in names.items()}
