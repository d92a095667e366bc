"""The files that GLUE's test server takes: one for each task, zipped together, with the labels as it spells them."""

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

# Which file answers which split. The mismatched test set of MNLI is answered by the same task as the matched one.
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
    """Writes a file for each task and a zip of them all; answers are labels, or scores for STS-B, in the test's order.

    Names are "glue/cola" and so on, "glue/mnli_mismatched" for MNLI's second test set. Nothing is written unless all of
    it is right.
    """
    folder = Path(folder)
    made = {FILES[_known(name)]: _file(name, given) for name, given in answers.items()}
    if not made:
        raise DataError("no answers to submit. Expected a mapping from tasks such as 'glue/cola' to their answers.")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in made.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)  # the same bytes at any time
    with files.explained(folder, ()):
        files.make_folder(folder)
    for name, content in {**made, ZIP: packed.getvalue()}.items():
        files.replace(folder / name, [content])
    return [folder / name for name in (*made, ZIP)]


def _known(name: str) -> str:
    if name not in FILES:
        raise DataError(f"{name!r} has no submission file. Expected one of {', '.join(FILES)}.")
    return name


def _file(name: str, answers: Sequence[str | float]) -> bytes:
    mismatched = name.endswith("_mismatched")
    task = find(name.removesuffix("_mismatched"))
    rows = task.rows["test_mismatched" if mismatched else "test"]
    if len(answers) != rows:
        raise DataError(
            f"{name}: {len(answers):,} answers. Expected {rows:,}, one for each row of the official test set."
        )
    lines = [f"{index}\t{_spelled(task, name, index, answer)}" for index, answer in enumerate(answers)]
    return ("\n".join(["index\tprediction", *lines]) + "\n").encode()


def _spelled(task: SuiteTask, name: str, index: int, answer: str | float) -> str:
    where = f"{name}, answer {index}"
    if task.kind == "score":
        if isinstance(answer, str) or not math.isfinite(answer):
            raise DataError(f"{where}: {answer!r} is not a number. Expected a score from 0 to 5.")
        return f"{min(5.0, max(0.0, float(answer))):.3f}"
    if answer not in task.labels:
        raise DataError(f"{where}: {answer!r} is not a label. Expected one of {', '.join(task.labels)}.")
    return str(task.labels.index(str(answer))) if task.name in NUMBERED else str(answer)
