"""Training on SST-2 and predicting, for the workers in other libraries' environments. Needs torch and transformers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
import transformers

RATE, EPOCHS, BATCH, LENGTH, SEED = 1e-3, 3, 32, 128, 0


def rows_of(path: Path) -> tuple[list[str], list[str]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row["text"] for row in rows], [row["label"] for row in rows]


def train_and_predict(model: Any, tokenizer: Any, work: Path, names: list[str]) -> dict[str, Any]:
    """Train on WORK/train.jsonl, predict WORK/dev.jsonl, and return what is compared."""

    def encoded(batch: list[str]) -> dict[str, torch.Tensor]:
        return dict(tokenizer(batch, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt"))

    texts, labels = rows_of(work / "train.jsonl")
    began = time.perf_counter()
    steps = EPOCHS * -(-len(texts) // BATCH)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    model.train()
    for _ in range(EPOCHS):
        order = torch.randperm(len(texts)).tolist()
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            targets = torch.tensor([names.index(labels[i]) for i in chosen])
            loss = model(**encoded([texts[i] for i in chosen]), labels=targets).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    seconds = time.perf_counter() - began
    model.eval()
    texts, labels = rows_of(work / "dev.jsonl")
    logits: list[list[float]] = []
    with torch.no_grad():
        for start in range(0, len(texts), BATCH):
            logits += model(**encoded(texts[start : start + BATCH])).logits.tolist()
    right = sum(names[row.index(max(row))] == label for row, label in zip(logits, labels, strict=True))
    return {
        "transformers": transformers.__version__, "torch": torch.__version__, "learning_rate": RATE, "epochs": EPOCHS,
        "batch_size": BATCH, "max_length": LENGTH, "seed": SEED, "train_seconds": round(seconds, 1),
        "labels": names, "right": right, "logits": logits,
    }  # fmt: skip
