"""What a user of Python sees: names, representations, keywords and messages."""

from __future__ import annotations

import builtins
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import intarsia
from intarsia import Bottleneck, LoRA, Settings, load_data
from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaError
from intarsia.methods import as_method
from intarsia.serve.prediction import Prediction
from intarsia.tasks.own_metric import OwnMetric, named_metric
from intarsia.train.job import Job
from intarsia.train.progress import Progress
from tests.support.families import opinions, tiny_with_words
from tests.support.token_tasks import colours

QUICK = {"learning_rate": 3e-3, "epochs": 2, "batch_size": 16}


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_with_words()


def test_a_star_import_leaves_the_builtins_alone() -> None:
    names: dict[str, Any] = {}
    exec("from intarsia import *", names)
    assert names.get("open", builtins.open) is builtins.open
    assert names["Bank"] is intarsia.Bank and names["load_data"] is load_data and names["Bottleneck"] is Bottleneck
    assert not {"sklearn", "importlib", "Path", "annotations", "Any"} & names.keys()


def test_dir_lists_the_public_names_and_nothing_else() -> None:
    names = set(dir(intarsia))
    assert {"open", "Bank", "Settings", "Prediction", "load_data", "LoRA", "sklearn", "__version__"} <= names
    assert not {"importlib", "Path", "annotations", "TYPE_CHECKING", "Any"} & names
    assert all(hasattr(intarsia, name) for name in names)


