"""The search without a pretrained transformer: every kind of task, its budget, and what it may look at."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from intarsia.cli import app
from intarsia.errors import IntarsiaError
from intarsia.lab import no_bert
from intarsia.lab.no_bert import Baseline, Candidate, Corpus, FittedModel, SearchProgress, TextFeatures, plan, search
from intarsia.lab.no_bert.candidates import _default_candidates
from intarsia.lab.no_bert.features import _overlap
from intarsia.tasks import TaskData, load_data
from intarsia.tasks.task_kind import TaskKind
from tests.support.families import opinions

FIRST = Candidate(TextFeatures(("word",)), "logistic regression", (("C", 4.0),))
BROKEN = Candidate(TextFeatures(("word",), least=1000), "ridge", (("alpha", 1.0),))
STUCK = Candidate(TextFeatures(("word",)), "linear SVM", (("C", 1e12),))


def texts() -> TaskData:
    return load_data([(row["text"], row["label"]) for row in opinions(120)])


def many_labels() -> TaskData:
    draw = random.Random(0)
    words = {"fruit": "apple", "colour": "blue", "size": "big"}
    rows = []
    for row in opinions(120):
        chosen = [name for name in words if draw.random() < 0.5]
        rows.append({"text": " ".join([row["text"], *(words[name] for name in chosen)]), "labels": chosen})
    return load_data(rows)


def scores() -> TaskData:
    words = "apple pear plum".split()
    draw = random.Random(0)
    rows = [[draw.choice(words) for _ in range(4)] for _ in range(120)]
    return load_data(
        [{"text": f"{' '.join(row)} day {i}", "score": row.count("plum") + 0.5} for i, row in enumerate(rows)]
    )


def pairs(kind: str = "label") -> TaskData:
    """The second text repeats words of the first, or has others. Each word is seen once, so only overlap tells."""
    draw = random.Random(0)
    rows: list[dict[str, Any]] = []
    for i in range(160):
        first = [f"w{draw.randrange(10**6)}" for _ in range(4)]
        second = draw.sample(first, 3) if i % 2 else [f"w{draw.randrange(10**6)}" for _ in range(3)]
        rows.append(
            {
                "text_a": " ".join(["the", *first]),
                "text_b": " ".join(["the", *second]),
                "label": "yes" if i % 2 else "no",
            }
        )
    if kind == "score":
        rows = [{**row, "label": 0.5 + (row["label"] == "yes")} for row in rows]
    return load_data(rows)


def outcomes(found: Baseline) -> list[tuple[Candidate, float | None, str | None]]:
    return [(trial.candidate, trial.dev, trial.problem) for trial in found.trials]


def planned(monkeypatch: pytest.MonkeyPatch, *candidates: Candidate) -> None:
    monkeypatch.setattr(no_bert, "plan", lambda data, seed: iter(candidates))


@pytest.mark.parametrize(
    ("data", "metric", "least"),
    [
        (texts, "accuracy", 0.9),
        (many_labels, "f1-micro", 0.9),
        (scores, "spearman", 0.9),
        (pairs, "accuracy", 0.9),
        (lambda: pairs("score"), "spearman", 0.8),
    ],
)
def test_every_kind_of_task_is_learned_and_every_model_fits(data: Any, metric: str, least: float) -> None:
    task = data()
    usual = len(_default_candidates(task))
    found = search(task, candidates=usual + 8)
    assert found.metric == metric and found.kind == task.kind and len(found.trials) == usual + 8
    assert [(str(trial.candidate), trial.problem) for trial in found.trials if trial.problem] == []
    assert found.test.low <= found.test.value <= found.test.high and found.test.value > least
    assert found.winner.dev == max(trial.dev or 0 for trial in found.trials)
    assert found.test_examples == len(task.test)


def test_a_result_survives_json_and_says_what_won() -> None:
    found = search(texts(), candidates=3, metric="f1:yes")
    told = found.to_dict()
    assert json.loads(json.dumps(told)) == told
    assert told["winner"]["options"] == dict(found.winner.candidate.options) and len(told["tried"]) == 3
    assert told["metrics"]["test"]["examples"] == 12 and told["data"]["rows"]["test"] == 12
    assert found.summary().startswith("no pretrained transformer: f1:yes ")
    assert found.summary().endswith("on 12 test examples; word tf-idf, logistic regression C=4")


def test_the_same_seed_gives_the_same_result() -> None:
    task = texts()
    first, again, other = (search(task, candidates=22, seed=seed) for seed in (3, 3, 4))
    assert outcomes(first) == outcomes(again) and first.test == again.test and first.parameters == again.parameters
    assert [t.candidate for t in first.trials] != [t.candidate for t in other.trials]


def test_no_candidate_is_planned_twice() -> None:
    from itertools import islice

    for task in (texts(), pairs(), scores()):
        drawn = list(islice(plan(task, 0), 300))
        assert len(set(drawn)) == 300 and len({str(candidate) for candidate in drawn}) == 300


def test_test_is_read_once_and_only_by_the_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    task = texts()
    upside_down = replace(
        task, test=[replace(e, text="zebra " * 5, label="no" if e.label == "yes" else "yes") for e in task.test]
    )
    read: list[str] = []
    predict = FittedModel.predict

    def watched(self: FittedModel, part: str) -> np.ndarray:
        read.append(part)
        return predict(self, part)

    monkeypatch.setattr(FittedModel, "predict", watched)
    first, other = search(task, candidates=5), search(upside_down, candidates=5)
    assert outcomes(first) == outcomes(other) and first.test != other.test
    assert read == (["dev"] * 5 + ["test"]) * 2


def test_of_equal_candidates_the_earlier_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    later = replace(FIRST, options=(("C", 5.0),))
    planned(monkeypatch, FIRST, later)
    found = search(texts(), candidates=2)
    assert found.trials[0].dev == found.trials[1].dev and found.winner is found.trials[0]
    assert [trial.candidate for trial in found.best()] == [FIRST, later]


def ticking(step: float) -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += step


def test_minutes_end_the_search_between_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    # The clock is read once before the search, and three times for each candidate.
    clock = ticking(10.0)
    monkeypatch.setattr(no_bert, "monotonic", lambda: next(clock))
    monkeypatch.setattr(no_bert, "score", lambda *_: 0.5)
    seen: list[SearchProgress] = []
    found = search(texts(), minutes=1.0, watch=seen.append)
    assert len(found.trials) == 2 and [p.done for p in seen] == [0, 1]
    assert [p.seconds_left for p in seen] == [50.0, 20.0] and "20s left · best accuracy 50.0" in str(seen[1])

    assert len(search(texts(), minutes=0.0).trials) == 1  # at least one


def test_a_perfect_score_ends_the_minutes_early() -> None:
    found = search(texts(), minutes=5.0)
    assert found.winner.dev == 1.0 and found.winner is found.trials[-1] and found.seconds < 60


def test_what_fails_or_does_not_converge_is_noted_and_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    planned(monkeypatch, BROKEN, STUCK, FIRST)
    data = load_data([(row["text"], random.Random(i).choice("ab")) for i, row in enumerate(opinions(400))])
    found = search(data, minutes=0.0)  # the first two do not count: something has to be fitted
    assert [trial.problem is None for trial in found.trials] == [False, False, True]
    assert "ConvergenceWarning" in str(found.trials[1].problem) and found.winner.candidate == FIRST
    assert found.to_dict()["tried"][0]["dev"] is None

    planned(monkeypatch, BROKEN)
    with pytest.raises(IntarsiaError, match="none of 1 candidates"):
        search(data)


@pytest.mark.parametrize(
    "wrong", [{"minutes": -1.0}, {"minutes": float("nan")}, {"candidates": 0}, {"metric": "rouge"}]
)
def test_bad_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(IntarsiaError):
        search(texts(), **wrong)


def test_parameters_are_all_fitted_numbers() -> None:
    task = texts()
    corpus, answers = Corpus(task, 0), TaskKind.learn(task.kind, task.labels, task.train)
    grams = corpus.counts("word", "train").shape[1]

    def count(candidate: Candidate) -> dict[str, int]:
        with no_bert._only_failures():
            return FittedModel(candidate, corpus, answers).parameters()

    assert count(FIRST) == {"features": grams, "model": grams + 1, "total": 2 * grams + 1}
    naive = Candidate(TextFeatures(("word",), weighting="log counts"), "multinomial NB")
    assert count(naive) == {"features": 0, "model": 2 * grams + 2, "total": 2 * grams + 2}
    network = Candidate(TextFeatures(("word",), components=5), "MLP", (("hidden_layer_sizes", 3), ("max_iter", 300)))
    assert count(network) == {"features": grams + 5 * grams + 10, "model": 5 * 3 + 3 + 3 + 1, "total": 6 * grams + 32}
    stumps = Candidate(TextFeatures(("word",), components=5), "boosted trees", (("max_iter", 4), ("max_leaf_nodes", 2)))
    assert count(stumps)["model"] == 4 * (2 + 2) + 1  # four trees of one split and two leaves, and where they start


def test_vocabularies_come_from_train_alone() -> None:
    task = texts()
    odd = replace(task, dev=[replace(e, text=f"{e.text} zebra") for e in task.dev])
    same, other = Corpus(task, 0), Corpus(odd, 0)
    assert (same.counts("word", "dev") != other.counts("word", "dev")).nnz == 0


def test_overlap_counts_what_both_texts_have() -> None:
    idf = {"": 3.0, "a": 1.0, "b": 2.0}
    nothing, everything = _overlap("a b", "c 4", idf), _overlap("A b!", "a B!", idf)
    assert nothing[3:6] == [0, 2, 2] and nothing[12] == 0 and nothing[16:] == [1, 0]
    assert everything[3:6] == [3, 0, 0] and everything[8] == 1 and everything[12] == pytest.approx(1)
    assert len(_overlap("", "", idf)) == len(nothing)


def test_the_command_prints_a_table_or_json(tmp_path: Path) -> None:
    file = tmp_path / "opinion.csv"
    file.write_text("\n".join(["text,label", *(f"{row['text']},{row['label']}" for row in opinions(120))]))

    shown = CliRunner().invoke(app, ["baseline", str(file), "--candidates", "7"])
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert len(lines) == 7 and lines[0].startswith("best of 7 by dev")
    assert lines[-1].startswith("no pretrained transformer: accuracy ") and ", too few) on 12 test" in lines[-1]
    assert "96 train, 12 dev, 12 test" in shown.stderr and "left" in shown.stderr and "Warning" not in shown.stderr

    told = CliRunner().invoke(app, ["baseline", str(file), "--minutes", "0", "--json"])
    assert json.loads(told.stdout)["metrics"]["metric"] == "accuracy" and told.stderr == ""
    test = json.loads(told.stdout)["metrics"]["test"]
    assert test["low"] < test["high"] and test["too_few"]  # also where all rows are right


def test_scikit_learn_waits_until_it_is_used() -> None:
    check = "import sys, intarsia.cli, intarsia.lab.no_bert; assert not {'sklearn', 'torch'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0
