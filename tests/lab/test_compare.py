"""Comparisons: the same rows for all, nothing trained twice, figures that can be read, reasons instead of crashes."""

from __future__ import annotations

import json
import math
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intarsia.cli.lab_tables import comparison_rows
from intarsia.encoder.encoder import Encoder
from intarsia.encoder.noise import Noise
from intarsia.errors import BankError, IntarsiaError
from intarsia.lab.compare import compare
from intarsia.lab.comparison import Comparison, ComparisonRow, Result, Score, in_order, score_of
from intarsia.lab.figures import _apart, _placed, tradeoff
from intarsia.lab.labels import Box, place_labels
from intarsia.methods import LoRA, parse, to_dict
from intarsia.tasks import TaskData, load_data
from intarsia.train import runner
from intarsia.train import step as step_module
from intarsia.train.runner import RunnerEvent
from tests.support.families import opinions, save_tiny, tiny_with_words

RECIPE: dict[str, Any] = {"epochs": 1, "learning_rate": 3e-3, "batch_size": 16}


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_with_words()


@pytest.fixture(scope="module")
def task() -> TaskData:
    return load_data(opinions(100))


@pytest.fixture(scope="module")
def finished(encoder: Encoder, task: TaskData, tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path]:
    folder = tmp_path_factory.mktemp("finished") / "comparison"
    methods = ["full", "houlsby-4", "features", "lt-sft-1%", "lora-2"]
    return compare(task, methods, seeds=2, encoder=encoder, folder=folder, command="intarsia …", **RECIPE), folder


def test_rows_stand_by_their_parameters(finished: tuple[Comparison, Path]) -> None:
    found, _ = finished
    names = [row.name for row in found.rows]
    assert names == ["features", "lt-sft-1%", "lora-2", "houlsby-4", "full"]
    counts = [row.parameters["method"] for row in found.rows if row.parameters]
    assert counts == sorted(counts) and counts[0] == 0
    for row in found.rows:
        assert [result.seed for result in row.results] == [0, 1] and row.seconds and not row.problems
        values = [result.test["value"] for result in row.results if result.test]
        assert row.score and row.score.value == pytest.approx(statistics.fmean(values))
        assert row.score.high - row.score.value == pytest.approx(statistics.stdev(values) / math.sqrt(2))
    assert [cells[0] for cells in comparison_rows(found)] == names


def test_what_is_written(finished: tuple[Comparison, Path], encoder: Encoder, task: TaskData) -> None:
    found, folder = finished
    stored = json.loads((folder / "comparison.json").read_text())
    assert stored == json.loads(json.dumps(found.to_dict())) and Comparison.from_dict(stored) == found
    assert set(stored) == {"format", "metric", "kind", "seeds", "rows", "no_bert", "provenance"}
    known = stored["provenance"]
    assert set(known) == {
        "command", "created", "seeds", "settings", "data", "encoder", "versions", "machine",
    }  # fmt: skip
    assert known["encoder"]["fingerprint"] == encoder.fingerprint and known["data"]["sha256"] == task.source["sha256"]
    assert known["command"] == "intarsia …" and known["seeds"] == [0, 1] and known["versions"]["torch"]
    row = stored["rows"][2]
    assert set(row) == {"name", "method", "parameters", "share", "score", "seconds", "problems", "runs"}
    assert set(row["score"]) == {"value", "low", "high", "bounds"} and row["method"]["type"] == "lora"
    assert row["runs"][0]["test"]["examples"] == len(task.test) and row["runs"][0]["settings"]["epochs"] == 1
    assert len(list((folder / "runs").glob("*.json"))) == 10 and not (folder / "work").exists()
    html = (folder / "comparison.html").read_text()
    assert "<svg" in html and "houlsby-4" in html and encoder.fingerprint in html and "http-equiv" not in html


