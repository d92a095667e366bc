"""Crash points and injected errors: the n-th file operation is the last, or fails."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.campaign.bank import World, check, content, is_over
from tests.campaign.children import in_child, is_for_users
from tests.campaign.tally import Budget, Tally, draw_for
from tests.support.faults import CODES, KILLED, Faults, injected

OPERATIONS = ("add", "restore", "remove", "learn", "sweep", "verify")


def _disturbed(world: World, operation: str, folder: Path, number: int, faults: Faults) -> Any:
    with injected(faults):
        value = world.operation(operation)(folder, number)
    return value, faults.count


def points(world: World, operation: str, number: int) -> int:
    """Return how many file operations an operation makes."""
    folder = world.copy("counted")
    ended = in_child(lambda: _disturbed(world, operation, folder, number, Faults(folder)))
    if ended.error:
        raise RuntimeError(ended.trace)
    return int(ended.value[1])


def crashes(world: World, budget: Budget) -> Tally:
    """End the process at each file operation in turn; what it left must be whole, and a repetition must succeed."""
    tally = Tally()
    cases = _cases(world, budget)
    for seed, operation, number, at in cases:
        folder = world.copy("crashed")
        before = content(folder)
        faults = Faults(folder, at, end=lambda: os._exit(KILLED))
        ended = in_child(lambda: _disturbed(world, operation, folder, number, faults))  # noqa: B023
        tally.counts["crash points"] += ended.status == KILLED
        tally.counts[f"crash points of {operation}"] += ended.status == KILLED
        case = f"crash: {operation}, file operation {at}"
        if ended.status not in (0, KILLED):
            tally.fail(case, seed, f"it ended with status {ended.status}")
        for reason in check(folder, before, operation):
            tally.fail(case, seed, reason)
        if operation in ("learn", "sweep") and not is_over(folder, before, "new"):
            again = in_child(lambda: world.operation(operation)(folder, number))  # noqa: B023
            expected = {"swept": 1, "new": 1} if operation == "sweep" else (1, world.undisturbed(number))
            if again.value != expected:
                tally.fail(case, seed, again.trace or f"the repetition ended with {again.value}")
    return tally


def errors(world: World, budget: Budget) -> Tally:
    """Let each file operation fail in turn; the error must be one for the user, and its message true."""
    tally = Tally()
    for seed, operation, number, at in _cases(world, budget):
        folder = world.copy("failed")
        before = content(folder)
        code = draw_for(seed).choice(CODES)
        faults = Faults(folder, at, code)
        ended = in_child(lambda: _disturbed(world, operation, folder, number, faults))  # noqa: B023
        tally.counts["injected errors"] += 1
        case = f"{os.strerror(code)} in {operation}, file operation {at}"
        if ended.hung or ended.status:
            tally.fail(case, seed, f"it ended with status {ended.status}")
        elif ended.error and not is_for_users(ended):
            tally.fail(case, seed, ended.trace)
        elif ended.error:
            tally.counts["errors with a message"] += 1
            new = content(folder).keys() - before.keys()
            if new and operation in ("add", "restore") and "complete and stays" not in ended.error:
                tally.fail(case, seed, f"stored {sorted(new)}, but says: {ended.error}")
            if new and operation == "learn" and "Nothing was stored" in ended.error:
                tally.fail(case, seed, f"stored {sorted(new)}, but says: {ended.error}")
        for reason in check(folder, before, operation):
            tally.fail(case, seed, reason)
    return tally


def _cases(world: World, budget: Budget) -> Any:
    """Yield (seed, operation, variant, file operation): all file operations of one after the other, in random order."""
    known: dict[tuple[str, int], int] = {}
    for seed in budget.case_seeds():
        draw = draw_for(seed)
        operation, number = draw.choice(OPERATIONS), draw.randrange(3)
        if (operation, number) not in known:
            known[operation, number] = points(world, operation, number)
        yield seed, operation, number, draw.randint(1, known[operation, number])
