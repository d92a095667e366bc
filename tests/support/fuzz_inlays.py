"""Inlay files from strangers, by the thousand: each is refused, or answers; its neighbours never change.

`python -m tests.support.fuzz_inlays SEED COUNT` prints what was tried, and the failures with their seeds.
"""

from __future__ import annotations

import json
import math
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import intarsia
from intarsia import Bottleneck, Fuse, LotteryTicket, Pfeiffer, Settings, Stack
from intarsia.bank.bank import Bank
from intarsia.bank.container import FORMAT
from intarsia.bank.inlay import Inlay
from intarsia.cli.tables import show_table, tasks_dict, tasks_table
from intarsia.errors import IntarsiaError
from intarsia.methods import BitFit, Features, LoRA, Method, Prefix
from tests.support.families import opinions, tiny_with_words
from tests.support.forging import forged, plant
from tests.support.fuzz_readers import mutated

SLOW = 20.0  # seconds
TEXTS = ["good good film", "an awful day", "it"]
METHODS: dict[str, Method] = {
    "bottleneck": Bottleneck(4), "lora": LoRA(2), "prefix": Prefix(2), "bitfit": BitFit(),
    "sparse": LotteryTicket(entries=40),
    "features": Features(hidden=5),
    "stack": Stack("bottleneck", Pfeiffer(2)),
    "fuse": Fuse("bottleneck", "stack", static=True),
}  # fmt: skip
NASTY: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 2**31, 2**53, 2**53 + 1, 2**63, 10**18, 10**30, -(2**70), 1.5, 1e9, 1e30, 1e308,
    "", "x", "128", "NaN", "../../x", "a" * 5000, "[red]x[/]", "\x1b[2J", "label", "labels", "score", "tags", "span",
    "words", "none", "mean", "pooler", "trained-pooler", "layer", "batch", "bottleneck", "full", "lt-sft",
    "diff-pruning", "features", "top", [], [0], [0, 0], [1, 2, 3], ["a", "a"], list(range(3000)), ["query"] * 3000, {},
    {"a": 1}, {"type": "full"}, [[[[[[]]]]]], {"value": None}, {"value": 0.5, "low": "x"}, [{"always": 3}],
]  # fmt: skip


def prepared(folder: Path) -> Bank:
    """A bank with one task of each method."""
    bank = intarsia.open(folder, tiny_with_words())
    for name, method in METHODS.items():
        bank.learn(name, opinions(40), method, settings=Settings(epochs=1, batch_size=16, learning_rate=1e-2))
    return bank


def answers(bank: Bank, *names: str) -> list[tuple[str | None, float | None]]:
    return [(p.label, p.probability) for p in bank.predict([(name, text) for text in TEXTS for name in names])]


class Fuzz:
    """Forged inlays over one prepared bank."""

    def __init__(self, bank: Bank) -> None:
        self.bank = bank
        self.inlays = {name: bank.store.load(name) for name in METHODS}
        self.files = {name: bank.show(name).path.read_bytes() for name in METHODS}
        self.expected = answers(bank, *METHODS)

    def content(self, draw: random.Random) -> bytes:
        """The bytes of one forged file."""
        name = draw.choice(sorted(METHODS))
        inlay = replace(self.inlays[name], name="bad")
        match draw.randrange(6):
            case 0:
                return mutated(self.files[name], draw)
            case 1:
                return forged(inlay, lambda fields, _: _change_values(fields, draw))
            case 2:
                return forged(inlay, lambda _, tensors: _change_tensors(tensors, draw))
            case 3:
                return forged(inlay, header=mutated(forged_header(inlay), draw).decode(errors="replace"))
            case 4:
                return _container(draw)
            case _:
                return forged(
                    inlay, lambda fields, tensors: (_change_values(fields, draw), _change_tensors(tensors, draw))
                )  # type: ignore[func-returns-value]

    def one(self, seed: int) -> str:
        """Try one file: "refused", "answered", or what went wrong."""
        draw = random.Random(seed)
        content = self.content(draw)
        begun = time.perf_counter()
        try:
            outcome = self._try(content)
        except Exception:
            outcome = traceback.format_exc()
        return (
            outcome if time.perf_counter() - begun < SLOW else f"slow: {time.perf_counter() - begun:.1f} s; {outcome}"
        )

    def _try(self, content: bytes) -> str:
        path = plant(self.bank.store.folder, "bad", content)
        try:
            listed(self.bank)
            try:
                given = answers(self.bank, "bad")
                outcome = "answered" if all(math.isfinite(p or 0) for _, p in given) else f"answered {given}"
            except IntarsiaError as error:
                outcome = "refused" if len(str(error)) < 20_000 else f"a message of {len(str(error))} characters"
                if not any(problem.path == path for problem in self.bank.verify()):
                    outcome = f"verify does not see what predict refuses: {error}"
            if answers(self.bank, *METHODS) != self.expected:
                outcome = f"other tasks answer otherwise; {outcome}"
            return outcome
        finally:
            path.unlink()


