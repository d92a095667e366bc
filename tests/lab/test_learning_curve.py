"""The learning curve: one queue for all sizes, nested samples, the same dev and test rows."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from intarsia import Bottleneck
from intarsia.errors import IntarsiaError
from intarsia.lab.learning_curve import CurvePoint, LearningCurve, _checked, _point, _sampled, learning_curve
from intarsia.tasks import load_data
from intarsia.tasks.splits import same_text
from tests.support.families import opinions, tiny_with_words


def test_a_curve_over_three_sizes(tmp_path: Path) -> None:
    data = load_data(opinions(150))
    options = {"method": Bottleneck(4), "folder": tmp_path, "learning_rate": 3e-3, "epochs": 1, "batch_size": 8}
    curve = learning_curve(data, [10, 40, "all"], seeds=2, encoder=tiny_with_words(), **options)  # type: ignore[arg-type]
    assert [p.rows for p in curve.points] == [10, 40, len(data.train)]
    assert all(len(p.scores) == 2 and p.low <= p.score <= p.high for p in curve.points)
    stored = json.loads((tmp_path / "learning-curve.json").read_text())
    assert stored["points"][0]["scores"] == list(curve.points[0].scores) and stored["provenance"]["seeds"] == [0, 1]
    assert (tmp_path / "learning-curve.png").stat().st_size > 5000 and not (tmp_path / "work").exists()
    seen = []
    again = learning_curve(
        data,
        [10, 40, "all"],
        seeds=2,
        encoder=tiny_with_words(),
        watch=seen.append,
        **options,  # type: ignore[arg-type]
    )
    assert again.points == curve.points and not any(event.progress for event in seen), "nothing is trained again"


def test_larger_samples_contain_the_smaller_ones() -> None:
    from intarsia.lab.compare import hashed

    data = hashed(load_data(opinions(150)))
    small, large = ({same_text(e) for e in _sampled(data, rows, seed=1).train} for rows in (10, 40))
    assert small <= large
    assert _sampled(data, 10, 1).test is data.test
    assert {e.text for e in _sampled(data, 10, 0).train} != {e.text for e in _sampled(data, 10, 1).train}


def test_sizes_are_checked() -> None:
    data = load_data(opinions(150))
    assert _checked([], data, 3) == [50, len(data.train)]
    for sizes in ([1], [10_000]):
        with pytest.raises(IntarsiaError, match=r"Expected sizes from 2 to 120, or 'all'"):
            _checked(sizes, data, 1)
    with pytest.raises(IntarsiaError, match="at least 1"):
        _checked([10], data, 0)


def test_bounds_stay_within_what_a_score_can_be() -> None:
    results = [SimpleNamespace(test={"value": v, "low": 0.4, "high": 1.0}, seconds=1.0) for v in (1.0, 0.9)]
    point = _point("accuracy", 50, results)
    assert point is not None and point.high == 1.0 and point.low == pytest.approx(0.95 - point.error)
    correlated = _point("matthews", 50, [SimpleNamespace(test={**r.test, "value": -0.9}, seconds=1.0) for r in results])
    assert correlated is not None and correlated.low == -1.0


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(IntarsiaError, match=r"Cannot create the folder .*file: Not a directory. A part of the path is"):
        learning_curve(load_data(opinions(60)), [10], Bottleneck(4), seeds=1, encoder=tiny_with_words(),
                       folder=tmp_path / "file", epochs=1)  # fmt: skip


def test_the_advice_compares_the_gain_with_its_error() -> None:
    def curve(last: float) -> str:
        points = [
            CurvePoint(rows, score, score - 0.01, score + 0.01, 0.01, (score,), 1.0)
            for rows, score in ((50, 0.7), (200, last))
        ]
        return LearningCurve("accuracy", 1, tuple(points), (), {}).advice

    assert curve(0.8) == "From 50 to 200 rows, accuracy changes by +10.0: more rows still help."
    assert "probably help a little" in curve(0.72)
    assert "does not show that more rows help" in curve(0.705)
