"""What a task answered on labelled examples: scores for each label, confusions, calibration and the worst mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.tasks import ranking
from intarsia.tasks.calibration import Reliability, reliability
from intarsia.tasks.entities import entities, has_entities
from intarsia.tasks.examples import Example, Kind, Sentence
from intarsia.tasks.metrics import METRICS, RATIOS, positive_label, score

if TYPE_CHECKING:
    from intarsia.tasks.inputs import Inputs
    from intarsia.tasks.task_kind import TaskKind

Array = NDArray[Any]


@dataclass(frozen=True)
class LabelScore:
    """How well one label (or entity type) was answered."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int  # rows (words, entities) that have the label
    predicted: int

    @classmethod
    def of(cls, label: str, both: int, predicted: int, support: int) -> LabelScore:
        """The scores from counts; a share of nothing is 0."""
        precision, recall = both / max(1, predicted), both / max(1, support)
        return cls(label, precision, recall, 2 * both / max(1, predicted + support), support, predicted)


@dataclass(frozen=True)
class Mistake:
    """A wrong answer."""

    row: int  # of the evaluated examples, from 1
    text: str
    pair: str | None
    gold: str
    predicted: str
    probability: float | None  # given to the wrong answer; for `score`, None
    cost: float  # the order of the list: the cost of the answer under the log loss, or the distance of a score


class Confusion(NamedTuple):
    """Counts by true label (rows) and predicted label (columns)."""

    labels: tuple[str, ...]
    counts: Array  # [k, k]


@dataclass(frozen=True)
class Outcome:
    """The answers of a task to labelled examples."""

    kind: Kind
    labels: tuple[str, ...]
    examples: Sequence[Example] = field(repr=False)
    classes: tuple[LabelScore, ...] = ()
    gold: Array | None = field(default=None, repr=False)  # as in `TaskKind.gold`; for tags, one number a word
    predicted: Array | None = field(default=None, repr=False)
    probabilities: Array | None = field(default=None, repr=False)  # [rows, labels]
    all_mistakes: tuple[Mistake, ...] = field(default=(), repr=False)  # the worst first
    further: dict[str, float] = field(default_factory=dict)  # metrics of kinds that compute their own

    @property
    def confusion(self) -> Confusion | None:
        """The confusion matrix of the kinds `label` and `tags`."""
        if self.kind not in ("label", "tags") or self.gold is None or self.predicted is None:
            return None
        counts = np.zeros((len(self.labels), len(self.labels)), int)
        np.add.at(counts, (self.gold, self.predicted), 1)
        return Confusion(self.labels, counts)

    @property
    def reliability(self) -> Reliability | None:
        """Confidence against accuracy, for kinds with calibrated probabilities."""
        if self.probabilities is None or self.gold is None:
            return None
        return reliability(self.kind, self.probabilities, self.gold)

    def one_hot(self) -> Array:
        """The true labels of the kinds `label` and `labels` as booleans [rows, labels]."""
        assert self.gold is not None
        return self.gold if self.kind == "labels" else np.eye(len(self.labels), dtype=bool)[self.gold]

    def curves(self) -> dict[str, ranking.Curve]:
        """Recall and precision at each threshold, by label; of two labels only the positive one."""
        if self.probabilities is None:
            return {}
        gold, shown = self.one_hot(), self.labels
        if self.kind == "label" and len(self.labels) == 2:
            shown = (positive_label(self.labels),)
        numbers = [self.labels.index(label) for label in shown]
        return {
            self.labels[i]: ranking.precision_recall(gold[:, i], self.probabilities[:, i])
            for i in numbers
            if gold[:, i].any()
        }

    def scores(self) -> dict[str, float]:
        """All metrics that apply, as fractions."""
        found = dict(self.further)
        if self.gold is None or self.predicted is None or self.kind == "tags":
            return found
        for name, metric in METRICS.items():
            two_only = name in ("f1", "precision", "recall")
            if self.kind in metric.kinds and (not two_only or len(self.labels) == 2):
                found[name] = score(name, self.gold, self.predicted, self.labels)
        if self.probabilities is not None:
            gold = self.one_hot()
            of_two = self.kind == "label" and len(self.labels) == 2
            positive = self.labels.index(positive_label(self.labels)) if of_two else None
            counted = [i for i in ranking.ranked_labels("", self.labels, positive) if 0 < gold[:, i].sum() < len(gold)]
            for name in ranking.RANKING if counted else ():
                measure = ranking.measure_of(name, gold, self.probabilities, counted)
                found[name] = float(measure(np.ones((1, len(gold))))[0])
        return found

    def mistakes(self, count: int) -> tuple[Mistake, ...]:
        """The worst mistakes, the worst first."""
        return self.all_mistakes[:count]

    def to_dict(self, mistakes: int = 0) -> dict[str, Any]:
        """Plain JSON values."""
        confusion, found = self.confusion, self.reliability
        return {
            "scores": self.scores(),
            "classes": [asdict(row) for row in self.classes],
            "confusion": None
            if confusion is None
            else {"labels": list(confusion.labels), "counts": confusion.counts.tolist()},
            "calibration": None if found is None else found.to_dict(),
            "mistakes": [asdict(mistake) for mistake in self.mistakes(mistakes)],
        }


