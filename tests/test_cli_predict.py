"""`intarsia predict` on the files and streams that people have, and the other commands around it."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import intarsia
from intarsia.cli import checks, completion, main
from intarsia.cli.console import as_options
from intarsia.encoder.encoder import Encoder
from intarsia.methods import PRESETS, Bottleneck
from tests.support.families import opinions, save_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bank that has learned `opinion`."""
    folder = tmp_path_factory.mktemp("user")
    encoder = Encoder.load(save_tiny(folder / "base"))
    (folder / "empty").mkdir()
    rows = [(row["text"], row["label"]) for row in opinions(60)]
    intarsia.open(folder / "bank", encoder).learn("opinion", rows, Bottleneck(4), epochs=1, progress=False)
    return folder


class Shell:
    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.capsys, self.monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments: str, given: bytes = b"") -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["intarsia", *arguments])
        self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(given))))  # type: ignore[arg-type]
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self.capsys.readouterr()
        return int(ended.value.code or 0), out, err


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(folder)
    return Shell(capsys, monkeypatch)


def test_every_line_gets_an_answer_in_its_place(run: Shell) -> None:
    code, out, err = run("predict", "opinion", given=b"good film\r\n\r\n   \nan awful day")
    answers = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [a["text"] for a in answers] == ["good film", "", "   ", "an awful day"]
    assert [a["label"] is None for a in answers] == [False, True, True, False]
    assert "2 of 4 rows have no text" in err and "\r" not in out
    assert not run("predict", "opinion", "-q", given=b"a\n\n")[2]
    table = run("predict", "opinion", "--format", "csv", given=b"\ngood\n")[1].splitlines()
    assert (
        table[0].startswith("text,task,label,probability,p(no)")
        and table[1].startswith(",opinion,,")
        and len(table) == 3
    )


def test_a_line_that_is_not_utf8_is_named_after_the_answers_before_it(run: Shell) -> None:
    code, out, err = run("predict", "opinion", given=b"good\nb\xffd\nlast\n")
    assert code == 2 and len(out.splitlines()) == 1 and "standard input, line 2: not valid UTF-8 (byte 0xff" in err


