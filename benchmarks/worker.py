"""The common code of all workers: the request loop, the timers, and one training loop.

A worker is a process that reads one JSON request per line from its standard input, and writes one JSON line to its
standard output for each. Nothing here depends on the measured system, so that the same code times all systems.
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
    """Answer requests until the input ends: `{"do": name, **arguments}` calls `handlers[name](**arguments)`.

    If a handler fails, the answer is `{"error": ...}`, the traceback goes to stderr, and the loop continues.
    """
    # Answers go to a private copy of stdout. stdout itself becomes stderr, because libraries may print.
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
    """Return one batch, padded to its longest text and truncated to MAX_TOKENS tokens."""
    encoded = tokenizer(texts, padding="longest", truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
    return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}


def repeat(action: Callable[[], object], repeats: int) -> list[float]:
    """Return the wall time of each of `repeats` calls, in seconds."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return seconds


def repeat_fresh(
    action: Callable[[int], object], repeats: int, after: Callable[[int], object] = lambda number: None
) -> Answer:
    """Return the wall and CPU seconds of each `action(number)`.

    The garbage collector runs before each call, and `after(number)` is called after it; neither is timed.
    """
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
    """Takes optimizer steps on fixed batches: forward, cross-entropy, backward, clip to norm 1, AdamW, zero_grad."""

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
