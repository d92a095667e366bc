"""Submission files for GLUE's test server: one file per task and a zip of all, with the server's label names."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from intarsia import files
from intarsia.errors import DataError
from intarsia.tasks.suites.glue import NUMBERED
from intarsia.tasks.suites.registry import find
from intarsia.tasks.suites.suite import SuiteTask

# Task -> submission file. One trained task answers both test sets of MNLI, matched and mismatched.
FILES = {
    "glue/cola": "CoLA.tsv",
    "glue/sst2": "SST-2.tsv",
    "glue/mrpc": "MRPC.tsv",
    "glue/stsb": "STS-B.tsv",
    "glue/qqp": "QQP.tsv",
    "glue/mnli": "MNLI-m.tsv",
    "glue/mnli_mismatched": "MNLI-mm.tsv",
    "glue/qnli": "QNLI.tsv",
    "glue/rte": "RTE.tsv",
    "glue/wnli": "WNLI.tsv",
    "glue/ax": "AX.tsv",
}
ZIP = "submission.zip"


def write_submission(answers: Mapping[str, Sequence[str | float]], folder: str | Path) -> list[Path]:
    """Write a file per task and a zip of all. Answers are labels (scores for STS-B) in the order of the test set.

    Names are "glue/cola" and so on, and "glue/mnli_mismatched" for MNLI's second test set. If any answer is invalid,
    nothing is written.
    """
    folder = Path(folder)
    contents = {FILES[_check_name(name)]: _file(name, own) for name, own in answers.items()}
    if not contents:
        raise DataError("no answers to submit. Expected a mapping from tasks such as 'glue/cola' to their answers.")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            # A fixed date makes the zip reproducible.
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    with files.explained(folder, ()):
        files.make_folder(folder)
    for name, content in {**contents, ZIP: packed.getvalue()}.items():
        files.replace(folder / name, [content])
    return [folder / name for name in (*contents, ZIP)]


def _check_name(name: str) -> str:
    """The name; raises if the server does not take the task."""
    if name not in FILES:
        raise DataError(f"{name!r} has no submission file. Expected one of {', '.join(FILES)}.")
    return name


def _file(name: str, answers: Sequence[str | float]) -> bytes:
    """The content of a task's submission file."""
    mismatched = name.endswith("_mismatched")
    task = find(name.removesuffix("_mismatched"))
    rows = task.rows["test_mismatched" if mismatched else "test"]
    if len(answers) != rows:
        raise DataError(f"{name}: {len(answers):,} answers. Expected {rows:,}, one per row of the official test set.")
    lines = [f"{index}\t{_server_label(task, name, index, answer)}" for index, answer in enumerate(answers)]
    return ("\n".join(["index\tprediction", *lines]) + "\n").encode()


def _server_label(task: SuiteTask, name: str, index: int, answer: str | float) -> str:
    """An answer in the server's form: a label name or number, or a score from 0 to 5."""
    where = f"{name}, answer {index}"
    if task.kind == "score":
        if isinstance(answer, str) or not math.isfinite(answer):
            raise DataError(f"{where}: {answer!r} is not a number. Expected a score from 0 to 5.")
        return f"{min(5.0, max(0.0, float(answer))):.3f}"
    if answer not in task.labels:
        raise DataError(f"{where}: {answer!r} is not a label. Expected one of {', '.join(task.labels)}.")
    return str(task.labels.index(str(answer))) if task.name in NUMBERED else str(answer)
