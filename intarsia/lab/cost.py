"""What a training step costs beside one of full fine-tuning: estimated in closed form, or timed."""

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
    from intarsia.encoder.sites import Shape, WeightShape
    from intarsia.train.run import Run

ASSUMED = (
    "estimated, full fine-tuning = 1: multiply-adds in matrices alone. Each matrix of the base's layers counts once "
    "forward, once backward if something trained lies before it, and once more if it is trained itself; a method's own "
    "count three times. Not counted: attention scores, norms, embeddings, heads, the optimizer. --measure times steps"
)
ROWS, TOKENS, STEPS = 32, 25, 5  # of a timed step, and how many steps are timed

# Where in a layer a matrix reads, and where what a site changes is first read: 0 by query, key and value, 1 by the
# attention's output projection, 2 and 3 by the feed-forward matrices, 4 by the next layer.
_READS = {"query": 0, "key": 0, "value": 0, "attention.dense": 1, "ffn.up": 2, "ffn.down": 3}
_CHANGES = {PREFIX: 1, ATTENTION_OUTPUT: 2, "attention.norm": 2, FFN_OUTPUT: 4, "ffn.norm": 4, LAYER_OUTPUT: 4}
_CHANGES |= {site: reads + 1 for site, reads in _READS.items()} | {f"{site}.input": n for site, n in _READS.items()}
_CHANGES_BEFORE_NORM = {"attention.norm": 0, "ffn.norm": 2}  # where a sub-layer normalises what it reads


@dataclass(frozen=True)
class StepTime:
    seconds: float
    relative: float  # to a step of full fine-tuning beside it


def estimate(method: Method, shape: Shape) -> float:
    """A step's multiply-adds with matrices, relative to full fine-tuning; `ASSUMED` says what is counted.

    A method that trains on stored states has nothing left to multiply with: 0, after one pass forward over the data.
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
    """How many times the steps that were asked for a method takes: more than once if it trains in several phases."""
    return sum(phase.epochs for phase in method.phases(shape))


def _trained_weights(method: Method, shape: Shape) -> list[WeightShape]:
    """The base's own parameters that take a gradient; a sparse difference's is computed whole, then picked from."""
    return list(method.trained(shape)) if method.changes_base else []


def _first_readers(method: Method, shape: Shape, weights: Iterable[WeightShape]) -> Iterator[int]:
    """For each trained place, the number of the first place, counted through all layers, that reads its result."""
    behind = 4 * shape.layers
    changes = _CHANGES | (_CHANGES_BEFORE_NORM if shape.pre_norm else {})
    for site, layer in method.places(shape):
        if layer != OUTSIDE:
            yield 4 * layer + changes[site]
        else:
            yield behind if site == "final.norm" else 0
    for weight in weights:  # a layer's first matrices read nothing trained in it
        yield behind if weight.behind else 4 * min(weight.layers) + 1 if weight.layers else 0


def measure(
    encoder: Encoder, methods: Mapping[str, Method], watch: Callable[[str], None] | None = None
) -> dict[str, StepTime]:
    """Time real steps on one synthetic batch: the median of a few, each taken beside a step of full fine-tuning.

    Of a method that trains in several phases, the mean over their steps. Only two runs are in memory at once.
    """
    reference = _run(encoder, Full())
    timed: dict[str, StepTime] = {}
    for name, method in methods.items():
        if watch is not None:
            watch(name)
        run = _run(encoder, method)
        found: list[tuple[float, StepTime]] = []
        while True:
            found.append((run.phase.epochs, _beside(run, reference)))
            if run.last_phase:
                break
            run.next_phase()
        whole = sum(epochs for epochs, _ in found)
        seconds, relative = (sum(e * getattr(t, k) for e, t in found) / whole for k in ("seconds", "relative"))
        timed[name] = StepTime(seconds, relative)
    return timed


def _beside(run: Run, reference: Run) -> StepTime:
    """The medians of steps that alternate, after one of each that is not counted."""
    pairs = [(_seconds(run), _seconds(reference)) for _ in range(STEPS + 1)][1:]
    own = [mine for mine, _ in pairs]
    return StepTime(statistics.median(own), statistics.median(mine / full for mine, full in pairs))


def _seconds(run: Run) -> float:
    import torch

    from intarsia.train.step import step_together

    began = time.perf_counter()
    step_together([(run, range(ROWS))])
    if run.encoder.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _run(encoder: Encoder, method: Method) -> Run:
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
    """Words that are mostly one token each."""
    words = sorted(word for word in tokenizer.get_vocab() if word.isascii() and word.isalpha() and len(word) > 2)
    return words[:: max(1, len(words) // 1000)] or ["word"]
