"""The bank of the campaign: a tiny base, a few learned tasks, and the operations that are killed and disturbed."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import importlib
import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import intarsia
from intarsia import Bottleneck, Settings
from intarsia.bank.inlay import Inlay
from intarsia.bank.store import Store
from intarsia.tasks import load_data
from intarsia.train.grid import Grid
from tests.campaign.children import Ended, in_child
from tests.support.families import opinions, tiny_with_words
from tests.support.inlays import bits

TEXTS = ["good good film", "bad", "the sun was not so bad"]
METHOD = Bottleneck(4)
GRID = Grid(("houlsby-2", "bitfit"), (1e-2,), (1,), (16,))
Content = dict[tuple[str, int], str]  # (task, version) → digest of the file


def settings(number: int) -> Settings:
    return Settings(epochs=2, batch_size=16, learning_rate=1e-2, seed=number)


class World:
    """What all parts share, loaded once: the base, the data, a bank to copy, and what undisturbed runs end with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.encoder = tiny_with_words()
        self.data = [load_data(opinions(40, seed=number)) for number in range(3)]
        self.template = folder / "template"
        self.expected: dict[tuple[str, int], str] = {}
        self.times: dict[str, float] = {}
        for name in _value(in_child(self._fill)):  # so that no child has to import them
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        self.inlay = Store(self.template).load("kept")
        for name in ("learn", "sweep", "add", "restore", "remove"):
            target, began = self.copy("timed"), time.monotonic()
            _value(in_child(lambda: self.operation(name)(target, 0)))  # noqa: B023
            self.times[name] = time.monotonic() - began
        gc.collect()
        gc.freeze()  # children copy fewer pages

    def _fill(self) -> list[str]:
        bank = intarsia.open(self.template, self.encoder)
        for number, name in enumerate(("kept", "kept", "other")):
            bank.learn(name, self.data[number], METHOD, settings=settings(number), serve_anyway=True)
        bank.restore("other", 1)
        bank.sweep({"gone": self.data[0]}, GRID)
        bank.remove("gone")
        return [
            name for name in sys.modules if name.split(".")[0] in ("intarsia", "filelock", "safetensors", "sqlite3")
        ]

    def copy(self, name: str) -> Path:
        """Return a fresh copy of the bank."""
        target = self.folder / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.template, target)
        return target

    def bank(self, folder: Path) -> Any:
        return intarsia.open(folder, self.encoder)

    # The operations. Each is given the folder of a bank and a number that says which of its variants it is.

    def learn(self, folder: Path, number: int) -> Any:
        entry = self.bank(folder).learn(
            "new", self.data[number % 3], METHOD, settings=settings(number % 5), serve_anyway=True
        )
        return entry.version, tensors_digest(self.bank(folder).store.load("new", entry.version))

    def sweep(self, folder: Path, number: int) -> Any:
        tasks = {"swept": self.data[number % 3], "new": self.data[(number + 1) % 3]}
        return {name: entry.version for name, entry in self.bank(folder).sweep(tasks, GRID, serve_anyway=True).items()}

    def add(self, folder: Path, number: int) -> Any:
        return Store(folder).add(self.made(number)).version

    def restore(self, folder: Path, number: int) -> Any:
        return Store(folder).restore("kept", 1 + number % 2).version

    def remove(self, folder: Path, number: int) -> Any:
        return Store(folder).remove("other", (None, 1, 2)[number % 3])

    def verify(self, folder: Path, number: int) -> Any:
        return [str(problem) for problem in Store(folder).verify(rebuild=number % 2 == 0)]

    def operation(self, name: str) -> Callable[[Path, int], Any]:
        found: Callable[[Path, int], Any] = getattr(self, name)
        return found

    def made(self, number: int) -> Inlay:
        """An inlay that differs from all others by its description."""
        training = {**self.inlay.training, "run": f"{number:032x}"}
        return dataclasses.replace(self.inlay, name="added", training=training)

    def undisturbed(self, number: int) -> str:
        """Return the digest of the tensors that `learn` ends with if nothing disturbs it."""
        key = ("learn", number % 15)
        if key not in self.expected:
            self.expected[key] = _value(in_child(lambda: self.learn(self.copy("undisturbed"), number)))[1]
        return self.expected[key]


def _value(ended: Ended) -> Any:
    if ended.error or ended.status:
        raise RuntimeError(f"an undisturbed operation failed with {ended.status}: {ended.trace}")
    return ended.value


def tensors_digest(inlay: Inlay) -> str:
    total = hashlib.sha256()
    for name in sorted(inlay.tensors):
        total.update(name.encode() + bits(inlay.tensors[name]))
    return total.hexdigest()


def content(folder: Path) -> Content:
    """Return what a bank holds, from the bytes of its files alone."""
    return {
        (path.parent.name, int(path.stem)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (folder / "inlays").glob("*/[0-9]*.safetensors")
    }


def check(folder: Path, before: Content, operation: str) -> list[str]:
    """Return what a disturbed operation broke: existing versions, or a version that is not whole."""
    after = content(folder)
    wrong = [f"{key} changed" for key, digest in before.items() if key in after and after[key] != digest]
    gone = before.keys() - after.keys()
    if operation != "remove" and gone:
        wrong.append(f"lost {sorted(gone)}")
    if operation == "remove" and any(name != "other" for name, _ in gone):
        wrong.append(f"removed {sorted(gone)}")
    new = after.keys() - before.keys()
    allowed = {"learn": {"new"}, "sweep": {"new", "swept"}, "add": {"added"}, "restore": {"kept"}}
    if any(name not in allowed.get(operation, ()) for name, _ in new):
        wrong.append(f"made {sorted(new)}")
    wrong += [str(problem) for problem in Store(folder).verify()]
    return wrong


def is_over(folder: Path, before: Content, task: str) -> bool:
    """Whether a run has stored its inlay and removed its id: the same command is then another run."""
    return (task, 1) in content(folder) and (task, 1) not in before and not list(folder.glob("work/*/run"))


def some_operation(draw: random.Random) -> str:
    return draw.choices(("learn", "sweep", "add", "restore", "remove"), (6, 1, 2, 1, 2))[0]
