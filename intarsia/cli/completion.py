"""What the shell completes: tasks of the bank, methods, and data by path or name. It must be fast: no PyTorch."""

from __future__ import annotations

import os
from pathlib import Path

import typer

# The names of `intarsia methods`; importing the methods would load PyTorch. A test compares them.
METHODS = tuple(
    "houlsby pfeiffer bapna single attention-only parallel pal lora dora ia3 prefix bitfit layernorm lt-sft "
    "diff-pruning top full features features-mlp features-mix".split()
)


def tasks(ctx: typer.Context, incomplete: str) -> list[str]:
    """The tasks of the bank that the command line names so far, from the folder's listing; of a list, its last."""
    bank = Path(ctx.params.get("bank") or os.environ.get("INTARSIA_BANK") or "bank")
    try:
        names = sorted(entry.name for entry in os.scandir(bank / "inlays") if entry.is_dir())
    except OSError:
        return []
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]


def unfinished(ctx: typer.Context, incomplete: str) -> list[str]:
    """The tasks with an unfinished training run."""
    bank = Path(ctx.params.get("bank") or os.environ.get("INTARSIA_BANK") or "bank")
    try:
        names = {entry.name.rpartition("-")[0] for entry in os.scandir(bank / "work") if entry.is_dir()}
    except OSError:
        return []
    return sorted(name for name in names if name.startswith(incomplete))


def methods(incomplete: str) -> list[str]:
    """The methods; of a list with commas, its last."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in METHODS if name.startswith(last)]


def data(incomplete: str) -> list[str]:
    """Files and folders, and the names that `intarsia data list` prints."""
    folder, slash, start = incomplete.rpartition("/")
    try:
        found = [
            entry for entry in os.scandir(Path(folder + slash or ".").expanduser()) if entry.name.startswith(start)
        ]
    except OSError:
        found = []
    paths = [
        f"{folder}{slash}{e.name}{'/' if e.is_dir() else ''}" for e in found if start or not e.name.startswith(".")
    ]
    if paths and incomplete not in ("",):
        return sorted(paths)
    from intarsia.tasks.suites.registry import SUITES

    names = [task.full_name for suite in SUITES.values() for task in suite.tasks]
    return sorted(paths) + [name for name in names if incomplete and name.startswith(incomplete)]