def listed(bank: Bank) -> None:
    """All that lists a bank; none of it may end in anything but a message."""
    tasks_table(bank)
    json.dumps(tasks_dict(bank))
    for entry in bank.tasks():
        if entry.state == "ok":
            show_table(entry, bank.versions(entry.name))
            json.dumps(entry.to_dict())


def forged_header(inlay: Inlay) -> bytes:
    """The text of a right description."""
    content = forged(inlay)
    length = int.from_bytes(content[:8], "little")
    header: str = json.loads(content[8 : 8 + length])["__metadata__"]["intarsia"]
    return header.encode()


def _change_values(fields: dict[str, Any], draw: random.Random) -> None:
    """Replace, delete or add values anywhere in a description."""
    for _ in range(draw.choice([1, 1, 2, 4])):
        target: Any = fields
        while True:
            keys = list(range(len(target))) if isinstance(target, list) else list(target)
            if not keys:
                break
            key = draw.choice(keys)
            if isinstance(target[key], dict | list) and target[key] and draw.random() < 0.7:
                target = target[key]
                continue
            if draw.random() < 0.15:
                del target[key]
            else:
                target[key] = draw.choice(NASTY)
            break
        if isinstance(target, dict) and draw.random() < 0.15:
            target[
                draw.choice(["temperature", "thresholds", "max_length", "mean", "spread", "threshold", "depth", "x"])
            ] = draw.choice(NASTY)


def _change_tensors(tensors: dict[str, torch.Tensor], draw: random.Random) -> None:
    """Change names, types, shapes and values of tensors."""
    for _ in range(draw.choice([1, 1, 2])):
        name = draw.choice(sorted(tensors))
        tensor = tensors[name]
        match draw.randrange(8):
            case 0:
                del tensors[name]
                if not tensors:
                    tensors[name] = tensor
            case 1:
                tensors[
                    draw.choice(["method.x", "head.x", "method.index", f"{name}.x", "method.", "head.output.bias"])
                ] = tensor
            case 2:
                tensors[name] = tensor.to(
                    draw.choice([torch.float16, torch.float64, torch.int32, torch.bool, torch.int64])
                )
            case 3:
                tensors[name] = torch.cat([tensor, tensor])
            case 4:
                tensors[name] = tensor[: draw.randrange(len(tensor) + 1)]
            case 5:
                tensors[name] = tensor[None] if draw.random() < 0.5 else tensor.reshape(-1)
            case 6:
                changed = tensor.clone().reshape(-1)
                if len(changed):
                    value = draw.choice([math.nan, math.inf, -math.inf, 1e4, -1e4, 0.0])
                    changed[draw.randrange(len(changed))] = (
                        value if tensor.is_floating_point() else draw.choice([-1, 2**62])
                    )
                tensors[name] = changed.reshape(tensor.shape)
            case _:
                tensors[name] = torch.zeros(draw.choice([(0,), (1,), (2, 0), (1, 1, 1), (3, 3), (300, 300)]))


def _container(draw: random.Random) -> bytes:
    """The start of a file with absurd sizes, and no valid digest."""
    sizes = [0, 1, 2, 255, 2**31, 2**53, 2**63, 10**18, 10**30, 10**400]
    entries: dict[str, Any] = {
        "__metadata__": {"digest": "00" * 32, "format": FORMAT, "intarsia": draw.choice(["{}", "[", ""])}
    }
    for number in range(draw.choice([1, 2, 50, 2000])):
        entries[f"method.{number:05d}"] = {
            "data_offsets": [draw.choice(sizes[:8]), draw.choice(sizes[:8])],
            "dtype": draw.choice(["F32", "I64", "BOOL", "F7", 3, None]),
            "shape": [draw.choice(sizes) for _ in range(draw.choice([0, 1, 2, 8, 9, 250]))],
        }
    text = json.dumps(entries, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    length = draw.choice([len(text), len(text), len(text), 0, 2**40, len(text) * 2])
    return length.to_bytes(8, "little") + text + bytes(draw.choice([0, 4, 4000]))


def fuzz(seed: int, count: int, folder: Path | None = None) -> tuple[Counter[str], dict[int, str]]:
    """Try `count` files from `seed` on; return how many were refused and answered, and the failures by seed."""
    counts: Counter[str] = Counter()
    failures: dict[int, str] = {}
    with tempfile.TemporaryDirectory() as made, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tried = Fuzz(prepared(folder or Path(made)))
        for number in range(seed, seed + count):
            outcome = tried.one(number)
            if outcome not in ("refused", "answered"):
                failures[number], outcome = outcome, "failed"
            counts[outcome] += 1
    return counts, failures


if __name__ == "__main__":
    counts, failures = fuzz(int(sys.argv[1]), int(sys.argv[2]))
    for number, failure in failures.items():
        print(f"seed {number}: {failure}")
    print(dict(counts))
