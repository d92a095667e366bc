"""The files that GLUE's test server takes."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from intarsia.errors import DataError
from intarsia.tasks.suites import find, write_submission
from intarsia.tasks.suites.submission import FILES


def test_all_files_exactly(tmp_path: Path) -> None:
    answers: dict[str, list[str | float]] = {}
    for name in FILES:
        task = find(name.removesuffix("_mismatched"))
        rows = task.rows["test_mismatched" if name.endswith("_mismatched") else "test"]
        assert rows is not None
        choices: tuple[str | float, ...] = task.labels or (-0.2, 2.34567, 5.4)
        answers[name] = [choices[n % len(choices)] for n in range(rows)]
    made = write_submission(answers, tmp_path / "glue")
    assert [path.name for path in made] == [*FILES.values(), "submission.zip"]

    def start(name: str, count: int = 4) -> list[str]:
        lines = (tmp_path / "glue" / name).read_text().split("\n")
        assert lines[-1] == ""
        return lines[:count]

    assert start("CoLA.tsv", 3) == ["index\tprediction", "0\t0", "1\t1"]
    for name in ("SST-2", "MRPC", "QQP", "WNLI"):
        assert start(f"{name}.tsv", 3) == ["index\tprediction", "0\t0", "1\t1"]
    assert start("STS-B.tsv") == ["index\tprediction", "0\t0.000", "1\t2.346", "2\t5.000"]
    inference = ["index\tprediction", "0\tentailment", "1\tneutral", "2\tcontradiction"]
    assert start("MNLI-m.tsv") == start("MNLI-mm.tsv") == start("AX.tsv") == inference
    assert start("QNLI.tsv", 3) == start("RTE.tsv", 3) == ["index\tprediction", "0\tentailment", "1\tnot_entailment"]
    assert len((tmp_path / "glue/MNLI-mm.tsv").read_text().splitlines()) == 9847 + 1
    with zipfile.ZipFile(tmp_path / "glue/submission.zip") as archive:
        assert archive.namelist() == list(FILES.values())
        assert archive.read("AX.tsv") == (tmp_path / "glue/AX.tsv").read_bytes()


def test_complaints_before_anything_is_written(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, list[str | float]], str]] = [
        ({"glue/wnli": ["entailment"] * 145}, "145 answers. Expected 146"),
        ({"glue/wnli": ["entailment"] * 145 + ["1"]}, "answer 145: '1' is not a label. Expected one of not_entailment"),
        ({"glue/stsb": [float("nan")] * 1379}, "is not a number"),
        ({"glue/snli": []}, "has no submission file"),
        ({}, "no answers"),
    ]
    for answers, message in wrong:
        with pytest.raises(DataError, match=message):
            write_submission(answers, tmp_path / "out")
    assert not (tmp_path / "out").exists()