def outcome_of(
    task_kind: TaskKind, examples: Sequence[Example], inputs: Inputs, predictions: Sequence[Array]
) -> Outcome:
    """The outcome of predictions, as `TaskKind.measure` takes them."""
    kind, labels = task_kind.kind, task_kind.labels
    if kind == "tags":
        return _tags(task_kind, examples, inputs, predictions)
    if kind in RATIOS:
        further = {
            metric: task_kind.measure(metric, examples, inputs, predictions, 0).value
            for metric in RATIOS[kind]
            if ":" not in metric
        }
        wrong = _wrong_spans(task_kind, examples, inputs, predictions) if kind == "span" else ()
        return Outcome(kind, labels, examples, all_mistakes=wrong, further=further)
    probabilities = np.stack(list(predictions))
    gold, predicted = task_kind.gold(examples), task_kind.decide(probabilities)
    if kind == "score":
        return Outcome(
            kind, labels, examples, gold=gold, predicted=predicted, all_mistakes=_far(examples, gold, predicted)
        )
    one_hot = np.eye(len(labels), dtype=bool)
    true, chosen = (a if kind == "labels" else one_hot[a] for a in (gold, predicted))
    counts = zip(labels, (true & chosen).sum(axis=0), chosen.sum(axis=0), true.sum(axis=0), strict=True)
    classes = tuple(LabelScore.of(label, int(b), int(p), int(s)) for label, b, p, s in counts)
    wrong = _wrong_labels(labels, examples, true, chosen, probabilities, several=kind == "labels")
    return Outcome(kind, labels, examples, classes, gold, predicted, probabilities, wrong)


def _wrong_labels(
    labels: Sequence[str], examples: Sequence[Example], true: Array, chosen: Array, p: Array, *, several: bool
) -> tuple[Mistake, ...]:
    """The wrong rows by their log loss: true and chosen labels [rows, labels], probabilities [rows, labels]."""
    likely = np.clip(p.astype(float), 1e-12, 1.0)
    losses = np.where(true, -np.log(likely), -np.log(np.clip(1 - likely, 1e-12, 1.0)) if several else 0.0).sum(axis=1)
    wrong = np.flatnonzero((true != chosen).any(axis=1))
    mistakes = []
    for row in wrong[np.argsort(-losses[wrong], kind="stable")]:
        gold, found = (" | ".join(np.array(labels)[a[row]].tolist()) or "(none)" for a in (true, chosen))
        surest = float(p[row][chosen[row]].max()) if chosen[row].any() else None
        mistakes.append(_mistake(int(row), examples[row], gold, found, surest, float(losses[row])))
    return tuple(mistakes)


def _far(examples: Sequence[Example], gold: Array, predicted: Array) -> tuple[Mistake, ...]:
    """All rows of a score, by their distance from the true score."""
    distance = np.abs(gold - predicted)
    order = np.argsort(-distance, kind="stable")
    return tuple(
        _mistake(int(row), examples[row], f"{gold[row]:g}", f"{predicted[row]:.4g}", None, float(distance[row]))
        for row in order
        if distance[row] > 0
    )


