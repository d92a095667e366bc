"""What the workers of all measured systems share: the protocol loop, the clocks, and one training loop.

A worker is a process that reads one JSON request a line on its standard input and answers each with one JSON line on
its standard output. Nothing here depends on the measured system, so that all are timed by the same code.
"""

import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

MAX_TOKENS = 128
CLIP_NORM = 1.0
LEARNING_RATE = 3e-4

Answer = dict[str, Any]
Batch = dict[str, Tensor]


def serve(handlers: dict[str, Callable[..., Answer]]) -> None:
    """Answers requests until the input ends: `{"do": name, **arguments}` calls `handlers[name](**arguments)`.

    A handler that fails is answered with `{"error": ...}` (the traceback goes to stderr) and the loop goes on.
    """
    # TaskKind go to a private copy of stdout; whatever a library prints lands on stderr.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        if not line.strip():
            continue
        try:
            request = json.loads(line)
            answer = handlers[request.pop("do")](**request)
        except Exception as failure:
            traceback.print_exc()
            answer = {"error": f"{type(failure).__name__}: {failure}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def encode(tokenizer: Callable[..., Any], texts: list[str]) -> Batch:
    """One batch, padded to its longest text and cut at MAX_TOKENS tokens."""
    encoded = tokenizer(texts, padding="longest", truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
    return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}


def repeat(action: Callable[[], object], repeats: int) -> list[float]:
    """Wall seconds of each of `repeats` calls."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return seconds


def repeat_fresh(
    action: Callable[[int], object], repeats: int, after: Callable[[int], object] = lambda number: None
) -> Answer:
    """Wall and process seconds of `action(number)`; each starts with no garbage and is followed by `after(number)`."""
    seconds, cpu_seconds = [], []
    for number in range(repeats):
        gc.collect()
        start, cpu_start = time.perf_counter(), time.process_time()
        action(number)
        cpu_end, end = time.process_time(), time.perf_counter()
        seconds.append(end - start)
        cpu_seconds.append(cpu_end - cpu_start)
        after(number)
    return {"seconds": seconds, "cpu_seconds": cpu_seconds}


class Training:
    """Optimizer steps over fixed batches: forward, cross-entropy, backward, clip to norm 1, AdamW, drop gradients."""

    def __init__(
        self,
        logits: Callable[[Batch], Tensor],
        parameters: Iterable[Tensor],
        batches: Sequence[Batch],
        targets: Sequence[Sequence[int]],
        *,
        fused: bool = True,
    ) -> None:
        self.logits = logits
        self.parameters = list(parameters)
        self.batches = list(batches)
        self.targets = [torch.tensor(row) for row in targets]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=LEARNING_RATE, fused=fused)

    def describe(self) -> Answer:
        return {
            "trained": sum(parameter.numel() for parameter in self.parameters),
            "real_tokens": [int(batch["attention_mask"].sum()) for batch in self.batches],
            "padded_tokens": [batch["input_ids"].numel() for batch in self.batches],
        }

    def step(self, index: int) -> Tensor:
        loss = torch.nn.functional.cross_entropy(self.logits(self.batches[index]), self.targets[index])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, CLIP_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def steps(self, indices: list[int]) -> Answer:
        seconds, losses = [], []
        for index in indices:
            start = time.perf_counter()
            loss = self.step(index)
            seconds.append(time.perf_counter() - start)
            losses.append(loss.item())
        return {"seconds": seconds, "loss": losses}