def test_a_line_is_answered_before_the_next_is_there(folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "intarsia.cli", "predict", "opinion"], cwd=folder, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    for text in ("good film", "an awful day"):
        process.stdin.write(text + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["text"] == text
    process.stdin.close()
    process.stdout.close()
    assert process.wait() == 0


def test_a_file_keeps_its_columns_and_its_rows(run: Shell, tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_bytes("id;Text;label\n7;café film;x\n8;;y\n9;an awful day;z\n".encode("latin-1"))
    code, out, err = run("predict", "opinion", "--file", str(path))
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [(r["id"], r["Text"], r["label"]) for r in rows] == [
        ("7", "café film", "x"), ("8", "", "y"), ("9", "an awful day", "z"),
    ]  # fmt: skip
    assert rows[0]["predicted_label"] in ("yes", "no") and rows[1]["predicted_label"] is None
    assert "1 of 3 rows have no text" in err and "note: " in err
    for ending in ("csv", "tsv", "json", "jsonl"):
        assert run("predict", "opinion", "-f", str(path), "-o", str(tmp_path / f"out.{ending}"))[0] == 0
    assert [row["id"] for row in json.loads((tmp_path / "out.json").read_text())] == ["7", "8", "9"]
    with (tmp_path / "out.tsv").open(newline="") as file:
        assert [row["id"] for row in csv.DictReader(file, delimiter="\t")] == ["7", "8", "9"]


def test_a_text_that_is_read_as_a_header_is_named(run: Shell, tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    path.write_text("a good film\nan awful day\n")
    code, out, err = run("predict", "opinion", "-f", str(path))
    assert code == 0 and len(out.splitlines()) == 1 and "the first line, 'a good film', is read as the name" in err
    assert run("predict", "opinion", "-q", "-f", str(path))[2] == ""
    path.write_text("Text\na good film\n")
    assert run("predict", "opinion", "-f", str(path))[2] == ""


def test_a_workbook_is_written_as_one(run: Shell, tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl", reason="the extra xlsx is not installed")
    target = tmp_path / "out.xlsx"
    assert run("predict", "opinion", "=1+1", "good", "-o", str(target))[0] == 0
    rows = list(openpyxl.load_workbook(target).active.iter_rows(values_only=True))
    assert rows[0][:3] == ("text", "task", "label") and rows[1][0] == "=1+1" and len(rows) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "opinion", "a", "--format", "xml"], "Unknown format 'xml'"),
        (["predict", "opinion", "a", "-o", "out.doc"], "an ending that names no format"),
        (["predict", "opinion", "a", "-o", "no/out.csv"], "The folder no does not exist"),
        (["predict", "opinion", "a", "-o", "out.xlsx", "--format", "csv"], "does not fit the file name"),
        (["predict", "opinion", "a", "--sep", ";"], "--sep describes a data file"),
        (["predict", "opinion", "a", "--bank", "nowhere"], "There is no bank at nowhere"),
        (["tasks", "--bank", "nowhere"], "There is no bank at nowhere"),
        (["verify", "--bank", "nowhere"], "There is no bank at nowhere"),
        (["predict", "opinion", "-f", "none.csv", "--pair", "b"], "--pair is for tasks over text pairs"),
        (["verify", "--bank", "empty"], "There is no bank at empty"),
        (["learn", "x", "none.csv", "--pooling", "max"], "mean, cls"),
        (["learn", "x", "none.csv", "--metric", "rouge"], "'rouge' is not known"),
        (["learn", "x", "none.csv", "--metric", "f1-macr"], "Did you mean 'f1-macro' or 'f1-micro'?"),
        (["learn", "x", "glue/colaa"], "Did you mean 'glue/cola'"),
        (["learn", "x", "none.csv", "--kind", "sorts"], "label, labels"),
        (["learn", "x", "none.csv", "--device", "gpu"], "the device 'gpu' is not known"),
        (["learn", "x", "none.csv", "--encoding", "utf-9"], "the encoding 'utf-9' is not known"),
        (["discard", "opinion", "--yes"], "no unfinished training run of 'opinion'"),
        (["learn", "x", "none.csv", "--epochs", "0"], "--epochs must be greater than 0, not 0"),
        (["learn", "x", "none.csv", "--lr", "-1"], "--learning-rate must be greater than 0"),
        (["learn", "x", "none.csv", "--max-length", "2"], "--max-length 2 leaves no word"),
        (["learn", "x", "none.csv", "--patience", "0"], "--patience must be at least 1 epoch"),
        (["learn", "x", "none.csv", "--threshold", "4"], "--threshold is a probability"),
        (["learn", "x", "none.csv", "--class-weights", "balancd"], "--class-weights 'balancd' is not known. Did you"),
        (["learn", "x", "none.csv", "--class-weights", "a=0"], "--class-weights: the weight of 'a' is 0"),
        (["learn", "x", "none.csv", "--from", "opinio"], "Did you mean 'opinion'"),
        (["sweep", "none.csv", "--together", "0"], "--together must be at least 1, not 0"),
        (["predict", "opinion", "a", "--threshold", "0.5"], "--threshold is for tasks with several labels of n"),
        (["evaluate", "opinion", "none.csv", "--threshold", "0.5"], "--threshold is for tasks with several labels"),
        (["evaluate", "opinion", "none.csv"], "none.csv does not exist"),
        (["evaluate", "opinion", "glue/colaa"], "Did you mean 'glue/cola'"),
        (["explain", "opinion", "a", "-o", "no/page.html"], "The folder no does not exist"),
        (["report", "opinion", "-o", "bank/bank.json"], "A part of the path is a file"),
        (["report", "opinion", "--bank", "nowhere"], "There is no bank at nowhere"),
        (["learning-curve", "none.csv", "--sizes", "few"], "--sizes: 'few' is neither a number of rows nor all"),
        (["learning-curve", "none.csv", "--method", "lorra-8"], "Did you mean 'lora'"),
        (["learning-curve", "none.csv", "--metric", "f2"], "'f2' is not known"),
        (["learning-curve", "glue/colaa"], "Did you mean 'glue/cola'"),
        (["compare", "none.csv", "--seeds", "0"], "--seeds must be at least 1, not 0"),
    ],
)
def test_wrong_options_are_refused_at_once(folder: Path, arguments: list[str], message: str) -> None:
    code = (
        "import sys; from intarsia.cli import main\n"
        "try: main()\nfinally: print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 2 and message in done.stderr and done.stdout.strip() == "[]"


def test_every_metric_of_the_documentation_is_taken(run: Shell) -> None:
    named = "auc average-precision auc:yes average-precision:yes f1:yes precision:yes recall:yes matthews recall-macro"
    for metric in named.split():
        assert checks.metric(metric) == metric
    assert '"metric": "auc"' in run("evaluate", "opinion", str(rows_file()), "--metric", "auc", "--json")[1]
    assert "Expected one of accuracy, f1, " in (
        refused := run("evaluate", "opinion", str(rows_file()), "--metric", "mse")[2]
    )
    assert "average-precision" in refused and "spearman" not in refused  # metrics of this kind only


def test_a_threshold_is_for_several_labels_only(run: Shell) -> None:
    code, _, err = run("learn", "other", str(rows_file()), "--threshold", "0.3")
    assert code == 2 and "a threshold is for tasks with several labels of n" in err and "--kind labels" in err


def rows_file() -> Path:
    """A file with labelled rows in the present folder."""
    Path("rows.csv").write_text(
        "text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in opinions(30)), encoding="utf-8"
    )
    return Path("rows.csv")


def test_the_service_of_a_bank_answers_without_torch(folder: Path) -> None:
    code = (
        "import sys\nfrom intarsia.cli import main\nfrom intarsia.client import Client\n"
        "from intarsia.serve.prediction import Prediction\n"
        "class Here:\n"
        "    def predict(self, name, texts): return [Prediction(name, label='yes') for _ in texts]\n"
        "Client.for_bank = classmethod(lambda cls, folder, **_: Here())\n"
        "try: main()\nfinally: print([m for m in ('torch', 'transformers', 'numpy', 'rich') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, "predict", "opinion", "good"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.stdout.splitlines() == ['{"text": "good", "task": "opinion", "label": "yes"}', "[]"], done.stderr
    alone = subprocess.run([*command, "--no-service"], cwd=folder, capture_output=True, text=True)
    assert '"probabilities"' in alone.stdout and "torch" in alone.stdout.splitlines()[-1]


def test_tasks_and_show_share_their_fields(run: Shell) -> None:
    shown = json.loads(run("show", "opinion", "--json")[1])
    (listed,) = json.loads(run("tasks", "--json")[1])["tasks"]
    assert listed == {key: shown[key] for key in listed}
    assert listed["name"] == "opinion" and listed["method_name"] == "houlsby-4" and listed["labels"] == ["no", "yes"]
    assert re.search(r"^method +houlsby-4: activation", run("show", "opinion")[1], re.MULTILINE)


def test_completion(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert tuple(name for name, preset in PRESETS.items() if not preset.alias) == completion.METHODS
    assert completion.methods("lora,pf") == ["lora,pfeiffer"]
    context = SimpleNamespace(params={"bank": str(folder / "bank")})
    assert completion.tasks(context, "opinion@1,op") == ["opinion@1,opinion"]  # type: ignore[arg-type]
    assert completion.data("ban") == ["bank/"] and completion.data("glue/co") == ["glue/cola"]
    environment = {
        **os.environ,
        "_INTARSIA_COMPLETE": "complete_bash",
        "COMP_WORDS": "intarsia show o",
        "COMP_CWORD": "2",
    }
    code = "from intarsia.cli.shared import app; import intarsia.cli; app(prog_name='intarsia')"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["opinion"], done.stderr


def test_messages_name_options() -> None:
    assert as_options("Name one with text=.") == "Name one with --text."
    assert as_options("or set kind='score' for numbers (and pair=)") == "or set --kind score for numbers (and --pair)"
    assert as_options("class_weights: no label 'x'.") == "--class-weights: no label 'x'."
    assert as_options("the text a=b, my_label=3") == "the text a=b, my_label=3"
