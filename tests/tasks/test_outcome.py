"""What lies behind a score: each label, confusions, calibration, the worst mistakes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn import metrics as sk

from intarsia.tasks.examples import Example, Question, Sentence
from intarsia.tasks.inputs import Inputs
from intarsia.tasks.outcome import Outcome, outcome_of
from intarsia.tasks.tagging import Tags
from intarsia.tasks.task_kind import TaskKind

LABELS = ("a", "b", "c")
RANDOM = np.random.default_rng(4)


def one_label(rows: int = 120) -> tuple[Outcome, np.ndarray, np.ndarray]:
    gold, p = RANDOM.integers(0, 3, rows), RANDOM.dirichlet(np.ones(3), rows)
    examples = [Example(f"text {i}", None, LABELS[label]) for i, label in enumerate(gold)]
    return outcome_of(TaskKind("label", LABELS), examples, Inputs([]), list(p)), gold, p


def test_the_table_of_labels_is_scikit_learns() -> None:
    outcome, gold, p = one_label()
    precision, recall, f1, support = sk.precision_recall_fscore_support(gold, p.argmax(1))
    for i, row in enumerate(outcome.classes):
        assert (row.label, row.support) == (LABELS[i], support[i])
        assert (row.precision, row.recall, row.f1) == pytest.approx((precision[i], recall[i], f1[i]))
    confusion = outcome.confusion
    assert confusion is not None and (confusion.counts == sk.confusion_matrix(gold, p.argmax(1))).all()
    scores = outcome.scores()
    assert scores["auc"] == pytest.approx(sk.roc_auc_score(gold, p, multi_class="ovr"))
    assert scores["accuracy"] == pytest.approx((gold == p.argmax(1)).mean())
    assert "f1" not in scores and set(outcome.curves()) == set(LABELS)


def test_the_worst_mistakes_come_first() -> None:
    outcome, gold, p = one_label()
    wrong = p.argmax(1) != gold
    assert len(outcome.all_mistakes) == wrong.sum()
    first = outcome.mistakes(5)[0]
    row = int(np.flatnonzero(wrong)[np.argmin(p[wrong, gold[wrong]])])
    assert (first.row, first.text, first.gold) == (row + 1, f"text {row}", LABELS[gold[row]])
    assert first.probability == pytest.approx(p[row].max())
    assert len(json.dumps(outcome.to_dict(5))) > 100 and len(outcome.to_dict(5)["mistakes"]) == 5


def test_two_labels_have_one_curve_and_the_metrics_of_the_positive_one() -> None:
    p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
    examples = [Example("x", None, label) for label in ("no", "yes", "yes", "no")]
    outcome = outcome_of(TaskKind("label", ("no", "yes")), examples, Inputs([]), list(p))
    assert list(outcome.curves()) == ["yes"]
    assert {"f1", "precision", "recall", "auc", "average-precision"} <= set(outcome.scores())
    assert outcome.scores()["auc"] == pytest.approx(0.75)


def test_several_labels() -> None:
    p = np.array([[0.9, 0.2, 0.6], [0.1, 0.1, 0.1], [0.7, 0.8, 0.2]])
    examples = [Example("x", None, ("a", "c")), Example("y", None, ("b",)), Example("z", None, ("a",))]
    outcome = outcome_of(TaskKind("labels", LABELS), examples, Inputs([]), list(p))
    assert outcome.confusion is None and outcome.reliability is not None
    worst, other = outcome.all_mistakes
    assert (worst.text, worst.gold, worst.predicted, worst.probability) == ("y", "b", "(none)", None)
    assert (other.text, other.gold, other.predicted) == ("z", "a", "a | b")
    assert outcome.scores()["precision-micro"] == pytest.approx(3 / 4)


def test_scores_of_a_score() -> None:
    examples = [Example(f"{i}", None, float(i)) for i in range(5)]
    predicted = [np.array([i + (2.0 if i == 3 else 0.0)]) for i in range(5)]
    outcome = outcome_of(TaskKind("score"), examples, Inputs([]), predicted)
    assert outcome.scores()["mse"] == pytest.approx(0.8) and outcome.scores()["mae"] == pytest.approx(0.4)
    (mistake,) = outcome.all_mistakes
    assert (mistake.text, mistake.gold, mistake.predicted) == ("3", "3", "5")


def test_tags_count_entities_and_words() -> None:
    labels = ("B-PER", "I-PER", "O")
    examples = [Sentence.of(("Ada", "Lovelace", "ran"), ("B-PER", "I-PER", "O")), Sentence.of(("Oh",), ("O",))]
    rows = [np.eye(3)[[0, 2, 2]] * 0.8 + 0.05, np.eye(3)[[2]] * 0.8 + 0.05]
    places = [np.array([[0, 0], [1, 1], [2, 2]]), np.array([[0, 0]])]
    outcome = outcome_of(Tags("tags", labels), examples, Inputs([], [0, 1], places), rows)
    (person,) = outcome.classes
    assert (person.label, person.support, person.predicted, person.f1) == ("PER", 1, 1, 0.0)
    assert outcome.confusion is not None and outcome.confusion.counts[1, 2] == 1
    (mistake,) = outcome.all_mistakes
    assert (mistake.gold, mistake.predicted) == ("Lovelace: I-PER", "Lovelace: O")
    assert outcome.scores() == {"accuracy": 0.75, "f1-entities": 0.0}


def test_questions_list_wrong_answers() -> None:
    from intarsia.tasks.spans import Spans

    question = Question("Who?", "Ada ran.", None, "7", ((0, "Ada"),))
    characters = np.array([[-1, -1], [0, 3], [4, 7], [7, 8], [-1, -1]])
    logits = np.array([[0, 0], [0, 0], [9, 9], [0, 0], [0, 0]], float)
    outcome = outcome_of(Spans("span"), [question], Inputs([], [0], [characters]), [logits])
    (mistake,) = outcome.all_mistakes
    assert (mistake.gold, mistake.predicted, mistake.text) == ("Ada", "ran", "Who?")
    assert outcome.scores() == {"f1": 0.0, "exact-match": 0.0}
