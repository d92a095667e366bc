"""Which words carried an answer: occlusion (leave each word out) and integrated gradients (Sundararajan et al., 2017).

Both run many variants of a text in packed passes. Both measure the log odds of a label, or the score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import Segment
from intarsia.errors import IntarsiaError, PrecisionError, check_choice, did_you_mean
from intarsia.serve.explanation import By, Explanation, WordEffect
from intarsia.serve.gradients import Path, integrate, token_words
from intarsia.serve.limits import Limits
from intarsia.serve.predictor import Predictor
from intarsia.serve.served import Served
from intarsia.serve.words import Span, without, words
from intarsia.tasks.examples import Example
from intarsia.tasks.task_kind import TaskKind

KINDS = ("label", "labels", "score")


def check(kind: str, labels: Sequence[str], by: str, label: str | None, name: str) -> None:
    """Raise if a task's answers cannot be explained, or not with these options. It needs no base."""
    if kind not in KINDS:
        raise IntarsiaError(
            f"{name!r} is a task of the kind {kind}, whose answers cannot be explained; expected {', '.join(KINDS)}."
        )
    check_choice("by", by, ("occlusion", "gradients"))
    if label is not None and label not in labels:
        have = f"Its labels: {', '.join(labels)}." if labels else "It has no labels: leave the label out."
        raise IntarsiaError(f"{name!r} has no label {label!r}.{did_you_mean(label, labels)} {have}")


def explain(
    task: Served, examples: Sequence[Example], encoder: Encoder, *, by: By = "occlusion", label: str | None = None
) -> list[Explanation]:
    """Return an explanation of the answer for each example. `label`: the label to explain; None: the likeliest."""
    if by == "gradients" and encoder.precision == "int8":
        raise PrecisionError("an int8 base has no gradients. Explain by occlusion, or with the precision float32.")
    explained = [_Explained(task, example, encoder) for example in examples]
    variants = [each.variants() if by == "occlusion" else [each.example] for each in explained]
    predictor = Predictor(encoder, Limits(slots=1))
    segments = task.interface.inputs(list(chain.from_iterable(variants)), encoder).segments
    logits = iter(predictor.logits([(task, segment) for segment in segments]) if segments else [])
    found: list[Explanation] = []
    first = 0
    for each, texts in zip(explained, variants, strict=True):
        outputs = torch.stack([next(logits).float() for _ in texts])
        own, first = segments[first], first + len(texts)
        output = each.chosen(outputs[0], label)
        made = each.explanation(outputs[0], output, by, own)
        if by == "occlusion":
            found.append(each.by_occlusion(made, outputs, output))
        else:
            found.append(each.by_gradients(made, own, predictor, output))
    return found


def margin(kind: TaskKind, logits: Tensor, output: int) -> Tensor:
    """Return how much the logits [V, k] speak for an output [V]: the log odds of its probability, or the score."""
    if kind.kind == "score":
        return logits[:, 0] * kind.spread + kind.mean
    z = logits / kind.temperature
    if kind.kind == "labels":
        return z[:, output]
    others = [i for i in range(z.shape[1]) if i != output]
    return z[:, output] - z[:, others].logsumexp(1)


class _Explained:
    """One example, its words, and what is said about them."""

    def __init__(self, task: Served, example: Example, encoder: Encoder) -> None:
        self.task, self.example, self.encoder = task, example, encoder
        self.kind = task.interface.task_kind
        self.spans: list[tuple[str, Span]] = [("text", span) for span in words(example.text)]
        self.spans += [("pair", span) for span in words(example.pair or "")]

    def variants(self) -> list[Example]:
        """Return the example, and the example without each of its words."""
        changed = [
            replace(self.example, **{field: without(getattr(self.example, field), span)}) for field, span in self.spans
        ]
        return [self.example, *changed]

    def chosen(self, logits: Tensor, label: str | None) -> int:
        """Return the number of the output that is explained."""
        if self.kind.kind == "score":
            return 0
        return int(logits.argmax()) if label is None else self.kind.labels.index(label)

    def explanation(self, logits: Tensor, output: int, by: By, segment: Segment) -> Explanation:
        """Return the explanation without its words."""
        kind, example = self.kind, self.example
        return Explanation(
            task=self.task.name,
            version=self.task.version,
            by=by,
            label=kind.labels[output] if kind.labels else None,
            answer=float(kind.probabilities(logits[None])[0, output]),
            value=float(margin(kind, logits[None], output)[0]),
            text=example.text,
            pair=example.pair,
            words=(),
            unread=self.unread(segment) if segment.truncated else 0,
        )

    def unread(self, segment: Segment) -> int:
        """Return how many words have no token in the segment."""
        tokens = token_words(self.encoder, self.example, segment, self.spans)
        return len(self.spans) - len({word for word in tokens if word >= 0}) if tokens is not None else 0

    def by_occlusion(self, made: Explanation, logits: Tensor, output: int) -> Explanation:
        """`logits`: those of the text, and of the text without each word [1 + words, k]."""
        values = margin(self.kind, logits, output)
        effects = (values[0] - values[1:]).tolist()
        answers = self.kind.probabilities(logits)[1:, output].tolist()
        return replace(made, words=self._words(effects, answers))

    def by_gradients(self, made: Explanation, segment: Segment, predictor: Predictor, output: int) -> Explanation:
        owners = token_words(self.encoder, self.example, segment, self.spans)
        if owners is None:
            raise IntarsiaError(
                "this base's tokenizer does not say which characters a token stands for, which gradients need. "
                "Explain by occlusion."
            )
        path = Path(predictor, predictor.hold(self.task), segment, lambda z: margin(self.kind, z.float(), output))
        found = integrate(path)
        effects, rest = [0.0] * len(self.spans), 0.0
        for word, effect in zip(owners, found.effects, strict=True):
            if word < 0:
                rest += effect
            else:
                effects[word] += effect
        return replace(
            made, words=self._words(effects), baseline=found.baseline, rest=rest, error=found.error, steps=found.steps
        )

    def _words(self, effects: Sequence[float], answers: Sequence[float] | None = None) -> tuple[WordEffect, ...]:
        return tuple(
            WordEffect(
                word=getattr(self.example, field)[start:end],
                start=start,
                end=end,
                effect=effect,
                without=None if answers is None else answers[i],
                field=field,  # type: ignore[arg-type]
            )
            for i, ((field, (start, end)), effect) in enumerate(zip(self.spans, effects, strict=True))
        )
