"""The command line as a user has it: in a process of its own, with its exit codes and messages."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from intarsia.cli import app
from tests.support.families import opinions, save_tiny
from tests.support.token_tasks import as_squad, colours, riddles, topics


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("base"))


def rows_to_csv(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def intarsia(*arguments: str, cwd: Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "intarsia.cli", *arguments], cwd=cwd, input=text, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def bank(base: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with opinion.csv and a bank that has learned it."""
    folder = tmp_path_factory.mktemp("user")
    rows_to_csv(folder / "opinion.csv", opinions(80))
    done = intarsia(
        "learn", "opinion", "opinion.csv", "--encoder", base, "--method", "houlsby-8", "--epochs", "2",
        "--lr", "0.003", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2 labels; 64 train, 8 dev, 8 test" in done.stderr and "opinion version 1: accuracy" in done.stdout
    return folder


def test_a_task_that_predicts_one_label_for_every_text_is_reported(base: str, tmp_path: Path) -> None:
    rows = [{**row, "label": "[rare]" if i % 10 == 0 else "[usual]"} for i, row in enumerate(opinions(80))]
    rows_to_csv(tmp_path / "odd.csv", rows)
    done = intarsia("learn", "odd", "odd.csv", "--encoder", base, "--lr", "0.001", "--epochs", "4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "The model predicts '[usual]' for every validation text. Try a smaller learning rate" in done.stdout
    shown = intarsia("show", "odd", cwd=tmp_path).stdout
    assert "at epoch 4; predicts '[usual]' for every text" in shown and "1 of 2: [rare], [usual]" in shown


def test_predict_from_arguments_standard_input_and_files(bank: Path) -> None:
    args = intarsia("predict", "opinion", "good film", "an awful day", cwd=bank)
    assert args.returncode == 0, args.stderr
    answers = [json.loads(line) for line in args.stdout.splitlines()]
    assert [a["text"] for a in answers] == ["good film", "an awful day"]
    assert answers[0]["label"] in ("yes", "no") and set(answers[0]["probabilities"]) == {"yes", "no"}
    assert sum(answers[0]["probabilities"].values()) == pytest.approx(1)

    piped = intarsia("predict", "opinion", cwd=bank, text="good film\nan awful day\n")
    assert [json.loads(line) for line in piped.stdout.splitlines()] == answers

    filed = intarsia("predict", "opinion", "--file", "opinion.csv", "--output", "answers.csv", cwd=bank)
    assert filed.returncode == 0, filed.stderr
    with (bank / "answers.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert len(found) == 80
    assert list(found[0]) == ["text", "label", "task", "predicted_label", "probability", "p(no)", "p(yes)"]


def test_dropout_below_can_be_left_out(bank: Path) -> None:
    for flag, expected in (("--no-trunk-dropout", False), ("--trunk-dropout", True)):
        done = intarsia(
            "learn", "upper", "opinion.csv", "--method", "houlsby-4", "--set", "layers=2", "--epochs", "1", flag,
            "--json", cwd=bank,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["training"]["trunk_dropout"] is expected
    assert intarsia("remove", "upper", "--yes", cwd=bank).returncode == 0
    assert not list((bank / "bank" / "work").glob("upper*"))


def test_tasks_show_evaluate_verify(bank: Path) -> None:
    table = intarsia("tasks", cwd=bank)
    assert table.returncode == 0 and "opinion" in table.stdout and "full fine-tuning: 1×" in table.stdout
    known = json.loads(intarsia("tasks", "--json", cwd=bank).stdout)
    assert known["tasks"][0]["name"] == "opinion" and known["total"] > 1

    shown = intarsia("show", "opinion", cwd=bank).stdout
    assert "digest" in shown and "bias_correction true" in shown
    assert json.loads(intarsia("show", "opinion", "--json", cwd=bank).stdout)["method"]["size"] == 8

    scored = json.loads(intarsia("evaluate", "opinion", "opinion.csv", "--metric", "f1:yes", "--json", cwd=bank).stdout)
    assert scored["metric"] == "f1:yes" and scored["examples"] == 80 and scored["low"] <= scored["value"]

    verified = intarsia("verify", "--rebuild", cwd=bank)
    assert verified.returncode == 0 and "Checked 1 file: 0 damaged" in verified.stdout


def test_versions_restore_and_remove(bank: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(bank, tmp_path / "copy")
    folder = tmp_path / "copy"
    restored = intarsia("restore", "opinion", "1", cwd=folder)
    assert "as version 2" in restored.stdout
    assert intarsia("remove", "opinion", "--version", "1", "--yes", cwd=folder).returncode == 0
    asked = intarsia("remove", "opinion", cwd=folder, text="n\n")
    assert asked.returncode == 1
    assert intarsia("remove", "opinion", "--yes", cwd=folder).returncode == 0
    assert "holds no task" in intarsia("tasks", cwd=folder).stdout


def test_a_damaged_file_is_named_and_the_rest_goes_on(bank: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(bank, tmp_path / "copy")
    folder = tmp_path / "copy"
    target = folder / "bank" / "inlays" / "opinion" / "0001.safetensors"
    (folder / "bank" / "inlays" / "other").mkdir()
    content = bytearray(target.read_bytes())
    content[-5] ^= 1
    target.write_bytes(content)
    verified = intarsia("verify", cwd=folder)
    assert verified.returncode == 1 and "0001.safetensors" in verified.stderr
    refused = intarsia("predict", "opinion", "good", cwd=folder)
    assert refused.returncode == 2 and "0001.safetensors" in refused.stderr and "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "opinon", "good"], "opinion"),
        (["learn", "x", "opinon.csv"], "opinion.csv"),
        (["learn", "x", "opinion.csv", "--label", "laebl"], "laebl"),
        (["learn", "x", "opinion.csv", "--method", "hulsby-64"], "houlsby"),
        (["learn", "x", "opinion.csv", "--method", "houlsby-0"], "too small"),
        (["learn", "x", "opinion.csv", "--pooling", "max"], "mean, cls"),
        (["learn", "x", "opinion.csv", "--metric", "rouge"], "rouge"),
        (["learn", "x", "opinion.csv", "--epochs", "0"], "epochs"),
        (["learn", "x", "opinion.csv", "--encoder", "./nowhere"], "nowhere"),
        (["learn", "x", "opinion.csv", "--encoder", "someone/some-model"], "hub"),
        (["learn", "a/b", "opinion.csv"], "letters"),
        (["predict", "opinion", "--file", "opinion.csv", "--text", "txet"], "txet"),
        (["evaluate", "opinion", "nothing.csv"], "nothing.csv"),
        (["restore", "opinion", "7"], "7"),
        (["show", "opinion", "--version", "9"], "9"),
        (["tasks", "--bank", "."], "not a bank"),
        (["learn"], "NAME"),
        (["methods", "--encoder", "./nowhere"], "nowhere"),
        (["compare", "opinion.csv", "--methods", "lora,hulsby"], "houlsby"),
        (["compare", "opinion.csv", "--seeds", "0"], "seeds"),
    ],
)
def test_bad_input_exits_with_2_and_says_what_to_do(bank: Path, arguments: list[str], message: str) -> None:
    before = sorted(p for p in (bank / "bank" / "inlays").rglob("*"))
    done = intarsia(*arguments, cwd=bank)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr
    assert sorted(p for p in (bank / "bank" / "inlays").rglob("*")) == before


def test_ctrl_c_saves_and_the_same_command_goes_on(base: str, tmp_path: Path) -> None:
    rows_to_csv(tmp_path / "opinion.csv", opinions(400))
    command = [
        sys.executable, "-m", "intarsia.cli", "learn", "opinion", "opinion.csv", "--encoder", base, "--method",
        "houlsby-8", "--epochs", "6", "--batch-size", "4",
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None and process.stdout is not None
    for line in process.stderr:
        if "%" in line:  # the first line of progress
            process.send_signal(signal.SIGINT)
            break
    rest = process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    assert process.wait() == 130 and "resume from the last checkpoint" in rest
    (state,) = (tmp_path / "bank" / "work").glob("opinion-*/state.safetensors")
    verified = intarsia("verify", cwd=tmp_path)
    assert verified.returncode == 0 and "0 damaged" in verified.stdout
    assert "opinion: unfinished training run" in verified.stdout and state.parent.name in verified.stdout
    (run,) = json.loads(intarsia("verify", "--json", cwd=tmp_path).stdout)["unfinished"]
    assert run["task"] == "opinion" and run["bytes"] == state.stat().st_size
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 0 and "opinion version 1" in again.stdout
    assert "opinion: resuming at epoch " in again.stderr and " of 6" in again.stderr
    steps = json.loads(intarsia("show", "opinion", "--json", cwd=tmp_path).stdout)["training"]["steps"]
    assert steps == 6 * 80
    assert json.loads(intarsia("verify", "--json", cwd=tmp_path).stdout)["unfinished"] == []


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["tasks"], ["tasks", "--json"], ["show", "opinion"], ["--version"], ["--help"]])
def test_a_reader_that_has_gone_is_no_noise(bank: Path, arguments: list[str], unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "intarsia.cli", *arguments], cwd=bank, stdout=writer, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )  # fmt: skip
    os.close(writer)
    assert done.returncode == 1 and not done.stderr


def test_two_processes_learn_into_one_bank(base: str, tmp_path: Path) -> None:
    for i in range(2):
        rows_to_csv(tmp_path / f"opinion{i}.csv", opinions(60, seed=i))
    command = [sys.executable, "-m", "intarsia.cli", "learn"]
    options = ["--encoder", base, "--method", "houlsby-4", "--epochs", "1", "--json"]
    running = [
        subprocess.Popen([*command, f"task{i}", f"opinion{i}.csv", *options], cwd=tmp_path, stdout=subprocess.DEVNULL)
        for i in range(2)
    ]
    assert [p.wait() for p in running] == [0, 0]
    assert [t["name"] for t in json.loads(intarsia("tasks", "--json", cwd=tmp_path).stdout)["tasks"]] == [
        "task0",
        "task1",
    ]


def test_importing_and_help_load_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, intarsia, intarsia.cli; print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


VERBS = "learn sweep predict evaluate explain baseline tasks show remove restore export verify".split()
VERBS += "methods compare serve report learning-curve import".split()


@pytest.mark.parametrize("verb", [*VERBS, ""])
def test_help_is_there_for_every_verb(verb: str) -> None:
    env = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "intarsia.cli", *([verb] if verb else []), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0 and "Usage" in done.stdout
    assert not re.findall(r"--[a-z-]+…|INTARSIA_[A-Z_]+…", done.stdout)  # names are whole at 80 columns


def test_methods_on_an_encoder(base: str, tmp_path: Path) -> None:
    shown = intarsia("methods", "--encoder", base, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    table = shown.stdout.splitlines()
    assert table[0].split()[:2] == ["method", "paper"] and max(len(line) for line in table) <= 100
    assert any(line.startswith("lora-8 ") for line in table) and "estimated" in shown.stdout
    listed = json.loads(CliRunner().invoke(app, ["methods", "--encoder", base, "--json"]).stdout)
    counts = {m["name"]: m["parameters"] for m in listed["methods"]}
    assert counts["full"] == listed["parameters"] and counts["features"] == 0 and counts["lora-8"] == 3072


def test_compare_is_interrupted_and_goes_on(base: str, tmp_path: Path) -> None:
    rows_to_csv(tmp_path / "opinion.csv", opinions(160))
    command = [
        sys.executable, "-m", "intarsia.cli", "compare", "opinion.csv", "--encoder", base, "--methods",
        "full, lora-2,top-9", "--seeds", "1", "--epochs", "8", "--batch-size", "4",
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None and process.stdout is not None
    for line in process.stderr:
        if line.startswith("full, seed 0: started"):
            process.send_signal(signal.SIGINT)
            break
    rest = process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    assert process.wait() == 130 and "Repeat the command to resume" in rest and "Traceback" not in rest
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "1/2 lora-2, seed 0: accuracy" in again.stderr and "already stored" in again.stderr
    first = [line.split()[0] for line in again.stdout.splitlines()[:4]]
    assert first == ["method", "lora-2", "full", "top-9"] and "top-9: cannot train the top 9 layers" in again.stdout
    stored = json.loads((tmp_path / "comparison" / "comparison.json").read_text())
    assert stored["provenance"]["command"].startswith("intarsia compare opinion.csv")
    assert (tmp_path / "comparison" / "tradeoff.png").stat().st_size > 10_000


def test_learn_can_try_the_small_grid(base: str, tmp_path: Path) -> None:
    rows_to_csv(tmp_path / "opinion.csv", opinions(40))
    done = intarsia("learn", "opinion", "opinion.csv", "--encoder", base, "--sweep", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = json.loads(intarsia("show", "opinion", "--json", cwd=tmp_path).stdout)
    assert len(shown["training"]["grid"]) == 9
    both = intarsia("learn", "opinion", "opinion.csv", "--sweep", "--lr", "0.01", cwd=tmp_path)
    assert both.returncode == 2 and "leave out the method" in both.stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--device", "cuda:7"), "finds no GPU"),
        (("--precision", "bf16"), "bf16 needs a GPU"),
        (("--precision", "int3"), "expected one of: bf16, float32, int8"),
    ],
)
def test_a_device_or_precision_that_is_not_there(
    options: tuple[str, ...], expected: str, base: str, tmp_path: Path
) -> None:
    import torch

    if torch.cuda.is_available() and "cuda:7" in options:
        pytest.skip("this machine has GPUs")
    rows_to_csv(tmp_path / "opinion.csv", opinions(40))
    done = intarsia("learn", "opinion", "opinion.csv", "--encoder", base, *options, cwd=tmp_path)
    assert done.returncode == 2 and expected in done.stderr


def test_words_are_tagged(base: str, tmp_path: Path) -> None:
    lines = [json.dumps({"tokens": s.words, "tags": s.label}) for s in colours(80)]
    (tmp_path / "colours.jsonl").write_text("\n".join(lines) + "\n")
    done = intarsia(
        "learn", "colours", "colours.jsonl", "--encoder", base, "--method", "houlsby-8", "--epochs", "2",
        "--lr", "0.01", "--batch-size", "8", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "3 tags; 64 train, 8 dev, 8 test" in done.stderr and "version 1: f1-entities" in done.stdout
    args = intarsia("predict", "colours", "the red apple\tis up", cwd=tmp_path)
    assert args.returncode == 0, args.stderr
    (answer,) = (json.loads(line) for line in args.stdout.splitlines())
    assert [word["word"] for word in answer["tags"]] == ["the", "red", "apple", "is", "up"] and "entities" in answer
    filed = intarsia("predict", "colours", "--file", "colours.jsonl", "--output", "out.csv", cwd=tmp_path)
    assert filed.returncode == 0, filed.stderr
    with (tmp_path / "out.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert list(found[0]) == ["sentence", "task", "word", "tag", "probability"] and found[-1]["sentence"] == "80"
    scored = intarsia("evaluate", "colours", "colours.jsonl", "--metric", "accuracy", cwd=tmp_path)
    assert scored.returncode == 0 and "colours: accuracy" in scored.stdout
    assert "3 tags" in intarsia("tasks", cwd=tmp_path).stdout
    wrong = intarsia("evaluate", "colours", "colours.jsonl", "--metric", "matthews", cwd=tmp_path)
    assert wrong.returncode == 2 and "does not apply to tags" in wrong.stderr


def test_questions_are_answered(base: str, tmp_path: Path) -> None:
    (tmp_path / "riddles.json").write_text(json.dumps(as_squad(riddles(80, none=True))))
    done = intarsia(
        "learn", "riddle", "riddles.json", "--encoder", base, "--method", "houlsby-8", "--epochs", "2",
        "--lr", "0.01", "--batch-size", "8", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "a span; " in done.stderr and "version 1: f1" in done.stdout
    asked = intarsia("predict", "riddle", "is it good", "--context", "the red apple is up", cwd=tmp_path)
    assert asked.returncode == 0, asked.stderr
    answer = json.loads(asked.stdout)
    assert answer["question"] == "is it good" and "answer" in answer and "no_answer_score" in answer
    by_tab = intarsia("predict", "riddle", "is it good\tthe red apple is up", cwd=tmp_path)
    assert json.loads(by_tab.stdout) == answer
    filed = intarsia(
        "predict", "riddle", "--file", "riddles.json", "--format", "squad", "--output", "predictions.json", cwd=tmp_path
    )
    assert filed.returncode == 0, filed.stderr
    predictions = json.loads((tmp_path / "predictions.json").read_text())
    assert list(predictions) == [f"q{i}" for i in range(80)] and all(
        isinstance(text, str) for text in predictions.values()
    )
    table = intarsia("predict", "riddle", "--file", "riddles.json", "--output", "predictions.csv", cwd=tmp_path)
    assert table.returncode == 0, table.stderr
    scored = intarsia("evaluate", "riddle", "riddles.json", "--metric", "exact-match:answered", cwd=tmp_path)
    assert scored.returncode == 0 and "riddle: exact-match:answered" in scored.stdout
    wrong = intarsia("predict", "riddle", "is it good", cwd=tmp_path)
    assert wrong.returncode == 2 and "put a tab and the context after the question" in wrong.stderr


def test_hidden_words_are_learned_and_filled_in(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, count in (("train", 40), ("valid", 10), ("test", 10)):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(topics(count, count)))
    runner = CliRunner()
    quick = ["--kind", "words", "--encoder", base]
    done = runner.invoke(app, ["learn", "words", ".", *quick, "-m", "houlsby-8", "--epochs", "1"])
    assert done.exit_code == 0, done.output
    assert "hidden words; 40 train, 10 dev, 10 test (as given)" in done.output
    assert "words version 1: likelihood" in done.stdout and ", perplexity " in done.stdout
    shown = runner.invoke(app, ["show", "words"]).stdout
    assert "likelihood" in shown and "perplexity" in shown and "tied to the word embeddings" in shown
    answer = json.loads(runner.invoke(app, ["predict", "words", "red [MASK]\tblue"]).stdout)
    assert answer["text"] == "red [MASK]\tblue" and answer["masks"][0]["start"] == 4
    assert [set(word) for word in answer["masks"][0]["words"]] == [{"word", "probability"}] * 5
    (tmp_path / "asked.txt").write_text("red [MASK]\n\n[MASK] and [MASK]\n")
    assert runner.invoke(app, ["predict", "words", "-f", "asked.txt", "-o", "out.csv"]).exit_code == 0
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["text", "task", "mask", "word", "probability"] and len(rows) == 16  # one of the empty line
    scored = runner.invoke(app, ["evaluate", "words", ".", "--metric", "perplexity", "--json"])
    assert json.loads(scored.stdout)["value"] > 1 and json.loads(scored.stdout)["examples"] == 10
    assert "perplexity" in runner.invoke(app, ["evaluate", "words", ".", "--metric", "perplexity"]).stdout
    (tmp_path / "grid.toml").write_text('methods = ["houlsby-8", "lora-2"]\nlearning_rate = [1e-3]\nepochs = [1]\n')
    swept = runner.invoke(app, ["sweep", ".", "--grid", "grid.toml", "--name", "words", *quick])
    assert swept.exit_code == 0 and "words version 2: likelihood" in swept.stdout, swept.output
    compared = runner.invoke(
        app, ["compare", ".", *quick, "-m", "layernorm,features", "--seeds", "1", "--epochs", "1", "--json"]
    )
    assert compared.exit_code == 0, compared.output
    found = json.loads(compared.stdout)
    assert found["metric"] == "likelihood" and "one vector per text" in compared.stdout


def test_evaluate_all_takes_data_by_task_and_prints_both_precisions() -> None:
    from intarsia.bank.precision_report import Measured, PrecisionReport, TaskReport
    from intarsia.cli.precision_table import _sources, report_parts
    from intarsia.errors import IntarsiaError

    assert _sources(["folder"]) == "folder" and _sources([]) is None
    assert _sources(["a=x.csv", "b=y=z.csv"]) == {"a": "x.csv", "b": "y=z.csv"}
    for wrong in (["a=x.csv", "folder"], ["a=x", "a=y"], ["=x", "b=y"]):
        with pytest.raises(IntarsiaError, match="expected NAME=FILE"):
            _sources(wrong)
    times = {"float32": Measured(0.80, 2.0), "int8": Measured(0.79, 1.0)}
    tasks = (
        TaskReport("a", 1, "label", None, "a.csv", "accuracy", 100, 1000, times, 0.03),
        TaskReport("b", 1, "label", problem="no data"),
    )
    shown, problem, speed, ratio = report_parts(PrecisionReport("base", tasks))
    assert [cell for column in shown.columns for cell in column.cells][-4:] == ["-1.00", "-1.00", "3.00%", "3.00%"]
    assert (
        problem == "b: not measured: no data" and "float32 500, int8 1,000" in str(speed) and "2.00 times" in str(ratio)
    )
