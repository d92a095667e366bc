"""Fuzzing that is guided by coverage (atheris), where it is installed: inlay files and the readers of data files."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.campaign.bank import World
from tests.campaign.tally import Budget, Tally

TARGETS = ("inlay", "reader")


def run(world: World, budget: Budget) -> Tally:
    """Run each target in a process of its own, because the fuzzer takes its process over."""
    tally = Tally()
    if importlib.util.find_spec("atheris") is None:
        tally.counts["not installed"] += 1
        return tally
    for target in TARGETS:
        seconds = max(5, int((budget.ends - time.monotonic()) / (len(TARGETS) - TARGETS.index(target))))
        _target(world, target, budget, seconds, tally)
    return tally


def _target(world: World, target: str, budget: Budget, seconds: int, tally: Tally) -> None:
    corpus = world.folder / f"corpus-{target}"
    corpus.mkdir(exist_ok=True)
    for number, path in enumerate(sorted((world.template / "inlays").glob("*/*.safetensors"))):
        if target == "inlay":
            (corpus / f"seed-{number}").write_bytes(path.read_bytes())
    command = [sys.executable, "-m", "tests.campaign.guided", target, str(corpus)]
    options = [f"-max_total_time={seconds}", f"-seed={budget.seed * 1000 + budget.first // 10**6 + 1}", "-timeout=10",
               "-rss_limit_mb=6144", "-max_len=20000", f"-artifact_prefix={world.folder}/crash-"]  # fmt: skip
    done = subprocess.run(command + options, capture_output=True, text=True, errors="replace", env={**os.environ})
    executed = re.findall(r"^#(\d+)", done.stderr, re.MULTILINE)
    count = int(executed[-1]) if executed else 0
    tally.counts["inputs"] += count
    tally.counts[f"inputs: guided {target}"] += count
    if done.returncode:
        tally.fail(f"guided: {target}", budget.seed, done.stderr[-2000:])


def _fuzz(target: str, arguments: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(include=["intarsia"]):
        from intarsia.bank.inlay import check_file
        from intarsia.errors import IntarsiaError
        from intarsia.tasks import load_data
    folder = Path(tempfile.mkdtemp(prefix="guided-"))

    def one(content: bytes) -> None:
        ending = ".safetensors"
        if target == "reader":
            if not content:
                return
            ending, content = ENDINGS[content[0] % len(ENDINGS)], content[1:]
        path = folder / f"data{ending}"
        path.write_bytes(content)
        with contextlib.suppress(IntarsiaError):
            check_file(path) if target == "inlay" else load_data(path)

    atheris.Setup([sys.argv[0], *arguments], one)
    atheris.Fuzz()


ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".txt", ".csv.gz", ".jsonl.zst", ".parquet")

if __name__ == "__main__":
    _fuzz(sys.argv[1], sys.argv[2:])
