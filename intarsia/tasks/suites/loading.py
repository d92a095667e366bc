"""Loading a suite's task as training data."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from intarsia.errors import DataError
from intarsia.tasks.columns import OWN_NAMES
from intarsia.tasks.data import load_data
from intarsia.tasks.examples import TaskData
from intarsia.tasks.reading import read_rows
from intarsia.tasks.suites.folder import Status, data_folder, status
from intarsia.tasks.suites.registry import find
from intarsia.tasks.suites.suite import SuiteTask


def load(
    name: str, data: str | Path | None = None, *, partial: bool = False, seed: int = 0, limit: int | None = None
) -> TaskData:
    """Train, dev and test of a task such as "glue/cola", from a data folder (default: INTARSIA_DATA, else `data`).

    Parts follow the rules of `load_data`: if the test labels are hidden, dev becomes test, and a tenth of train becomes
    dev. A sample raises an error unless `partial` is set; `source["partial"]` of the result is then true.
    """
    task = find(name)
    if not task.rows.keys() & {"train", "all"}:
        raise DataError(
            f"{name} has only a test part. {task.note} Its texts: intarsia.tasks.suites.read_texts({name!r})."
        )
    found = _find_status(task, data_folder(data), partial)
    files = {split: paths for split, paths in found.files.items() if split in ("train", "dev", "test", "all")}
    if not files.keys() & {"train", "all"}:
        raise DataError(f"{name}: train is missing; found only {', '.join(files)}. {_advice(task)}")
    rows = {split: [row for path in paths for _, row in read_rows(path)] for split, paths in files.items()}
    kept = {split: [row for row in own_rows if _is_loaded(task, row)] for split, own_rows in rows.items()}
    for split, paths in files.items():
        if len(paths) > 1:  # samples of one split may share questions
            kept[split] = list({(row["context"], row["question"]): row for row in reversed(kept[split])}.values())[::-1]
    left_out = sum(map(len, rows.values())) - sum(map(len, kept.values()))
    if task.pooled and found.state == "whole":
        kept = {"all": [row for own_rows in kept.values() for row in own_rows]}
    columns: dict[str, Any] = {} if task.kind in OWN_NAMES else {**_columns(task), "label": "label"}
    loaded = load_data(kept, **columns, kind=task.kind, seed=seed, limit=limit)
    origin = {
        **loaded.source,
        "from": "files",
        "files": {split: ", ".join(map(str, paths)) for split, paths in files.items()},
        "suite": task.full_name,
        "partial": found.state != "whole",
        "left_out": left_out,
    }
    return dataclasses.replace(loaded, source=origin)


def read_texts(
    name: str, data: str | Path | None = None, *, split: str = "test", partial: bool = False
) -> list[str | tuple[str, str]]:
    """The texts of a split in their official order, one for each answer of a submission.

    An empty text becomes a dash: it cannot be predicted on, but needs an answer (QQP has a few).
    """
    task, folder = find(name), data_folder(data)
    if task.kind not in ("label", "score") or split not in task.rows:
        splits = ", ".join(task.rows)
        raise DataError(f"{name} has no texts for {split!r}. Its kind is {task.kind}, its splits are {splits}.")
    part = next(part for part in status(task, folder).parts if part.split == split)
    if part.path is None or not (part.whole or partial):
        problem = "is not" if part.path is None else "is only a sample"
        raise DataError(f"{split} of {name} {problem} in the data folder {folder}. {_advice(task)}")
    texts = [[row[column] for column in task.texts] for _, row in read_rows(part.path)]
    filled = [tuple(text if text.strip() else "-" for text in row) for row in texts]
    return [(row[0], row[1]) if task.pairs else row[0] for row in filled]


def _is_loaded(task: SuiteTask, row: dict[str, Any]) -> bool:
    """Whether a stored row is loaded: it has its texts, and its label is not in `drop`."""
    if task.kind in OWN_NAMES:
        return True
    empty = task.empty == "kept" and not all(row[column].strip() for column in task.texts)
    return not empty and row.get("label") not in task.drop


def _columns(task: SuiteTask) -> dict[str, str]:
    return dict(zip(("text", "pair"), task.texts, strict=False))


def _find_status(task: SuiteTask, folder: Path, partial: bool) -> Status:
    """The task's status; raises if it is missing, or if it is partial and `partial` is not set."""
    found = status(task, folder)
    if found.state == "missing":
        raise DataError(
            f"{task.full_name} is not in the data folder {folder} (INTARSIA_DATA names another one). {_advice(task)}"
        )
    if found.state == "partial" and not partial:
        sizes = ", ".join(
            f"{part.split} {part.rows or 0:,}"
            + ("" if part.official is None else f" of {part.official:,}")
            + (" (a sample)" if part.sample else "")
            for part in found.parts
        )
        raise DataError(
            f"{task.full_name} is incomplete in {folder}: {sizes}. Results on a sample are not results on the task: "
            f"fetch the whole task, or allow a sample with partial=True. {_advice(task)}"
        )
    return found


def _advice(task: SuiteTask) -> str:
    """How to fetch the task, for error messages."""
    where = "hub" if task.hub else "FOLDER"
    return f"Fetch it: intarsia data fetch {task.full_name} --from {where} (official source: {task.source})."