def test_the_picture_is_not_blank(finished: tuple[Comparison, Path]) -> None:
    from matplotlib.image import imread

    pixels = np.asarray(imread(finished[1] / "tradeoff.png"))
    assert pixels.shape[0] > 600 and pixels.shape[1] > 1000
    coloured = pixels[..., :3].max(-1) - pixels[..., :3].min(-1) > 0.2
    assert coloured.mean() > 0.001 and (pixels[..., :3].min(-1) < 0.5).mean() > 0.005


def test_a_finished_comparison_is_drawn_again_without_training(
    finished: tuple[Comparison, Path], encoder: Encoder, task: TaskData, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, folder = finished
    monkeypatch.setattr(runner, "train_together", lambda jobs, *_, **__: [pytest.fail("trained again") for _ in jobs])
    (folder / "tradeoff.png").unlink()
    seen: list[RunnerEvent] = []
    again = compare(  # other names of the same methods, and a part of them
        task, {"LoRA": LoRA(2), "full": parse("full")}, seeds=2, encoder=encoder, folder=folder, metric="accuracy",
        watch=seen.append, **RECIPE,
    )  # fmt: skip
    assert again.row("LoRA").results == found.row("lora-2").results and len(seen) == 5
    assert all(event.stored and event.result is not None for event in seen[1:])
    assert (folder / "tradeoff.png").is_file() and len(again.rows) == 2


def test_after_a_crash_nothing_is_repeated(
    encoder: Encoder, task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[tuple[str, int, int]] = []
    step = step_module.step_together

    def crashing(pairs: Any) -> list[float]:
        ((run, _),) = pairs
        if crash and run.method.name == "bitfit" and run.state.step == 7:  # in the second epoch
            raise OSError("power cut")
        taken.append((run.method.name, run.job.settings.seed, run.state.step))
        return step(pairs)

    monkeypatch.setattr(step_module, "step_together", crashing)
    options: dict[str, Any] = {"encoder": encoder, "folder": tmp_path, "seeds": 2, **RECIPE, "epochs": 2, "together": 1}
    crash = True
    with pytest.raises(OSError, match="power cut"):
        compare(task, ["bitfit", "lora", "ia3"], **options)
    assert len(list((tmp_path / "runs").iterdir())) == 2 and len(list((tmp_path / "work").iterdir())) == 1
    crash = False
    seen: list[RunnerEvent] = []
    found = compare(task, ["bitfit", "lora", "ia3"], **options, watch=seen.append)
    # The state was stored at the end of an epoch of five steps: two are taken twice, all others once.
    assert sorted(set(taken)) == [(name, s, i) for name in ("bitfit", "ia3", "lora") for s in (0, 1) for i in range(10)]
    assert sorted(t for t in set(taken) if taken.count(t) > 1) == [("bitfit", 0, 5), ("bitfit", 0, 6)]
    ended = [
        (event.job.method.name, event.job.settings.seed, event.stored)
        for event in seen
        if event.job is not None and event.result is not None
    ]
    assert ended[:3] == [("lora", 0, True), ("lora", 1, True), ("bitfit", 0, False)] and len(ended) == 6
    monkeypatch.setattr(step_module, "step_together", step)
    fresh = compare(task, ["bitfit"], **{**options, "folder": tmp_path / "fresh"})
    assert [r.test for r in found.row("bitfit").results] == [r.test for r in fresh.row("bitfit").results]


def test_runs_share_passes(encoder: Encoder, task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[list[tuple[str, int]]] = []
    step = step_module.step_together

    def counted(pairs: Any) -> list[float]:
        passes.append([(run.method.name, run.job.settings.seed) for run, _ in pairs])
        return step(pairs)

    monkeypatch.setattr(step_module, "step_together", counted)
    monkeypatch.setattr(
        step_module, "_noise", lambda pairs: Noise([0], pairs[0][0].encoder.device, dropout=False)
    )  # with dropout, the masks of a CPU's pass depend on all runs in it
    options: dict[str, Any] = {"encoder": encoder, "seeds": 2, **RECIPE}
    methods = ["houlsby-4", "lora-2", "bitfit", "full"]
    began = time.monotonic()
    shared = compare(task, methods, folder=tmp_path / "shared", **options)
    took = time.monotonic() - began
    steps = shared.row("full").results[0].steps
    assert passes[:steps] == [passes[0]] * steps and len(passes[0]) == 6
    assert passes[steps:] == [[("full", seed)] for seed in (0, 1) for _ in range(steps)]
    assert sum(result.seconds for row in shared.rows for result in row.results) <= took  # shares of one clock
    alone = compare(task, methods, folder=tmp_path / "alone", together=1, **options)
    for one, other in zip(shared.rows, alone.rows, strict=True):
        for a, b in zip(one.results, other.results, strict=True):
            assert a.test == b.test and a.dev == b.dev
            assert [e["loss"] for e in a.history] == pytest.approx([e["loss"] for e in b.history], abs=1e-5)


def test_a_method_that_fails_is_a_row_and_the_others_go_on(
    encoder: Encoder, task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = step_module.step_together

    def diverging(pairs: Any) -> list[float]:
        losses = step(pairs)
        wrong = {("bitfit", 1), ("ia3", 0), ("ia3", 1)}
        return [
            math.nan if (run.method.name, run.job.settings.seed) in wrong else loss
            for (run, _), loss in zip(pairs, losses, strict=True)
        ]

    monkeypatch.setattr(step_module, "step_together", diverging)
    options: dict[str, Any] = {"encoder": encoder, "folder": tmp_path, "seeds": 2, **RECIPE}
    found = compare(task, ["ia3", "top-9", "bitfit", "layernorm"], **options)
    assert [row.name for row in found.rows] == ["ia3", "layernorm", "bitfit", "top-9"]
    table = {cells[0]: cells[1:] for cells in comparison_rows(found)}
    assert table["top-9"][0] == "–" and table["top-9"][2] == "not applicable" and "3" in found.row("top-9").problems[0]
    assert table["ia3"][2] == "failed" and found.row("ia3").score is None and len(found.row("ia3").problems) == 2
    assert "[1 of 2 seeds]" in table["bitfit"][2] and len(found.row("bitfit").problems) == 1
    assert found.row("bitfit").problems[0].startswith("seed 1: training of 'compare' diverged at step")
    assert Comparison.from_dict(found.to_dict()) == found
    again = compare(task, ["ia3"], **options)  # known to diverge: not tried again
    assert again.row("ia3").problems and (tmp_path / "tradeoff.png").is_file()


def test_a_full_disk_is_no_fault_of_the_method(
    encoder: Encoder, task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise BankError("The disk is full")

    monkeypatch.setattr(step_module, "step_together", full)
    with pytest.raises(BankError, match="disk"):
        compare(task, ["lora"], encoder=encoder, folder=tmp_path, **RECIPE)
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ["hulsby"]}, "houlsby"),
        ({"methods": []}, "at least 1"),
        ({"seeds": 0}, "at least 1"),
        ({"metric": "spearman"}, "spearman"),
        ({"epochs": 0}, "epochs"),
        ({"pooling": "max"}, "mean, cls"),
        ({"no_bert": 0}, "minutes"),
        ({"folder": __file__}, "Cannot create the folder"),
    ],
)
def test_bad_input_is_refused_before_training(
    encoder: Encoder, task: TaskData, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(IntarsiaError, match=message):
        compare(task, **{"methods": ["lora"], "encoder": encoder, "folder": tmp_path / "new", **RECIPE, **changes})
    assert not (tmp_path / "new" / "runs").exists()


def test_scores_and_examples_without_a_file(encoder: Encoder, tmp_path: Path) -> None:
    rows = load_data([(row["text"], float(len(row["text"]))) for row in opinions(60)], kind="score")
    bare = TaskData("score", (), rows.train, rows.dev, rows.test, {})
    found = compare(bare, ["lora-2"], seeds=1, encoder=encoder, folder=tmp_path, **RECIPE)
    assert found.metric == "spearman" and found.provenance["data"]["sha256"]
    score = found.rows[0].score
    assert score is not None and score.bounds == "95 % interval" and score.low <= score.value <= score.high


def test_the_search_without_bert_is_stored_too(
    encoder: Encoder, task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from intarsia.lab import no_bert

    options: dict[str, Any] = {"encoder": encoder, "folder": tmp_path, "seeds": 1, "no_bert": 0.001, **RECIPE}
    seen: list[no_bert.SearchProgress] = []
    found = compare(task, ["layernorm"], **options, search_watch=seen.append)
    assert found.baseline and found.baseline_score and found.baseline_score.bounds == "95 % interval"
    assert seen and all(0 <= p.share <= 1 for p in seen)
    monkeypatch.setattr(no_bert, "search", lambda *_, **__: pytest.fail("searched again"))
    assert compare(task, ["layernorm"], **options).baseline == found.baseline
    assert "no BERT" in (tmp_path / "comparison.html").read_text()


def test_two_processes_do_not_share_a_folder(encoder: Encoder, task: TaskData, tmp_path: Path) -> None:
    from filelock import FileLock

    with FileLock(tmp_path / ".lock"), pytest.raises(IntarsiaError, match="Another process"):
        compare(task, ["lora"], encoder=encoder, folder=tmp_path, **RECIPE)


def test_a_score_over_seeds() -> None:
    one = {"value": 0.9, "low": 0.8, "high": 0.95}
    assert score_of([one]) == Score(0.9, 0.8, 0.95, "95 % interval") and score_of([]) is None
    assert str(score_of([one])) == "90.0 (80.0–95.0)"
    assert str(score_of([one, {**one, "value": 0.94}])) == "92.0 ± 2.0"


def test_a_result_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    Result("abc", 0, {}, "accuracy", 1.0, {}).write(tmp_path)
    assert Result.read(tmp_path, "abc") == Result("abc", 0, {}, "accuracy", 1.0, {})
    (tmp_path / "abc.json").write_text("{")
    assert Result.read(tmp_path, "abc") is None and Result.read(tmp_path, "def") is None


def made(values: dict[str, float], encoder: Encoder) -> Comparison:
    """A comparison as one seed would give it."""
    rows = []
    for name, value in values.items():
        method, test = to_dict(parse(name)), {"value": value, "low": value - 0.02, "high": value + 0.02}
        counts = {"method": parse(name).count(encoder.shape), "head": 66, "base": encoder.shape.parameters}
        rows.append(ComparisonRow(name, method, counts, (Result(name, 0, method, "accuracy", 1.0, {}, test=test),)))
    known = {"encoder": {"parameters": encoder.shape.parameters}}
    return Comparison("accuracy", "label", 1, in_order(rows), None, known)


def test_no_name_covers_another_or_a_point(encoder: Encoder) -> None:
    from matplotlib.text import Annotation

    names = ["houlsby-8", "pfeiffer", "lora-2", "bitfit", "layernorm", "top-1", "features", "full", "lt-sft-2%"]
    found = made({name: 0.9 + 0.004 * (i % 3) for i, name in enumerate(names)}, encoder)
    figure = tradeoff(found)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    texts = [text for text in axes.texts if isinstance(text, Annotation) and text.get_text() in names]
    assert len(texts) == len(names)
    boxes = [Box(*text.get_window_extent().extents) for text in texts]
    frame = Box(*axes.get_window_extent().extents)
    assert all(a.overlap(b) == 0 for i, a in enumerate(boxes) for b in boxes[:i])
    assert all(box.outside(frame) == 0 for box in boxes)
    points, zero, _ = _placed(found)
    for point in points:
        x, y = axes.transData.transform((point.x, 100 * point.score.value))
        assert not any(box.contains((x, y)) for box in boxes)
    assert zero is not None and min(point.x for point in points) == zero
    assert axes.get_xticklabels()[0].get_text() == "head only"
    dashed = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert [line.get_ydata()[0] for line in dashed] == [pytest.approx(100 * found.row("full").results[0].test["value"])]


def test_a_figure_says_what_its_bars_are(encoder: Encoder) -> None:
    one = made({"lora-2": 0.9, "houlsby-8": 0.5}, encoder)

    def title(*runs: int, low: float = 0.02) -> str:
        rows = []
        for row, count in zip(one.rows, runs, strict=True):
            (result,) = row.results
            tests = [{"value": 0.5 + 0.01 * i, "low": 0.5 - low, "high": 0.5 + low} for i in range(count)]
            rows.append(replace(row, results=tuple(replace(result, seed=i, test=t) for i, t in enumerate(tests))))
        return str(tradeoff(replace(one, rows=tuple(rows))).axes[0].get_title(loc="right"))

    assert title(1, 1) == "bars: 95 % interval" and title(1, 1, low=0.0) == "1 seed"
    assert title(3, 3) == "bars: standard error over 3 seeds"
    assert title(1, 3, low=0.0) == "bars: standard error over up to 3 seeds"  # no bar where there is one seed
    assert title(1, 3) == "bars: standard error over up to 3 seeds, for one seed 95 % interval"


def test_points_that_would_hide_each_other_stand_apart(encoder: Encoder) -> None:
    found = made({"lora-2": 0.9, "houlsby-8": 0.5}, encoder)
    points, zero, _ = _placed(found)
    assert zero is None and [p.x for p in points] == [p.row.parameters["method"] for p in points if p.row.parameters]
    same = [points[0], points[0], points[1]._replace(x=points[0].x)]
    moved = [p.x for p in _apart(same, 0.05)]
    assert moved[0] < points[0].x < moved[1] and moved[2] == points[0].x  # the last is far above or below


def test_a_name_takes_the_nearest_free_place() -> None:
    inside, size = Box(0, 0, 1000, 1000), (40.0, 10.0)
    (free,) = place_labels([(500, 500)], [size], [], [], inside, 1.0)
    assert free.offset[0] > 0 and free.offset[1] == 0 and free.line is None
    (edge,) = place_labels([(990, 500)], [size], [], [], inside, 1.0)
    assert edge.box.outside(inside) == 0
    wall = Box(460, 470, 540, 530)  # all that is near is taken
    (far,) = place_labels([(500, 500)], [size], [wall], [], inside, 1.0)
    assert far.box.overlap(wall) == 0 and far.line is not None
    both = place_labels([(500, 500), (503, 500)], [size, size], [], [], inside, 1.0)
    assert both[0].box.overlap(both[1].box) == 0


def test_a_line_through_a_box() -> None:
    box = Box(0, 0, 10, 10)
    assert box.crossed((-5, 5), (15, 5)) and box.crossed((5, 5), (6, 6)) and box.crossed((-1, -1), (11, 11))
    assert (
        not box.crossed((-5, 5), (-1, 5)) and not box.crossed((-5, 11), (15, 11)) and not box.crossed((-9, 0), (0, 19))
    )


def test_a_folder_of_an_encoder_is_enough(tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base")
    found = compare(
        opinions(60), ["features"], seeds=1, encoder=base, folder=tmp_path / "c", epochs=2, text="text", label="label"
    )
    assert found.rows[0].parameters is not None and found.rows[0].parameters["method"] == 0


def test_few_that_are_far_below_get_a_smaller_scale() -> None:
    from intarsia.lab.comparison import Score
    from intarsia.lab.figures import Point, _sparse_below

    def points(*scores: float) -> list[Point]:
        return [Point(1.0, None, Score(s, s - 0.01, s + 0.01, "standard error")) for s in scores]  # type: ignore[arg-type]

    near = [0.75 + 0.005 * i for i in range(11)]
    assert _sparse_below(points(*near, 0.5, 0.6)) == pytest.approx(67.5)  # between the least of the many and the next
    assert _sparse_below(points(*near, 0.74)) is None  # one scale shows all
    assert _sparse_below(points(*near[:6], 0.3)) is None  # so few have room
    assert _sparse_below(points(*(0.1 * i for i in range(1, 10)), 0.15, 0.25, 0.35)) is None  # spread evenly
