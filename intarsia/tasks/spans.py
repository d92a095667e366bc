"""Extractive question answering: the answer is a span of a context, or the question has no answer (as in SQuAD 2.0).

Question and context make a row; a long context makes several overlapping rows. The head has two outputs per token, for
the answer's first and last token. A row that does not contain the answer points to its own first token, as in BERT's
program for SQuAD. Every row of a question without an answer does the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder.packed import Segment, lengths_of
from intarsia.encoder.windows import windows
from intarsia.errors import DataError, IntarsiaError
from intarsia.formatting import shown
from intarsia.tasks import squad_score
from intarsia.tasks.examples import Example, Kind, Question
from intarsia.tasks.inputs import Inputs
from intarsia.tasks.intervals import widened
from intarsia.tasks.labels import plain
from intarsia.tasks.metrics import Interval, bootstrap_ratio, check_metric
from intarsia.tasks.task_kind import TaskKind, Tuning

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder

# Neighbouring rows of a context share 1/OVERLAP of max_length (128 of 384), or half of the tokens that a context gets
# in a row if that is less.
OVERLAP = 3
QUESTION = 64  # the most tokens of a question
LONGEST = 30  # the most tokens of an answer
BEST = 20  # candidates kept per question, and first and last tokens tried per row
SHOWN = 5  # candidates shown in an answer


class SpanCandidate(NamedTuple):
    text: str
    start: int  # its first character in the context
    score: float
    probability: float


class Decoded(NamedTuple):
    """The candidates for one question, best first, and the scores of "no answer"."""

    candidates: list[SpanCandidate]
    no_answer: float  # the score of "no answer" minus the score of the best candidate
    no_answer_probability: float  # 0 unless the task has questions without an answer


@dataclass(frozen=True)
class Spans(TaskKind):
    """The task kind `span`. The head gives two logits per token [N, 2]: first and last token of the answer."""

    reads_tokens = True
    max_length = 384
    reported = ("f1", "exact-match")

    no_answer: bool = False  # some questions have no answer
    threshold: float = 0.0  # "no answer" wins if its score exceeds the best candidate's by more than this

    @classmethod
    def learn(cls, kind: Kind, labels: tuple[str, ...], train: Sequence[Example]) -> Spans:
        """The task kind for these training questions."""
        return cls(kind, no_answer=any(not _gold(example) for example in train))

    @property
    def outputs(self) -> int:
        return 2

    def inputs(
        self, examples: Sequence[Example], encoder: Encoder, max_length: int | None, *, training: bool = False
    ) -> Inputs:
        """One row or several overlapping rows per question. `places` of a row: each token's characters [tokens, 2] in
        the context, -1 outside it."""
        limit = min(max_length or encoder.max_length, encoder.max_length)
        longest = max(1, min(QUESTION, limit // 3))
        questions, cut = [e.text for e in examples], set()
        for number, _, characters in windows(encoder, questions):
            inner = characters[characters[:, 0] >= 0]
            if len(inner) > longest:
                questions[number] = questions[number][: inner[longest - 1, 1]]
                cut.add(number)
        room = limit - longest - encoder.tokenizer.num_special_tokens_to_add(pair=True)
        if room < 2:
            raise IntarsiaError(f"max_length {limit} leaves no room for a context after the question; raise it.")
        contexts = [e.pair or "" for e in examples]
        found = list(windows(encoder, questions, contexts, max_length=limit, overlap=min(limit // OVERLAP, room // 2)))
        segments = [w.segment._replace(truncated=True) if w.text in cut else w.segment for w in found]
        return Inputs(segments, [w.text for w in found], [w.characters for w in found])

    def row_targets(self, examples: Sequence[Example], inputs: Inputs) -> Tensor:
        """The answer's first and last token in each row [R, 2]; 0, 0 in a row that does not contain the answer."""
        targets = np.zeros((len(inputs.segments), 2), np.int64)
        for row, (owner, characters) in enumerate(zip(inputs.owners, inputs.places, strict=True)):
            gold = _gold(examples[owner])
            inner = np.flatnonzero(characters[:, 0] >= 0)
            if not gold or not len(inner):
                continue
            start, end = gold[0][0], gold[0][0] + len(gold[0][1])
            starts, ends = characters[inner, 0], characters[inner, 1]
            if starts[0] <= start and end <= ends[-1]:
                first = max(0, int(np.searchsorted(starts, start, side="right")) - 1)
                last = int(np.searchsorted(ends, end, side="left"))
                targets[row] = inner[first], inner[max(first, last)]
        return torch.from_numpy(targets)

    def loss(self, logits: Tensor, targets: Tensor, segments: Sequence[Segment] = ()) -> Tensor:
        """The mean over the rows and over first and last token: logits [N, 2], targets [R, 2] → a scalar."""
        lengths = lengths_of(segments, logits.device)
        inside = torch.arange(int(lengths.max()), device=logits.device) < lengths[:, None]  # [R, longest row]
        padded = logits.new_full((*inside.shape, 2), -torch.inf)
        padded[inside] = logits
        return (F.cross_entropy(padded[..., 0], targets[:, 0]) + F.cross_entropy(padded[..., 1], targets[:, 1])) / 2

    def probabilities(self, logits: Tensor) -> np.ndarray:
        """The logits [N, 2] themselves: rows of one question are compared by their logits."""
        return logits.detach().float().cpu().numpy()

    def decode(self, examples: Sequence[Example], inputs: Inputs, predictions: Sequence[np.ndarray]) -> list[Decoded]:
        """The candidates for each question, from all of its rows."""
        rows: list[list[int]] = [[] for _ in examples]
        for row, owner in enumerate(inputs.owners):
            rows[owner].append(row)
        return [
            self._decode(example.pair or "", [(inputs.places[r], predictions[r]) for r in own_rows])
            for example, own_rows in zip(examples, rows, strict=True)
        ]

    def _decode(self, context: str, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> Decoded:
        """The candidates for one question; `rows` has the characters [tokens, 2] and logits [tokens, 2] of each row."""
        no_answer = min((float(logits[0].sum()) for _, logits in rows), default=0.0)
        found: dict[str, tuple[float, int]] = {}  # text -> its best score and its first character
        for characters, logits in rows:
            for score, start, end in _best_spans(characters, logits):
                text = context[start:end]
                if text.strip() and score > found.get(text, (-np.inf, 0))[0]:
                    found[text] = (score, start)
        ranked = sorted(found.items(), key=lambda item: (-item[1][0], item[1][1]))[:BEST]
        scores = np.array([score for _, (score, _) in ranked] + ([no_answer] if self.no_answer else []))
        weights = np.exp(scores - scores.max()) if len(scores) else scores
        weights = weights / weights.sum() if len(scores) else weights
        candidates = [
            SpanCandidate(text, start, score, float(p))
            for (text, (score, start)), p in zip(ranked, weights[: len(ranked)], strict=True)
        ]
        best = candidates[0].score if candidates else -np.inf
        return Decoded(candidates, no_answer - best, float(weights[-1]) if self.no_answer else 0.0)

    def answer(self, decoded: Decoded) -> str:
        """The answer's text; empty if the question has no answer."""
        if not decoded.candidates or (self.no_answer and decoded.no_answer > self.threshold):
            return ""
        return decoded.candidates[0].text

    def tune(
        self,
        examples: Sequence[Example],
        inputs: Inputs,
        predictions: Sequence[np.ndarray],
        tuning: Tuning = Tuning(),  # noqa: B008 (a frozen value)
    ) -> dict[str, Any]:
        """The threshold that gives the best F1 on these examples; nothing if all questions have answers."""
        if not self.no_answer:
            return {}
        found = self.decode(examples, inputs, predictions)
        gains = []  # per question: F1 of the best candidate minus F1 of "no answer"
        for example, decoded in zip(examples, found, strict=True):
            gold = [text for _, text in _gold(example)]
            best = decoded.candidates[0].text if decoded.candidates else ""
            gains.append(squad_score.f1(best, gold, v2=True) - squad_score.f1("", gold, v2=True))
        scores = np.array([decoded.no_answer for decoded in found])
        order = np.argsort(scores, kind="stable")
        scores, totals = (
            scores[order],
            np.cumsum(np.array(gains)[order]),
        )  # answering the first 1, 2, … questions
        allowed = np.append(np.diff(scores) > 0, True) & np.isfinite(scores)  # no threshold separates equal scores
        totals = np.where(allowed, totals, -np.inf)
        best_at = int(totals.argmax())
        if totals[best_at] <= 0:
            return {"threshold": float(scores[0]) - 1.0 if np.isfinite(scores[0]) else 0.0}
        above = scores[best_at + 1] if best_at + 1 < len(scores) else scores[best_at] + 2.0
        return {"threshold": float((scores[best_at] + above) / 2 if np.isfinite(above) else scores[best_at])}

    def tuned(self, found: Mapping[str, Any]) -> Spans:
        return dataclasses.replace(self, threshold=found.get("threshold", self.threshold))

    def measure(
        self,
        metric: str,
        examples: Sequence[Example],
        inputs: Inputs,
        predictions: Sequence[np.ndarray],
        resamples: int,
    ) -> Interval:
        """The metric of the decoded answers. `:answered` and `:unanswered` count only questions with or without one."""
        check_metric(metric, self.kind, self.labels)
        v2 = self.no_answer or any(not _gold(example) for example in examples)
        name, _, part = metric.partition(":")
        score = squad_score.f1 if name == "f1" else squad_score.exact_match
        counts = []
        for example, decoded in zip(examples, self.decode(examples, inputs, predictions), strict=True):
            gold = [text for _, text in _gold(example)]
            counted = not part or (part == "answered") == bool(gold)
            counts.append((score(self.answer(decoded), gold, v2=v2), 1.0) if counted else (0.0, 0.0))
        found = bootstrap_ratio(np.array(counts), resamples=resamples)
        return widened(found, sum(counted for _, counted in counts)) if resamples else found

    def describe_all(
        self, examples: Sequence[Example], inputs: Inputs, predictions: Sequence[np.ndarray]
    ) -> list[dict[str, Any]]:
        """One answer per question: text, first character, probability, and the best candidates."""
        answers = []
        for decoded in self.decode(examples, inputs, predictions):
            text, best = self.answer(decoded), decoded.candidates[:1]
            answer: dict[str, Any] = {"answer": text}
            if text:
                answer |= {"start": best[0].start, "probability": best[0].probability}
            else:
                answer["probability"] = decoded.no_answer_probability
            if self.no_answer:
                answer["no_answer_score"] = decoded.no_answer
            shown = decoded.candidates[:SHOWN]
            answer["candidates"] = [{"text": c.text, "start": c.start, "probability": c.probability} for c in shown]
            answers.append(answer)
        return answers

    def parse_request(self, text: Any, task: str, pairs: bool) -> Example:
        """A question with its context, given as a `Question` or as (question, context)."""
        if isinstance(text, Question):
            return text
        if (
            not isinstance(text, list | tuple)
            or len(text) != 2
            or not all(isinstance(t, str) and t.strip() for t in text)
        ):
            raise IntarsiaError(f"the task {task!r} answers questions about a text: give (question, context).")
        return Question(text[0], text[1])

    def to_dict(self) -> dict[str, Any]:
        return {"no_answer": self.no_answer, "threshold": self.threshold}


def _best_spans(characters: np.ndarray, logits: np.ndarray) -> list[tuple[float, int, int]]:
    """(score, first character, end character) of the most likely spans of a row."""
    inner = np.flatnonzero(characters[:, 0] >= 0)
    if not len(inner):
        return []
    first = inner[np.argsort(-logits[inner, 0], kind="stable")[:BEST]]
    last = inner[np.argsort(-logits[inner, 1], kind="stable")[:BEST]]
    width = last[None, :] - first[:, None]
    a, b = np.nonzero((width >= 0) & (width < LONGEST))
    scores = logits[first[a], 0] + logits[last[b], 1]
    chosen = np.argsort(-scores, kind="stable")[:BEST]
    return [(float(scores[i]), int(characters[first[a[i]], 0]), int(characters[last[b[i]], 1])) for i in chosen]


def read_question(row: Mapping[str, Any], question: str, context: str, answers: str | None, where: str) -> Question:
    """The question of one data row; `question`, `context` and `answers` name its columns.

    Answers have a text and a first character, in the form of SQuAD's files or of the hub's rows. `answers` None:
    answers are not read.
    """
    for column in (question, context):
        if not isinstance(row.get(column), str) or not row[column].strip():
            raise DataError(f"{where}: {column} is {shown(row.get(column))}. Expected a text.")
    found = None if answers is None else _answers(plain(row.get(answers)), row[context], where)
    if found and row.get("is_impossible"):
        raise DataError(f"{where}: has answers, but is_impossible is set. Correct it, or drop the question.")
    return Question(row[question], row[context], None, str(row.get("id", "")), found)


def _answers(given: Any, context: str, where: str) -> tuple[tuple[int, str], ...]:
    """The answers as (first character, text), checked against the context."""
    try:
        if isinstance(given, Mapping):
            found = list(zip(given["answer_start"], given["text"], strict=True))
        else:
            found = [(answer["answer_start"], answer["text"]) for answer in given]
        pairs = [(int(start), text) for start, text in found]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise DataError(
            f"{where}: {shown(given)} cannot be read as answers. Expected a list of objects with text and answer_start."
        ) from None
    for start, text in pairs:
        found_text = context[start : start + len(text)] if start >= 0 and isinstance(text, str) else ""
        if not text or found_text != text:
            raise DataError(
                f"{where}: the answer {shown(text)} is not at character {start} of the context; {shown(found_text)} is "
                "there. "
                "Correct it, or drop the question."
            )
    return tuple(pairs)


def _gold(example: Example) -> tuple[tuple[int, str], ...]:
    """The true answers; empty if the question has none."""
    assert isinstance(example, Question)
    return example.answers or ()
