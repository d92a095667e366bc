"""The trial of int8: correctness and speed of the products of one base, in a process of its own.

int8_probe.py runs this module with a JSON request on standard input. A processor or a hypervisor that announces
instructions and does not execute them ends this process, not the caller's. Each stage prints one JSON line, so that
the caller knows which stage failed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from intarsia.encoder.frozen import FrozenLinear, Projections
from intarsia.encoder.int8 import LEVELS, Int8Linears

FEW, FULL = 16, 1024  # tokens: one short text, and a pass of many
_HOPELESS = 4.0  # times as slow as float32 on few tokens: the full pass is not tried

Group = tuple[int, tuple[int, ...], int]  # input width, output widths of the layers that read it, number in the base


def main() -> None:
    request = json.load(sys.stdin)
    torch.set_num_threads(request["threads"])
    torch.manual_seed(0)
    groups = [(width, tuple(outs), count) for width, outs, count in request["groups"]]
    with torch.no_grad():
        layers = [_layers(width, outs) for width, outs, _ in groups]
        counts = [count for _, _, count in groups]
        _report("float32", {str(tokens): _seconds(layers, counts, tokens, None) for tokens in (FEW, FULL)})
        _report("problem", next(filter(None, map(_problem, layers)), None))
        shared = Int8Linears()
        few = _seconds(layers, counts, FEW, shared)
        base = _seconds(layers, counts, FEW, None)
        _report("few", {"tokens": FEW, "float32": base, "int8": few})
        if few < _HOPELESS * base:
            pairs = [(_seconds(layers, counts, FULL, None), _seconds(layers, counts, FULL, shared)) for _ in range(3)]
            best = [min(times) for times in zip(*pairs, strict=True)]  # alternating, because the machine is shared
            _report("full", {"tokens": FULL, "float32": best[0], "int8": best[1]})


def _report(stage: str, found: object) -> None:
    print(json.dumps({stage: found}), flush=True)


def _layers(width: int, outs: Sequence[int]) -> tuple[FrozenLinear, ...]:
    layers = tuple(FrozenLinear(nn.Linear(width, out).requires_grad_(False)) for out in outs)
    for layer in layers:
        layer.weight[0] = 1.0  # an output whose products all have one sign: their sum must not overflow
        layer.weight[-1, ::2] *= -1.0
    if len(layers) == 3:
        Projections((layers[0], layers[1], layers[2]))
    return layers


def _run(layers: Sequence[FrozenLinear], x: Tensor, int8: Int8Linears | None) -> list[Tensor]:
    for layer in layers:
        layer.int8 = int8
    return [layer(x) for layer in layers]


def _problem(layers: tuple[FrozenLinear, ...]) -> str | None:
    """Return what is wrong with the int8 products of layers that read one input, or None."""
    width = layers[0].in_features
    x = torch.randn(37, width)
    x[0], x[1], x[2] = 0.0, 3.0, -3.0
    x[3, 1::2] *= -1.0
    x[4, 0] = 100.0
    shared = Int8Linears()
    exact, found = _run(layers, x, None), _run(layers, x, shared)
    x_step = x.abs().amax(1, keepdim=True) / LEVELS
    for layer, right, product in zip(layers, exact, found, strict=True):
        w_step = layer.weight.abs().amax(1) / LEVELS
        # Rounding changes an input by at most half its step, and a weight by half its own.
        bound = x_step / 2 * layer.weight.abs().sum(1) + w_step / 2 * x.abs().sum(1, keepdim=True)
        bound = 1.01 * (bound + width * x_step * w_step / 4) + 1e-4
        excess = ((product - right).abs() / bound).max().item()
        if not excess <= 1.0:  # also if NaN
            shape = f"{layer.in_features} × {layer.out_features}"
            return f"a product with a weight of {shape} differs by {excess:.2g} times the bound of its rounding"
    for first, last in ((0, 1), (4, 5), (7, 9), (5, 21), (36, 37)):
        alone = _run(layers, x[first:last].clone(), shared)
        if not all(torch.equal(one, all_[first:last]) for one, all_ in zip(alone, found, strict=True)):
            return "the product of a token depends on the other tokens of its pass"
    return None


def _seconds(
    layers: Sequence[tuple[FrozenLinear, ...]], counts: Sequence[int], tokens: int, int8: Int8Linears | None
) -> float:
    """Return the time of all linear layers of the base for a number of tokens."""
    total = 0.0
    for group, count in zip(layers, counts, strict=True):
        x = torch.randn(tokens, group[0].in_features)
        total += count * _best(lambda group=group, x=x: _run(group, x, int8), 30 if tokens <= FEW else 3)  # type: ignore[misc]
    return total


def _best(call: Callable[[], object], tries: int) -> float:
    call()
    times = []
    for _ in range(tries):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    main()