def _wrong_spans(
    task_kind: TaskKind, examples: Sequence[Example], inputs: Inputs, predictions: Sequence[Array]
) -> tuple[Mistake, ...]:
    """The questions without an exact match, the most confident answers first."""
    from intarsia.tasks import squad_score

    mistakes = []
    for row, (example, answer) in enumerate(
        zip(examples, task_kind.describe_all(examples, inputs, predictions), strict=True)
    ):
        gold = [text for _, text in getattr(example, "answers", None) or ()]
        if squad_score.exact_match(answer["answer"], gold, v2=not gold) < 1:
            p = float(answer.get("probability", 0.0))
            shown = " | ".join(dict.fromkeys(gold)) or "(no answer)"
            mistakes.append(_mistake(row, example, shown, answer["answer"] or "(no answer)", p, p))
    return tuple(sorted(mistakes, key=lambda m: -m.cost))


def _tags(task_kind: TaskKind, examples: Sequence[Example], inputs: Inputs, predictions: Sequence[Array]) -> Outcome:
    """The outcome of a tagging task: entity types if the tags mark entities, else tags; confusions word by word."""
    from intarsia.tasks.tagging import Tags

    assert isinstance(task_kind, Tags)
    labels = task_kind.labels
    number = {label: i for i, label in enumerate(labels)}
    found = task_kind.tagged(examples, inputs, predictions)
    true = [example.label for example in examples]
    gold = np.array([number[tag] for tags in true for tag in tags])  # type: ignore[union-attr]
    predicted = np.array([number[tag] for tags in found for tag, _ in tags])
    if has_entities(labels):
        pairs = [
            (set(entities(list(a))), set(entities([tag for tag, _ in b])))  # type: ignore[arg-type]
            for a, b in zip(true, found, strict=True)
        ]
        types = sorted({e.type for both in pairs for side in both for e in side})
        classes = tuple(
            LabelScore.of(
                type_,
                sum(len({e for e in a & b if e.type == type_}) for a, b in pairs),
                sum(sum(e.type == type_ for e in b) for _, b in pairs),
                sum(sum(e.type == type_ for e in a) for a, _ in pairs),
            )
            for type_ in types
        )
    else:
        both, chosen, support = (
            np.bincount(a, minlength=len(labels)) for a in (gold[gold == predicted], predicted, gold)
        )
        classes = tuple(
            LabelScore.of(label, int(b), int(c), int(s))
            for label, b, c, s in zip(labels, both, chosen, support, strict=True)
        )
    metrics = [m for m in RATIOS["tags"] if m != "f1-entities" or has_entities(labels)]
    further = {m: task_kind.measure(m, examples, inputs, predictions, 0).value for m in metrics}
    return Outcome(
        "tags", labels, examples, classes, gold, predicted, all_mistakes=_wrong_words(examples, found), further=further
    )


def _wrong_words(examples: Sequence[Example], found: Sequence[Sequence[tuple[str, float]]]) -> tuple[Mistake, ...]:
    """The sentences with wrong tags, those with the most confident wrong tags first."""
    mistakes = []
    for row, (example, tags) in enumerate(zip(examples, found, strict=True)):
        assert isinstance(example, Sentence) and isinstance(example.label, tuple)
        wrong = [
            (word, true, tag, p)
            for word, true, (tag, p) in zip(example.words, example.label, tags, strict=True)
            if tag != true
        ]
        if wrong:
            gold = ", ".join(f"{word}: {true}" for word, true, _, _ in wrong)
            predicted = ", ".join(f"{word}: {tag}" for word, _, tag, _ in wrong)
            surest = max(p for *_, p in wrong)
            mistakes.append(_mistake(row, example, gold, predicted, surest, sum(p for *_, p in wrong)))
    return tuple(sorted(mistakes, key=lambda m: -m.cost))


def _mistake(row: int, example: Example, gold: str, predicted: str, probability: float | None, cost: float) -> Mistake:
    return Mistake(row + 1, example.text, example.pair, gold, predicted, probability, cost)
