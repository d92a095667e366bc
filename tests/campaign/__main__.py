"""Run the campaign: python -m tests.campaign --minutes 20"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from tests.campaign import fuzz, guided, kills, points, report, together
from tests.campaign.bank import World
from tests.campaign.tally import Budget, Tally

PARTS: dict[str, tuple[float, Callable[[World, Budget], Tally]]] = {  # shares of the time
    "kills": (0.40, kills.run),
    "crashes": (0.10, points.crashes),
    "errors": (0.10, points.errors),
    "fuzz": (0.25, fuzz.run),
    "guided": (0.05, guided.run),
    "threads": (0.05, together.threads),
    "processes": (0.05, together.processes),
}
SLICE = 300.0  # seconds of a round over all parts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, help="default: the number of runs before")
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--results", type=Path, default=Path("results/campaign.json"))
    parser.add_argument("--page", type=Path, default=Path("docs/campaign.md"))
    parser.add_argument("--case", type=int, help="run one case of one part (--only), by its seed, and write nothing")
    parser.add_argument("--kind", choices=list(fuzz.TARGETS), default="inlays", help="of the fuzzed input of --case")
    given = parser.parse_args()
    if given.case is not None:
        return _one(given.only[0], given.case, given.kind)
    earlier = report.runs(given.results)
    seed = len(earlier) if given.seed is None else given.seed
    tallies = run(given.only, given.minutes * 60, seed)
    options = "" if given.only == list(PARTS) else f" --only {' '.join(given.only)}"
    made = report.described(tallies, seed, given.minutes, datetime.now(UTC), options)
    report.write(given.results, given.page, [*earlier, made])
    failures = sum(tally.counts["failures"] for tally in tallies.values())
    for part, tally in tallies.items():
        print(f"{part}: {dict(tally.counts)}")
        for failure in tally.failures:
            kind = f" --kind {failure['case'].partition(': ')[2]}" if part == "fuzz" else ""
            print(f"  {failure['case']} (--only {part} --case {failure['seed']}{kind}): {failure['reason']}")
    print(f"{failures} failures")
    return 1 if failures else 0


def run(parts: list[str], seconds: float, seed: int) -> dict[str, Tally]:
    """Run slices of all parts in turn until the time is over."""
    tallies = {part: Tally() for part in parts}
    firsts = dict.fromkeys(parts, 0)
    ends = time.monotonic() + seconds
    total = sum(PARTS[part][0] for part in parts)
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        world = World(Path(folder))
        while (left := ends - time.monotonic()) > 0:
            for part in parts:
                share, function = PARTS[part]
                began = time.monotonic()
                tally = function(world, Budget.of(seed, firsts[part], min(SLICE, left) * share / total))
                firsts[part] += tally.counts.pop("next", 0) or 10**6
                tally.counts["seconds"] += round(time.monotonic() - began)
                tallies[part].take(tally)
                print(f"{part}: {dict(tally.counts)}", file=sys.stderr, flush=True)
    return tallies


def _one(part: str, case: int, kind: str) -> int:
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        if part == "fuzz":
            tally = fuzz.batch(World(Path(folder)), kind, range(case, case + 1), time.monotonic() + 600)
        else:
            tally = PARTS[part][1](World(Path(folder)), Budget.of(case // 10**9, case % 10**9, 600.0, 1))
    print(dict(tally.counts))
    for failure in tally.failures:
        print(failure["reason"])
    return 1 if tally.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
