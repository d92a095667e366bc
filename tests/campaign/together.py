"""Threads over one bank, and processes over one bank's folder."""

from __future__ import annotations

import random
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import intarsia
from intarsia.bank.store import Store
from intarsia.errors import Refused, Replaced, UnknownTask
from intarsia.serve.limits import Limits
from tests.campaign.bank import METHOD, TEXTS, World, content, settings
from tests.campaign.children import finish, in_child, start
from tests.campaign.tally import Budget, Tally, draw_for

THREADS, PROCESSES, TASKS = 4, 3, 6
ROUND = 6.0  # seconds

Answers = dict[str, tuple[Any, ...]]  # digest of the inlay → what it answers to TEXTS


def threads(world: World, budget: Budget) -> Tally:
    """Ask from several threads with few slots, while versions arrive and go; answers must equal the serial ones."""
    tally = Tally()
    for seed in budget.case_seeds():
        ended = in_child(lambda: _threads(world, seed, _seconds(budget)))  # noqa: B023
        if isinstance(ended.value, Tally):
            tally.take(ended.value)
        else:
            tally.fail("threads", seed, ended.trace or f"the process ended with {ended.status}")
    return tally


def _seconds(budget: Budget) -> float:
    return max(0.5, min(ROUND, budget.ends - time.monotonic()))


def _threads(world: World, seed: int, seconds: float) -> Tally:
    tally, lock = Tally(), threading.Lock()
    folder = world.copy("threads")
    writer = world.bank(folder)
    names = [f"t{number}" for number in range(TASKS)]
    inlays = {}
    for number, name in enumerate(names):
        writer.learn(name, world.data[number % 3], METHOD, settings=settings(number))
        inlays[name] = writer.store.load(name)
        writer.learn(name, world.data[(number + 1) % 3], METHOD, settings=settings(number + 7), serve_anyway=True)
    allowed: dict[str, set[tuple[Any, ...]]] = {}
    for name in names:
        serial = intarsia.open(folder, world.encoder)
        allowed[name] = {_answers(serial.predict(name, TEXTS, version=version)) for version in (1, 2)}
    bank = intarsia.open(folder, world.encoder, limits=Limits(slots=2))
    bank.predict(names[0], TEXTS)
    ends = time.monotonic() + seconds  # all is prepared

    def ask(number: int) -> None:
        draw = random.Random(seed + number)
        while time.monotonic() < ends:
            chosen = draw.sample(names, draw.randint(1, 3))
            try:
                found = bank.predict([(name, text) for name in chosen for text in TEXTS])
            except (UnknownTask, Replaced):
                continue  # removed at this moment
            except BaseException as error:
                with lock:
                    tally.fail("threads", seed, f"{type(error).__name__}: {error}")
                return
            for name in chosen:
                answers = _answers([one for one in found if one.task == name])
                with lock:
                    tally.counts["answers of threads"] += len(TEXTS)
                    if answers not in allowed[name]:
                        tally.fail("threads", seed, f"{name}: {answers}, expected one of {allowed[name]}")

    def disturb() -> None:
        draw, store = random.Random(seed), Store(folder)
        while time.monotonic() < ends:
            name = draw.choice(names)
            kind = draw.randrange(3)
            if kind == 0:
                store.restore(name, draw.choice([entry.version for entry in store.versions(name)]))
            elif kind == 1 and len(store.versions(name)) > 2:
                store.remove(name, draw.choice([entry.version for entry in store.versions(name)][2:]))
            else:
                time.sleep(0.01)
            with lock:
                tally.counts["changes under threads"] += 1

    running = [threading.Thread(target=ask, args=(number,)) for number in range(THREADS)]
    running.append(threading.Thread(target=disturb))
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return tally


def _answers(predictions: Any) -> tuple[Any, ...]:
    return tuple((one.label, one.probability) for one in predictions)


def processes(world: World, budget: Budget) -> Tally:
    """Learn, remove, restore, predict and verify from several processes; then the bank must be whole."""
    tally = Tally()
    for seed in budget.case_seeds():
        folder = world.copy("shared")
        ends = time.monotonic() + _seconds(budget)
        children = [start(lambda n=n: _process(world, folder, seed + n, ends)) for n in range(PROCESSES)]  # type: ignore[misc] # noqa: B023
        for child in children:
            ended = finish(*child)
            if isinstance(ended.value, Tally):
                tally.take(ended.value)
            else:
                tally.fail("processes", seed, ended.trace or f"a process ended with {ended.status}")
        for problem in Store(folder).verify():
            tally.fail("processes", seed, str(problem))
        left = [path.name for path in (folder / "work").iterdir()] if (folder / "work").is_dir() else []
        if left:
            tally.fail("processes", seed, f"left {left} in work")
        content(folder)
        shutil.rmtree(folder, ignore_errors=True)
    return tally


def _process(world: World, folder: Path, seed: int, ends: float) -> Tally:
    tally, draw = Tally(), draw_for(seed)
    bank = world.bank(folder)
    names = ["kept", "other", "a", "b"]
    while time.monotonic() < ends:
        name, kind = (
            draw.choice(names),
            draw.choice(("learn", "remove", "restore", "predict", "verify", "tasks", "add")),
        )
        tally.counts["operations of processes"] += 1
        try:
            if kind == "learn":
                bank.learn(
                    name, draw.choice(world.data), METHOD, settings=settings(draw.randrange(5)), serve_anyway=True
                )
            elif kind == "remove" and name not in ("kept",):
                bank.remove(name, draw.choice((None, None, 1)))
            elif kind == "restore":
                bank.restore(name, 1)
            elif kind == "predict":
                found = bank.predict(name, TEXTS)
                assert len(found) == len(TEXTS) and all(one.label in ("yes", "no") for one in found)
            elif kind == "verify":
                problems = [problem for problem in bank.verify() if problem.path.exists()]
                if problems:
                    tally.fail("processes", seed, f"verify: {problems[0]}")
            elif kind == "tasks":
                assert "kept" in {entry.name for entry in bank.tasks()}
            else:
                bank.store.add(world.made(draw.randrange(10**9)))
        except (UnknownTask, Replaced):
            tally.counts["tasks that had just gone"] += 1
        except Refused as error:
            if "Another process runs the same training" not in str(error):
                tally.fail("processes", seed, f"{kind} {name}: {error}")
        except BaseException:
            import traceback

            tally.fail("processes", seed, f"{kind} {name}: {traceback.format_exc()}")
    return tally
