"""Extractive question answering: the answer to a question is a span of a context, or there is none (as in SQuAD 2.0).

Question and context make a row; a long context makes several, overlapping ones. The head has two outputs a token, for
the answer's first and last token. A row without the answer points to its first token, as BERT's program for SQuAD has
it; so does every row of a question without an answer.
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
from intarsia.tasks import squad_score
from intarsia.tasks.examples import Example, Kind, Question
from intarsia.tasks.inputs import Inputs
from intarsia.tasks.labels import plain
from intarsia.tasks.metrics import Interval, bootstrap_ratio, check_metric
from intarsia.tasks.task_kind import TaskKind

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder

OVERLAP = 3  # neighbouring rows of a context share a third of max_length, 128 of 384, or half of a context's room
QUESTION = 64  # tokens of a question, at most
LONGEST = 30  # tokens of an answer, at most
BEST = 20  # candidates of a question, and first and last tokens tried in a row
SHOWN = 5  # candidates in an answer


class Candidate(NamedTuple):
    text: str
    start: int  # character of the context
    score: float
    probability: float


class Decoded(NamedTuple):
    """What was found for a question, best first, and by how much no answer is better than the best."""

    candidates: list[Candidate]
    no_answer: float
    no_answer_probability: float  # where questions without an answer are expected


@dataclass(frozen=True)
class Spans(TaskKind):
    """How the outputs [tokens, 2] of a task over spans are to be read."""

    reads_tokens = True
    max_length = 384
    reported = ("f1", "exact-match")

    no_answer: bool = False  # whether questions may have no answer
    threshold: float = 0.0  # none is given where no answer is better by more than this

    @classmethod
    def learn(cls, kind: Kind, labels: tuple[str, ...], train: Sequence[Example]) -> Spans:
        return cls(kind, no_answer=any(not _gold(example) for example in train))

    @property
    def outputs(self) -> int:
        return 2

    def inputs(
        self, examples: Sequence[Example], encoder: Encoder, max_length: int | None, *, training: bool = False
    ) -> Inputs:
        limit = min(max_length or encoder.max_length, encoder.max_length)
        longest = max(1, min(QUESTION, limit // 3))
        asked = [e.text for e in examples]
        for text, segment, characters in windows(encoder, asked):
            inner = characters[characters[:, 0] >= 0]
            if len(inner) > longest:
                asked[text] = asked[text][: inner[longest - 1, 1]]
            del segment
        room = limit - longest - encoder.tokenizer.num_special_tokens_to_add(pair=True)
        if room < 2:
            raise IntarsiaError(f"max_length {limit} leaves no room for a context beside the question; raise it.")
        contexts = [e.pair or "" for e in examples]
        found = list(windows(encoder, asked, contexts, max_length=limit, overlap=min(limit // OVERLAP, room // 2)))
        return Inputs([w.segment for w in found], [w.text for w in found], [w.characters for w in found])

    def row_targets(self, examples: Sequence[Example], inputs: Inputs) -> Tensor:
        """[rows, 2] the answer's first and last token; the row's first token where the answer is not in it."""
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
        """Mean over the rows, and over first and last."""
        lengths = lengths_of(segments, logits.device)
        there = torch.arange(int(lengths.max()), device=logits.device) < lengths[:, None]  # [rows, longest]
        padded = logits.new_full((*there.shape, 2), -torch.inf)
        padded[there] = logits
        return (F.cross_entropy(padded[..., 0], targets[:, 0]) + F.cross_entropy(padded[..., 1], targets[:, 1])) / 2

    def probabilities(self, logits: Tensor) -> np.ndarray:
        """[tokens, 2] the logits: rows of one question are compared by them."""
        return logits.detach().float().cpu().numpy()

    def decode(self, examples: Sequence[Example], inputs: Inputs, predictions: Sequence[np.ndarray]) -> list[Decoded]:
        rows: list[list[int]] = [[] for _ in examples]
        for row, owner in enumerate(inputs.owners):
            rows[owner].append(row)
        return [
            self._decode(example.pair or "", [(inputs.places[r], predictions[r]) for r in own])
            for example, own in zip(examples, rows, strict=True)
        ]

    def _decode(self, context: str, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> Decoded:
        none = min((float(predictions[0].sum()) for _, predictions in rows), default=0.0)
        found: dict[str, tuple[float, int]] = {}  # by text: the best score, and where
        for characters, predictions in rows:
            for score, start, end in _best_spans(characters, predictions):
                text = context[start:end]
                if text.strip() and score > found.get(text, (-np.inf, 0))[0]:
                    found[text] = (score, start)
        ranked = sorted(found.items(), key=lambda one: (-one[1][0], one[1][1]))[:BEST]
        scores = np.array([score for _, (score, _) in ranked] + ([none] if self.no_answer else []))
        weights = np.exp(scores - scores.max()) if len(scores) else scores
        weights = weights / weights.sum() if len(scores) else weights
        candidates = [
            Candidate(text, start, score, float(p))
            for (text, (score, start)), p in zip(ranked, weights[: len(ranked)], strict=True)
        ]
        best = candidates[0].score if candidates else -np.inf
        return Decoded(candidates, none - best, float(weights[-1]) if self.no_answer else 0.0)

    def answer(self, decoded: Decoded) -> str:
        """The answer's text; empty for none."""
        if not decoded.candidates or (self.no_answer and decoded.no_answer > self.threshold):
            return ""
        return decoded.candidates[0].text

    def tune(self, examples: Sequence[Example], inputs: Inputs, predictions: Sequence[np.ndarray]) -> dict[str, Any]:
        """The threshold that gives the best F1 on these examples."""
        if not self.no_answer:
            return {}
        found = self.decode(examples, inputs, predictions)
        gains = []  # what answering gives, over giving no answer
        for example, one in zip(examples, found, strict=True):
            gold = [text for _, text in _gold(example)]
            best = one.candidates[0].text if one.candidates else ""
            gains.append(squad_score.f1(best, gold, v2=True) - squad_score.f1("", gold, v2=True))
        scores = np.array([one.no_answer for one in found])
        order = np.argsort(scores, kind="stable")
        scores, totals = scores[order], np.cumsum(np.array(gains)[order])  # answering the first 1, 2, … of them
        allowed = np.append(np.diff(scores) > 0, True) & np.isfinite(scores)  # equal ones are answered together
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
        check_metric(metric, self.kind, self.labels)
        v2 = self.no_answer or any(not _gold(example) for example in examples)
        name, _, part = metric.partition(":")
        score = squad_score.f1 if name == "f1" else squad_score.exact_match
        counts = []
        for example, decoded in zip(examples, self.decode(examples, inputs, predictions), strict=True):
            gold = [text for _, text in _gold(example)]
            counted = not part or (part == "answered") == bool(gold)
            counts.append((score(self.answer(decoded), gold, v2=v2), 1.0) if counted else (0.0, 0.0))
        return bootstrap_ratio(np.array(counts), resamples=resamples)

    def describe_all(
        self, examples: Sequence[Example], inputs: Inputs, predictions: Sequence[np.ndarray]
    ) -> list[dict[str, Any]]:
        made = []
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
            made.append(answer)
        return made

    def asked(self, text: Any, task: str, pairs: bool) -> Example:
        if isinstance(text, Question):
            return text
        if isinstance(text, str) or len(text) != 2 or not all(isinstance(t, str) and t.strip() for t in text):
            raise IntarsiaError(f"the task {task!r} answers questions about a text: give (question, context).")
        return Question(text[0], text[1])

    def to_dict(self) -> dict[str, Any]:
        return {"no_answer": self.no_answer, "threshold": self.threshold}


