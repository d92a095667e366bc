"""Kills: SIGKILL at a random moment of an operation, again and again, until the operation has ended."""

from __future__ import annotations

import time
from pathlib import Path

from tests.campaign.bank import World, check, content, is_over, some_operation
from tests.campaign.children import Ended, killed_after
from tests.campaign.tally import Budget, Tally, draw_for

MOST_KILLS = 16  # of one operation; then it may end


def run(world: World, budget: Budget) -> Tally:
    """Repeat operations that are killed; each must end as if nothing had happened."""
    tally = Tally()
    for seed in budget.case_seeds():
        draw = draw_for(seed)
        operation, number = some_operation(draw), draw.randrange(15)
        folder = world.copy("killed")
        before = content(folder)
        typical = world.times[operation]
        for kills in range(MOST_KILLS):
            began = time.monotonic()
            wait = draw.uniform(0, 1.1 * typical) if kills < MOST_KILLS - 1 else 60.0
            ended = killed_after(lambda: world.operation(operation)(folder, number), wait)  # noqa: B023
            wrong = check(folder, before, operation)
            for reason in wrong:
                tally.fail(f"kill: {operation}", seed, reason)
            if ended.status == -9 and not ended.value:
                tally.counts["kills"] += 1
                tally.counts[f"kills of {operation}"] += 1
                if operation not in ("learn", "sweep") or wrong or is_over(folder, before, "new"):
                    break  # nothing resumes it
                continue
            world.times[operation] = 0.8 * typical + 0.2 * (time.monotonic() - began)
            _check_end(world, folder, operation, number, ended, tally, seed)
            break
        tally.counts["operations"] += 1
    return tally


def _check_end(world: World, folder: Path, operation: str, number: int, ended: Ended, tally: Tally, seed: int) -> None:
    if ended.error or ended.status:
        return tally.fail(f"kill: {operation}", seed, ended.trace or f"it ended with status {ended.status}")
    if operation == "learn":
        version, digest = ended.value
        if version != 1:
            tally.fail("kill: learn", seed, f"it was stored {version} times")
        if digest != world.undisturbed(number):
            tally.fail("kill: learn", seed, "it ended with other tensors than an undisturbed run")
        tally.counts["resumed runs with equal tensors"] += digest == world.undisturbed(number)
    if operation == "sweep" and ended.value != {"swept": 1, "new": 1}:
        tally.fail("kill: sweep", seed, f"versions {ended.value}")
    if operation in ("learn", "sweep") and list((folder / "work").iterdir()):
        tally.fail(f"kill: {operation}", seed, f"left {[path.name for path in (folder / 'work').iterdir()]}")