def test_an_import_is_quick_and_brings_nothing_along() -> None:
    program = (
        "import sys, intarsia\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pandas', 'sklearn', 'rich', 'typer', 'datasets', 'pyarrow'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "[]"


def test_a_prediction_shows_what_it_has() -> None:
    assert repr(Prediction("stars", score=2.5)) == "Prediction(task='stars', score=2.5)"
    assert repr(Prediction("tone", label="ok", probability=0.75)) == (
        "Prediction(task='tone', label='ok', probability=0.75)"
    )


def test_data_progress_and_bank_print_short(encoder: Encoder, tmp_path: Path) -> None:
    data = load_data(opinions(80))
    assert repr(data) == "TaskData('label', 2 labels; 64 train, 8 dev, 8 test)"
    job = Job("tone", data, Bottleneck(8))
    shown = repr(Progress(job, 3, 40, 1, 10, 0.5, "accuracy", 0.75, 1000.0, 12.0, 0))
    assert shown.startswith("Progress('tone', step 3 of 40, epoch 1/10 · loss 0.500") and len(shown) < 130
    bank = intarsia.open(tmp_path / "bank", encoder)
    assert repr(bank) == f"Bank({str(tmp_path / 'bank')!r}, no tasks yet, base tiny)"
    bank.learn("tone", opinions(), "houlsby-4", **QUICK)
    assert repr(intarsia.open(tmp_path / "bank")) == f"Bank({str(tmp_path / 'bank')!r}, 1 task, base tiny)"
    (tmp_path / "bank" / "bank.json").write_text("{")
    assert repr(intarsia.open(tmp_path / "bank")).startswith("Bank(")


def test_methods_are_given_as_text() -> None:
    assert as_method("lora-8") == LoRA(8)
    assert as_method("houlsby-16 layers=1-2") == Bottleneck(16, layers=(1, 2))
    with pytest.raises(IntarsiaError, match="Did you mean 'houlsby'"):
        as_method("houlsbi-8")
    for wrong in (7, Bottleneck, "", None, ["lora-8"]):
        with pytest.raises(IntarsiaError, match="method: expected a name and size"):
            as_method(wrong)


def test_settings_are_keywords_of_learn(encoder: Encoder, tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", encoder)
    entry = bank.learn("tone", opinions(), "lora-4", **QUICK, seed=3, weight_decay=0.1, warmup=0.2)
    training = entry.header.training
    assert entry.header.method["type"] == "lora" and entry.header.data["seed"] == 3
    assert (training["learning_rate"], training["epochs"], training["batch_size"]) == (3e-3, 2, 16)
    assert (training["seed"], training["warmup"], training["adam"]["weight_decay"]) == (3, 0.2, 0.1)
    rows = [{"review": row["text"], "stars": row["label"]} for row in opinions()]
    both = bank.learn("tone", rows, Bottleneck(4), settings=Settings(**QUICK, seed=5), text="review", label="stars",
                      epochs=1, seed=2)  # fmt: skip
    assert both.header.data["columns"]["text"] == "review"
    assert (both.header.training["epochs"], both.header.training["batch_size"]) == (1, 16)
    assert (both.header.training["seed"], both.header.data["seed"]) == (5, 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epoch": 3}, "learn has no option 'epoch'. Did you mean 'epochs'?"),
        ({"learning_rat": 3}, "Did you mean 'learning_rate'?"),
        ({"labl": "x"}, "Did you mean 'label'"),
        ({"something": 1}, "Options of the data: text, pair, label, kind"),
        ({"settings": {"epoch": 3}}, "'epoch' is not a setting. Did you mean 'epochs'?"),
        ({"settings": 3}, "settings: expected Settings"),
        ({"epochs": "3"}, "epochs must be a whole number, not '3' (str)"),
        ({"epochs": 2.5}, "epochs must be a whole number"),
        ({"learning_rate": "fast"}, "learning_rate must be a number"),
        ({"learning_rate": -1}, "learning_rate must be greater than 0"),
        ({"dropout": 0.1}, "dropout must be True or False"),
        ({"patience": "long"}, "patience must be a whole number or None"),
        ({"metric": 3}, "metric: expected a name such as 'f1-macro', or a function"),
        ({"metric": "f2"}, "f2"),
        ({"method": 3}, "method: expected"),
        ({"method": "lorra-8"}, "Did you mean 'lora'"),
        ({"pooling": "max"}, "pooling 'max' is not known"),
        ({"watch": 3}, "watch: expected a function"),
        ({"callbacks": "x"}, "callbacks: expected a list"),
        ({"text": "review"}, "no column 'review'"),
        ({"limit": 0}, "limit=0"),
        ({"limit": "5"}, "limit must be a whole number or None, not '5' (str)"),
        ({"seed": "first"}, "seed must be a whole number, not 'first' (str)"),
        ({"text": 3}, "no column '3' for text"),
        ({"label": "labl"}, "no column 'labl' for label. Did you mean 'label'?"),
        ({"start_from": 3}, "expected the name of a task"),
        ({"class_weights": {"yes": "2"}}, "the weight of 'yes' is '2'; expected a number"),
        ({"class_weights": [1, 2]}, "expected 'balanced' or a mapping"),
    ],
)
def test_wrong_options_are_explained(encoder: Encoder, tmp_path: Path, options: dict[str, Any], words: str) -> None:
    bank = intarsia.open(tmp_path / "bank", encoder)
    with pytest.raises(IntarsiaError) as caught:
        bank.learn("tone", opinions(), **options)
    assert words in str(caught.value)
    assert not bank.tasks()


def test_options_of_the_data_do_not_go_with_loaded_data(encoder: Encoder, tmp_path: Path) -> None:
    with pytest.raises(IntarsiaError, match="the data is loaded already, so text= has no effect"):
        intarsia.open(tmp_path / "bank", encoder).learn("tone", load_data(opinions()), text="text")


@pytest.mark.parametrize("name", [3, None, "", "no/slash"])
def test_wrong_names_are_explained(encoder: Encoder, tmp_path: Path, name: Any) -> None:
    with pytest.raises(IntarsiaError):
        intarsia.open(tmp_path / "bank", encoder).learn(name, opinions())


def test_wrong_folders_names_and_versions_are_explained(encoder: Encoder, tmp_path: Path) -> None:
    for folder in (3, None, b"bank"):
        with pytest.raises(IntarsiaError, match="expected the folder of a bank, found"):
            intarsia.open(folder)  # type: ignore[arg-type]
    bank = intarsia.open(tmp_path / "bank", encoder)
    with pytest.raises(IntarsiaError, match=r"expected the name of a task, found 3 \(int\)"):
        bank.show(3)  # type: ignore[arg-type]
    bank.learn("tone", opinions(), Bottleneck(4), settings=QUICK, progress=False)
    with pytest.raises(IntarsiaError, match=r"expected the number of a version, such as 2, found '1' \(str\)"):
        bank.show("tone", "1")  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers(encoder: Encoder, tmp_path: Path) -> None:
    settings = Settings(learning_rate=np.float32(0.5), epochs=np.int64(3), dropout=np.bool_(False))  # type: ignore[arg-type]
    assert type(settings.learning_rate) is float and type(settings.epochs) is int and settings.dropout is False
    bank = intarsia.open(tmp_path / "bank", encoder)
    entry = bank.learn("tone", opinions(), Bottleneck(4), **{**QUICK, "seed": np.int64(3)}, limit=np.int64(20))
    assert (entry.header.data["seed"], entry.header.data["limit"]) == (3, 20)


def test_a_grid_is_given_by_name(encoder: Encoder, tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", encoder)
    with pytest.raises(IntarsiaError, match="the grid 'large' is not known"):
        bank.sweep({"tone": opinions()}, "large")
    with pytest.raises(IntarsiaError, match="mapping from task names to data"):
        bank.sweep(opinions())  # type: ignore[arg-type]
    with pytest.raises(IntarsiaError, match="Did you mean 'max_length'"):
        bank.sweep({"tone": opinions()}, "small", max_len=3)


# Metrics that are functions.


def share_of_yes(gold: Any, predicted: Any) -> float:
    return float(np.mean([p == "yes" for p in predicted]))


def test_a_function_is_a_metric(encoder: Encoder, tmp_path: Path) -> None:
    from sklearn.metrics import accuracy_score

    bank = intarsia.open(tmp_path / "bank", encoder)
    entry = bank.learn("tone", opinions(), "houlsby-4", metric=accuracy_score, **QUICK)
    assert entry.header.metrics["metric"] == "accuracy_score"
    test = entry.header.metrics["test"]
    assert test["low"] <= test["value"] <= test["high"]
    own, known = (bank.evaluate("tone", opinions(40), metric=metric) for metric in (accuracy_score, "accuracy"))  # type: ignore[arg-type]
    assert own.metric == "accuracy_score" and own.interval.value == pytest.approx(known.interval.value)
    with pytest.raises(IntarsiaError, match="give the function again"):
        bank.evaluate("tone", opinions(40))
    assert 0 <= bank.evaluate("tone", opinions(40), metric=share_of_yes).interval.value <= 1  # type: ignore[arg-type]


def test_a_function_gets_indicators_scores_and_tags(encoder: Encoder, tmp_path: Path) -> None:
    from sklearn.metrics import hamming_loss, r2_score

    bank = intarsia.open(tmp_path / "bank", encoder)
    rows = opinions()
    several = [["kind"] if row["label"] == "yes" else ["short", "rude"] for row in rows]
    texts = [row["text"] for row in rows]

    def agreement(gold: Any, predicted: Any) -> float:
        assert gold.shape[1] == 3 and set(np.unique(gold)) <= {0, 1}
        return 1 - hamming_loss(gold, predicted)

    def negative_r2(gold: Any, predicted: Any) -> float:
        assert gold.dtype.kind == "f"
        return r2_score(gold, predicted)

    def same_tags(gold: Any, predicted: Any) -> float:
        assert [len(tags) for tags in gold] == [len(tags) for tags in predicted]
        return float(np.mean([a == b for a, b in zip(gold, predicted, strict=True)]))

    assert bank.learn("marks", (texts, several), "houlsby-4", metric=agreement, **QUICK).header.metrics["dev"] <= 1
    scores = [0.5 * len(text) for text in texts]
    assert bank.learn("stars", (texts, scores), "houlsby-4", metric=negative_r2, **QUICK).version == 1
    assert bank.learn("colour", colours(40), "houlsby-4", metric=same_tags, **QUICK).version == 1
    with pytest.raises(IntarsiaError, match="a function is no metric of words"):
        bank.learn("fill", texts, kind="words", metric=agreement)


def test_a_metric_that_fails_is_named() -> None:
    def broken(gold: Any, predicted: Any) -> float:
        raise KeyError("x")

    metric = named_metric(broken)
    assert isinstance(metric, OwnMetric) and metric == "broken"
    with pytest.raises(IntarsiaError, match="the metric broken failed: KeyError"):
        metric.value([], [])
    endless = named_metric(lambda gold, predicted: float("nan"))
    with pytest.raises(IntarsiaError, match="Expected a finite number"):
        endless.value([], [])  # type: ignore[union-attr]


# Progress.


def test_progress_shows_lines_when_asked_and_nothing_by_default(
    encoder: Encoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bank = intarsia.open(tmp_path / "bank", encoder)
    bank.learn("tone", opinions(), "houlsby-4", **QUICK)
    assert capsys.readouterr() == ("", "")  # neither terminal nor notebook
    bank.learn("tone", opinions(), "houlsby-4", progress=True, **QUICK)
    assert "tone:" in (shown := capsys.readouterr().err) and "epoch 1/2" in shown
    seen: list[Progress] = []
    bank.learn("tone", opinions(), "houlsby-4", progress=False, watch=seen.append, **QUICK)
    assert capsys.readouterr() == ("", "") and seen and seen[0].epochs == 2


def test_a_terminal_shows_a_bar(
    encoder: Encoder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    bank = intarsia.open(tmp_path / "bank", encoder)
    bank.learn("tone", opinions(), "houlsby-4", **QUICK)
    assert "tone" in (shown := capsys.readouterr().err) and "%" in shown and "━" in shown
    bank.learn("tone", opinions(), "houlsby-4", progress=False, **QUICK)
    assert capsys.readouterr().err == ""
    bank.learn("tone", opinions(), "houlsby-4", watch=lambda p: None, **QUICK)
    assert capsys.readouterr().err == ""  # the caller shows it


class Shell:
    kernel = object()


def test_a_notebook_gets_one_output_that_is_replaced(
    encoder: Encoder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import ModuleType

    shown: list[dict[str, str]] = []

    class Handle:
        def update(self, content: dict[str, str], raw: bool) -> None:
            shown.append(content)

    def display(content: dict[str, str], raw: bool, display_id: bool) -> Handle:
        shown.append({**content, "new": "yes"})
        return Handle()

    ipython, module = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython, module.display = Shell, display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    bank = intarsia.open(tmp_path / "bank", encoder)
    bank.learn("tone", opinions(), "houlsby-4", **QUICK)
    assert [one for one in shown if "new" in one] == shown[:1]
    assert "<progress value=" in shown[0]["text/html"] and "100%" in shown[-1]["text/plain"]
    assert capsys.readouterr() == ("", "")
    shown.clear()
    from intarsia.train.grid import Grid

    bank.sweep({"mood": opinions()}, Grid(("houlsby-2", "houlsby-4")), epochs=1)
    assert [one for one in shown if "new" in one] == shown[:1] and "<pre>" in shown[-1]["text/html"]
    assert "mood" in shown[-1]["text/plain"] and "best so far" in shown[-1]["text/plain"]
    shown.clear()
    bank.learn("tone", opinions(), "houlsby-4", progress=False, **QUICK)
    assert not shown


def test_the_log_gets_epochs_and_results(encoder: Encoder, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bank = intarsia.open(tmp_path / "bank", encoder)
    bank.learn("tone", opinions(), "houlsby-4", **QUICK)
    assert not caplog.records  # warnings only, as logging does by default
    with caplog.at_level(logging.INFO, "intarsia"):
        bank.learn("tone", opinions(), "houlsby-4", **QUICK)
    assert {record.name for record in caplog.records} == {"intarsia.train"}
    assert "tone: 1 run" in caplog.text and "epoch 1/2" in caplog.text and "validation" in caplog.messages[-1]