def _best_spans(characters: np.ndarray, predictions: np.ndarray) -> list[tuple[float, int, int]]:
    """(score, first character, the one after the last) of the most likely spans of a row."""
    inner = np.flatnonzero(characters[:, 0] >= 0)
    if not len(inner):
        return []
    first = inner[np.argsort(-predictions[inner, 0], kind="stable")[:BEST]]
    last = inner[np.argsort(-predictions[inner, 1], kind="stable")[:BEST]]
    width = last[None, :] - first[:, None]
    a, b = np.nonzero((width >= 0) & (width < LONGEST))
    scores = predictions[first[a], 0] + predictions[last[b], 1]
    chosen = np.argsort(-scores, kind="stable")[:BEST]
    return [(float(scores[i]), int(characters[first[a[i]], 0]), int(characters[last[b[i]], 1])) for i in chosen]


def read_question(row: Mapping[str, Any], question: str, context: str, answers: str | None, where: str) -> Question:
    """A row of a data file. `answers` has texts and where they begin, as SQuAD's files or as the hub's rows have them;
    None: they are not wanted."""
    for column in (question, context):
        if not isinstance(row.get(column), str) or not row[column].strip():
            raise DataError(f"{where}: {column} is {row.get(column)!r}. Expected a text.")
    found = None if answers is None else _answers(plain(row.get(answers)), row[context], where)
    if found and row.get("is_impossible"):
        raise DataError(f"{where}: has answers, though it is marked impossible. Mend it, or drop the question.")
    return Question(row[question], row[context], None, str(row.get("id", "")), found)


def _answers(given: Any, context: str, where: str) -> tuple[tuple[int, str], ...]:
    try:
        if isinstance(given, Mapping):
            found = list(zip(given["answer_start"], given["text"], strict=True))
        else:
            found = [(one["answer_start"], one["text"]) for one in given]
        pairs = [(int(start), text) for start, text in found]
    except (KeyError, TypeError, ValueError):
        raise DataError(
            f"{where}: {given!r} are no answers. Expected a list of objects with text and answer_start."
        ) from None
    for start, text in pairs:
        there = context[start : start + len(text)] if start >= 0 and isinstance(text, str) else ""
        if not text or there != text:
            raise DataError(
                f"{where}: the answer {text!r} does not stand at character {start} of the context, where {there!r} is. "
                "Mend it, or drop the question."
            )
    return tuple(pairs)


def _gold(example: Example) -> tuple[tuple[int, str], ...]:
    assert isinstance(example, Question)
    return example.answers or ()
