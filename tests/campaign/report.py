"""results/campaign.json and docs/campaign.md: what all runs of the campaign counted."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from intarsia import files, provenance
from tests.campaign.tally import Tally

AIMS = {"kills": 10_000, "inputs": 1_000_000}
ROWS = (  # label on the page, count, what it means
    ("kills", "kills", "SIGKILL at a random moment of `learn`, `sweep`, `add`, `restore` or `remove`"),
    (
        "resumed",
        "resumed runs with equal tensors",
        "`learn` runs, killed or not, that ended with the bits of an undisturbed run",
    ),
    ("crash points", "crash points", "the process ends at one chosen file operation"),
    ("injected errors", "injected errors", "one chosen file operation fails"),
    ("fuzzed inputs", "inputs", "changed inlays, descriptions, data files, model folders and stored states"),
    ("answers of threads", "answers of threads", "compared with the serial ones, with evictions and new versions"),
    ("operations of processes", "operations of processes", "learn, remove, restore, predict and verify in one bank"),
)


def runs(path: Path) -> list[dict[str, Any]]:
    """Return the runs before."""
    return list(json.loads(path.read_text(encoding="utf-8"))["runs"]) if path.is_file() else []


def described(
    tallies: Mapping[str, Tally], seed: int, minutes: float, ended: datetime, options: str = ""
) -> dict[str, Any]:
    return {
        "ended": ended.isoformat(timespec="seconds"),
        "command": f"python -m tests.campaign --minutes {minutes:g} --seed {seed}{options}",
        "seed": seed,
        "machine": provenance.machine(),
        "versions": provenance.versions(),
        "guided": "atheris" if tallies.get("guided", Tally()).counts["inputs"] else "not run",
        "parts": {part: dict(sorted(tally.counts.items())) for part, tally in tallies.items()},
        "failures": [
            {"part": part, **one, "reason": without_folders(one["reason"])}
            for part, tally in tallies.items()
            for one in tally.failures
        ],
    }


def without_folders(text: str) -> str:
    """Return a traceback or a message without the folders of this machine."""
    text = re.sub(r'(?<=File ")[^"\n]*/(?=(?:site-packages|python3\.\d+|intarsia|tests)/)', "", text)
    return re.sub(r"(?:/[^/\s\"']+)+/(?=campaign-)", "", text)


def totals(found: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Return the counts of all parts of some runs."""
    total: Counter[str] = Counter()
    for run in found:
        for counts in run["parts"].values():
            total.update({"failures": 0, **counts})
    return total


def write(path: Path, page: Path, found: list[dict[str, Any]]) -> None:
    total = totals(found)
    stored = {"totals": dict(sorted(total.items())), "runs": found}
    files.replace(path, [json.dumps(stored, indent=1, ensure_ascii=False).encode() + b"\n"])
    files.replace(page, [text(found).encode()])


def text(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the page."""
    last, total, newest = found[-1], totals(found), totals(found[-1:])
    lines = [
        "# The campaign",
        "",
        *WHY,
        "",
        f"| | last run ({last['ended'][:10]}, seed {last['seed']}) | all runs ({len(found)}) | what |",
        "| --- | ---: | ---: | --- |",
    ]
    lines += [f"| {label} | {newest[name]:,} | {total[name]:,} | {what} |" for label, name, what in ROWS]
    lines += [f"| failures | {newest['failures']:,} | {total['failures']:,} | |", ""]
    aims = [
        f"{total[name]:,} of {aim:,} {what}"
        for (name, aim), what in zip(AIMS.items(), ("kills", "inputs"), strict=True)
    ]
    lines += [
        "The aim is 10,000 kills and 1,000,000 inputs in all, without a failure.",
        f"Reached: {' and '.join(aims)}.",
        "",
    ]
    lines += [*_failures(found), *WHAT, ""]
    machine, versions = last["machine"], last["versions"]
    lines += [
        "## Where the last run was",
        "",
        f"{machine['processor']}, {machine['cores']} cores, one thread; Python {versions['python']}, PyTorch "
        f"{versions['torch']}, safetensors {versions['safetensors']}. Guided fuzzing: {last['guided']}.",
        "",
    ]
    return "\n".join(lines)


def _failures(found: Sequence[Mapping[str, Any]]) -> list[str]:
    shown = [(run, failure) for run in found for failure in run["failures"]]
    if not shown:
        return []
    rows = [f"| {run['seed']} | {one['case']} | {_line(one['reason'])} |" for run, one in shown]
    head = ["Failures of all runs, each described once:", "", "| seed | case | reason |", "| ---: | --- | --- |"]
    return [*head, *rows, ""]


def _line(reason: str) -> str:
    last = reason.strip().splitlines()[-1] if reason.strip() else ""
    return last.replace("|", "\\|").replace("<", "&lt;")[:160]


WHY = """\
`make campaign` attacks a bank for 20 minutes; `make campaign MINUTES=120` for longer. It kills processes, ends them at
each file operation, lets file operations fail, feeds changed files to every reader, and lets threads and processes
share one bank. Each case has a seed that repeats it, except for the moments of kills and of other processes:
`python -m tests.campaign --only PART --case SEED`. What the campaign finds becomes a test in `make test`. This page is
generated from `results/campaign.json`; the program is in `tests/campaign/`.
""".splitlines()

WHAT = """\
## What must hold

| case | afterwards |
| --- | --- |
| kill, crash point | existing versions have their bytes; a new version is whole or absent; `verify` finds nothing |
| the same command again | `learn` and `sweep` store each task once and leave no file in `work` |
| the same `learn` again | the tensors have the bits of an undisturbed run |
| injected error | an error for the user (`IntarsiaError`), and what it says about stored and removed versions is true |
| fuzzed input | accepted, or refused with an error for the user, within 10 seconds and 4 GiB |
| altered checkpoint | refused |
| threads | answers are those of a version that was served, bit for bit |
| processes | no error but "there is no such task" and "another process runs the same training" |

The bank of the campaign has a tiny base, so that a kill costs milliseconds: one process loads everything and forks a
child for each case.

## What it has found

- An error while a run's folder was removed said "Nothing was stored", although the inlay was. Errors of tidying are now
  ignored (`test_an_error_after_the_inlay_is_stored_does_not_make_it_look_lost`).
- The same message, when closing the run's folder failed: `shutil.rmtree` raises then, although it was told to ignore
  errors (`test_tidying_up_after_a_run_raises_nothing_whatever_fails`).
- A tokenizer_config.json with a text as `model_max_length`, and a config.json with a `pad_token_id` that is no word,
  ended in tracebacks (`test_an_absurd_length_of_a_tokenizer_is_refused`, `test_absurd_configurations_are_refused`).
- Six failures (`Circular reference`) were the campaign's own: it put a value into itself.
- One run is not listed: the code was changed while it ran.
""".splitlines()
