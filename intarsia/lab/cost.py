"""The cost of a training step relative to full fine-tuning: estimated in closed form, or timed."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from intarsia.encoder.sites import ATTENTION_OUTPUT, FFN_OUTPUT, LAYER_OUTPUT, OUTSIDE, PREFIX
from intarsia.methods import Full, Method

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder
    from intarsia.encoder.shape import Shape, WeightShape
    from intarsia.train.run import Run

ASSUMED = (
    "estimated multiply-adds of matrix products; full fine-tuning = 1. Each matrix of the base's layers counts once "
    "for the forward pass, once for the backward pass if a trained tensor lies below it, and once more if it is "
    "trained itself; a method's own matrices count three times. Attention scores, norms, embeddings, heads and the "
    "optimizer are not counted. Use --measure to time real steps"
)
ROWS, TOKENS, STEPS = 32, 25, 5  # the size of a timed step (rows, tokens per row), and the number of timed steps

# Positions in a layer: 0 for query, key and value; 1 for the attention's output projection; 2 and 3 for the matrices of
# the feed-forward network; 4 for the next layer. `_READS`: the position of each matrix. `_CHANGES`: the first position
# that reads the output of a changed site.
_READS = {"query": 0, "key": 0, "value": 0, "attention.dense": 1, "ffn.up": 2, "ffn.down": 3}
_CHANGES = {PREFIX: 1, ATTENTION_OUTPUT: 2, "attention.norm": 2, FFN_OUTPUT: 4, "ffn.norm": 4, LAYER_OUTPUT: 4}
_CHANGES |= {site: reads + 1 for site, reads in _READS.items()} | {f"{site}.input": n for site, n in _READS.items()}
_CHANGES_BEFORE_NORM = {"attention.norm": 0, "ffn.norm": 2}  # for bases that normalise the input of each sub-layer


@dataclass(frozen=True)
class StepTime:
    """The time of a training step."""

    seconds: float
    relative: float  # relative to the step of full fine-tuning that was timed next to it


def estimate(method: Method, shape: Shape) -> float:
    """Return the multiply-adds of a step, relative to full fine-tuning; `ASSUMED` says what is counted.

    A method that trains on stored states costs 0: after one forward pass over the data, only the head is trained.
    """
    if method.cached:
        return 0.0
    forward = sum(n.inputs * n.outputs for n in shape.linears)
    weights = _trained_weights(method, shape)
    lowest = min(_first_readers(method, shape, weights), default=math.inf)
    back = sum(n.inputs * n.outputs for n in shape.linears if 4 * n.layer + _READS[n.site] >= lowest)
    layers = {layer for w in weights if len(w.shape) > 1 for layer in w.layers}
    trained = sum(n.inputs * n.outputs for n in shape.linears if n.layer in layers)
    return (forward + back + trained + 3 * method.matrices(shape)) / (3 * forward)


def steps(method: Method, shape: Shape) -> float:
    """Return the number of steps of a method, relative to the requested steps; methods with phases take more."""
    return sum(phase.epochs for phase in method.phases(shape))


def _trained_weights(method: Method, shape: Shape) -> list[WeightShape]:
    """Return the base's parameters that need a gradient. Sparse methods compute the full gradient, then select."""
    return list(method.trained(shape)) if method.changes_base else []


def _first_readers(method: Method, shape: Shape, weights: Iterable[WeightShape]) -> Iterator[int]:
    """Yield, for each trained place, the first position over all layers that reads its output."""
    behind = 4 * shape.layers
    changes = _CHANGES | (_CHANGES_BEFORE_NORM if shape.pre_norm else {})
    for site, layer in method.places(shape):
        if layer != OUTSIDE:
            yield 4 * layer + changes[site]
        else:
            yield behind if site == "final.norm" else 0
    for weight in weights:  # no trained tensor of a layer lies below its first matrices
        yield behind if weight.behind else 4 * min(weight.layers) + 1 if weight.layers else 0


def measure(
    encoder: Encoder, methods: Mapping[str, Method], watch: Callable[[str], None] | None = None
) -> dict[str, StepTime]:
    """Return the median time of real steps on one synthetic batch, alternating with steps of full fine-tuning.

    For a method with several phases, this is the mean over their steps. At most two runs are in memory at once.
    """
    reference = _run(encoder, Full())
    timed: dict[str, StepTime] = {}
    for name, method in methods.items():
        if watch is not None:
            watch(name)
        run = _run(encoder, method)
        phases: list[tuple[float, StepTime]] = []
        while True:
            phases.append((run.phase.epochs, _alternating(run, reference)))
            if run.last_phase:
                break
            run.next_phase()
        total = sum(epochs for epochs, _ in phases)
        seconds, relative = (sum(e * getattr(t, k) for e, t in phases) / total for k in ("seconds", "relative"))
        timed[name] = StepTime(seconds, relative)
    return timed


def _alternating(run: Run, reference: Run) -> StepTime:
    """Return the median times of alternating steps of both runs; the first pair is a warm-up."""
    pairs = [(_seconds(run), _seconds(reference)) for _ in range(STEPS + 1)][1:]
    own = [mine for mine, _ in pairs]
    return StepTime(statistics.median(own), statistics.median(mine / full for mine, full in pairs))


def _seconds(run: Run) -> float:
    """Take one step and return its time."""
    import torch

    from intarsia.train.step import step_together

    began = time.perf_counter()
    step_together([(run, range(ROWS))])
    if run.encoder.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _run(encoder: Encoder, method: Method) -> Run:
    """Return a run of a method on synthetic data."""
    from intarsia.tasks.examples import Example, TaskData
    from intarsia.train.job import Job, Settings
    from intarsia.train.run import Run

    draw = random.Random(0)
    words = _words(encoder.tokenizer)
    texts = [" ".join(draw.choices(words, k=TOKENS)) for _ in range(ROWS)]
    rows = [Example(text, None, "yes" if i % 2 else "no") for i, text in enumerate(texts)]
    data = TaskData("label", ("no", "yes"), rows, rows[:1], rows[:1], {"source": "synthetic"})
    settings = Settings.for_method(method, batch_size=ROWS, max_length=TOKENS, learning_rate=1e-6)
    return Run(Job("timing", data, method, settings=settings), encoder)


def _words(tokenizer: Any) -> list[str]:
    """Return words of which most are a single token."""
    words = sorted(word for word in tokenizer.get_vocab() if word.isascii() and word.isalpha() and len(word) > 2)
    return words[:: max(1, len(words) // 1000)] or ["word"]
