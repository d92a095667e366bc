"""A cold start: how long one answer of the command line takes, and where the seconds of a short `learn` go.

    python benchmarks/cold_start.py --output results/cold-start.json

Each number is a fresh process, with its files in the system's cache and its byte code written, as `pip install` leaves
it: `intarsia predict` of one text, the parts of that time, the same with a running service, `python -c "import torch"`
for comparison, and `learn` of sixty short rows. `cpu` is the processor's time: on a busy machine it says more than the
clock.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COMMAND = (sys.executable, "-c", "from intarsia.cli import main; main()")
TEXT = "Why was I billed twice?"
# The steps of `intarsia predict`, each with its processor time.
PARTS = """
import sys, time
marks = []
def mark(name):
    marks.append((name, time.process_time()))
mark("start of Python")
from intarsia.cli import answer_files, answers
from intarsia.cli.shared import existing_bank
from pathlib import Path
opened = existing_bank(Path(sys.argv[1]))
opened.show("topic")
mark("command line, bank and header")
import torch
mark("import of PyTorch")
from intarsia.encoder.quick_import import quick_imports
with quick_imports(opened.store.encoder["name"]):
    from intarsia.encoder.encoder import Encoder
    mark("import of the model code")
    opened.encoder
mark("loading, checking and attaching the base")
opened.engine
mark("import and start of the engine")
opened.predict("topic", [sys.argv[2]])
mark("first answer")
import json
times = [0.0, *(at for _, at in marks)]
print(json.dumps({name: times[i + 1] - times[i] for i, (name, _) in enumerate(marks)}))
"""


def run(command: tuple[str, ...], folder: Path) -> tuple[tuple[float, float], str]:
    """Run a command, and return its seconds by the clock and of the processor, and what it printed."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    clock, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return (clock, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime), done.stdout


def middle(measure: Callable[[], tuple[float, float]], rounds: int) -> dict[str, Any]:
    """Return the seconds of some rounds; a first one that is not counted fills the system's cache."""
    measure()
    seconds, cpu = zip(*(measure() for _ in range(rounds)), strict=True)
    return {
        "median": round(statistics.median(seconds), 3),
        "least": round(min(seconds), 3),
        "cpu": round(statistics.median(cpu), 3),
        "all": [round(one, 3) for one in seconds],
    }


def parts(bank: Path, folder: Path) -> dict[str, float]:
    done = run((sys.executable, "-c", PARTS, str(bank), TEXT), folder)[1]
    found: dict[str, float] = json.loads(done.splitlines()[-1])
    return found


@contextmanager
def service(bank: Path, folder: Path) -> Iterator[None]:
    """Run a service over the bank until the block ends."""
    with (folder / "service.log").open("w") as log:
        running = subprocess.Popen([*COMMAND, "serve", "--bank", str(bank), "--port", "0"], stderr=log, stdout=log)
    try:
        for _ in range(600):
            if "Ready after" in (folder / "service.log").read_text():
                break
            time.sleep(0.1)
        yield
    finally:
        running.terminate()
        running.wait()


def tickets(folder: Path) -> Path:
    """Write the sixty rows of the quickstart."""
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    script = re.search(r"```python\n(# make_tickets\.py\n.*?)```", page, re.DOTALL)
    assert script is not None
    run((sys.executable, "-c", script.group(1)), folder)
    return folder / "tickets.csv"


def learn(folder: Path, data: Path, number: int) -> dict[str, float]:
    """Learn sixty rows; return the seconds of the command and those of the training in it."""
    bank = folder / f"bank{number}"
    (whole, cpu), out = run(
        (*COMMAND, "learn", "topic", str(data), "--label", "topic", "--batch-size", "8", "--bank", str(bank), "--json"),
        folder,
    )
    return {"whole": round(whole, 2), "cpu": round(cpu, 2), "training": json.loads(out)["training"]["seconds"]}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--output", type=Path, required=True)
    options.add_argument("--note", help="what else ran on the machine")
    given = options.parse_args()
    sys.path.insert(0, str(ROOT))
    os.environ["PYTHONPATH"] = str(ROOT)
    from intarsia import provenance

    with tempfile.TemporaryDirectory(prefix="intarsia-cold-") as name:
        folder = Path(name)
        os.environ["INTARSIA_CACHE"] = str(folder / "cache")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")  # the first round, which is not counted, fills it
        data = tickets(folder)
        learned = [learn(folder, data, number) for number in range(2)]
        bank = folder / "bank0"
        predict = (*COMMAND, "predict", "topic", TEXT, "--bank", str(bank))
        found: dict[str, Any] = {
            "predict": middle(lambda: run((*predict, "--no-service"), folder)[0], given.rounds),
            "import torch": middle(lambda: run((sys.executable, "-c", "import torch"), folder)[0], given.rounds),
            "start of Python": middle(lambda: run((sys.executable, "-c", ""), folder)[0], given.rounds),
        }
        each = [parts(bank, folder) for _ in range(given.rounds)]
        found["parts, cpu"] = {part: round(statistics.median(one[part] for one in each), 3) for part in each[0]}
        with service(bank, folder):
            found["predict, with a service"] = middle(lambda: run(predict, folder)[0], given.rounds)
        found["learn of sixty rows"] = learned
    result = {
        "what": "seconds of fresh processes, files in the system's cache",
        "seconds": found,
        "settings": {"rounds": given.rounds, "text": TEXT},
        "provenance": {
            "machine": provenance.machine(),
            "versions": provenance.versions(),
            "command": f"python benchmarks/cold_start.py --rounds {given.rounds}",
            "seeds": [0],
        },
    }
    if given.note:
        result["note"] = given.note
    given.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
