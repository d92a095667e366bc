"""The published scores of Houlsby et al. 2019. None of them was measured here.

The GLUE scores are BERT-large's on the test server. The scores of the further tasks are BERT-base's on the authors' own
random tenth. Where our data has no test labels, we score on the official dev part, so the scores are not directly
comparable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedRow:
    """One method of a table: its score on each task, and the parameters that all tasks need."""

    scores: Mapping[str, float]  # by full task name; MNLI has two
    mean: float
    total: float | None  # parameters of all tasks, in multiples of the base
    share: float | None  # trained parameters per task, as a share of the base


@dataclass(frozen=True)
class PublishedTable:
    encoder: str
    evaluated_on: str
    rows: Mapping[str, PublishedRow]


MISMATCHED = "glue/mnli_mismatched"
GLUE_TASKS = (
    "glue/cola", "glue/sst2", "glue/mrpc", "glue/stsb", "glue/qqp", "glue/mnli", MISMATCHED, "glue/qnli", "glue/rte",
)  # fmt: skip


def _glue(total: float, share: float, mean: float, *scores: float) -> PublishedRow:
    return PublishedRow(dict(zip(GLUE_TASKS, scores, strict=True)), mean, total, share)


GLUE = PublishedTable(
    "BERT-large",
    "GLUE's test server",
    {
        "full": _glue(9.0, 1.0, 80.4, 60.5, 94.9, 89.3, 87.6, 72.1, 86.7, 85.9, 91.1, 70.1),
        "adapters": _glue(1.3, 0.036, 80.0, 59.5, 94.0, 89.5, 86.9, 71.8, 84.9, 85.1, 90.7, 71.5),
        "fixed": _glue(1.2, 0.021, 79.6, 56.9, 94.2, 89.6, 87.3, 71.8, 85.3, 84.6, 91.4, 68.8),
    },
)
GLUE_BY_SIZE = {8: 86.2, 64: 85.8, 256: 85.7}  # mean validation score

# columns: no BERT, full, variable, adapters
_FURTHER = {
    "20_newsgroups": (91.1, 92.8, 92.8, 91.7),
    "airline": (84.5, 83.6, 84.0, 84.5),
    "corporate_messaging": (91.9, 92.5, 92.4, 92.9),
    "disasters": (84.9, 85.3, 85.3, 84.1),
    "economic_news_relevance": (81.1, 82.1, 78.9, 82.5),
    "emotion": (36.3, 38.4, 37.6, 38.7),
    "global_warming": (82.7, 84.2, 81.9, 82.7),
    "political_audience": (80.8, 80.9, 80.7, 79.0),
    "political_bias": (76.8, 75.2, 76.5, 75.9),
    "political_message": (43.8, 38.9, 44.9, 44.1),
    "primary_emotions": (33.5, 36.9, 38.2, 33.9),
    "progressive_opinion": (70.6, 71.6, 75.9, 71.7),
    "progressive_stance": (54.3, 63.8, 61.5, 60.6),
    "us_economic_performance": (75.6, 75.3, 76.5, 77.3),
    "customer_complaints": (54.5, 55.9, 56.4, 55.4),
    "news_aggregator": (95.2, 96.3, 96.5, 96.2),
    "sms_spam": (98.5, 99.3, 99.3, 95.1),
}


def _further(column: int, mean: float, total: float | None, share: float | None) -> PublishedRow:
    return PublishedRow({f"extra/{name}": scores[column] for name, scores in _FURTHER.items()}, mean, total, share)


FURTHER = PublishedTable(
    "BERT-base",
    "a random tenth of each task",
    {
        "no_bert": _further(0, 72.7, None, None),
        "full": _further(1, 73.7, 17.0, 1.0),
        "variable": _further(2, 74.0, 9.9, 0.529),
        "adapters": _further(3, 73.3, 1.19, 0.0114),
    },
)

SQUAD_F1 = {"full": 90.7, "houlsby-64": 90.4, "houlsby-2": 89.9}  # BERT-base, dev, the best run


@dataclass(frozen=True)
class PublishedScore:
    """A single-task score from the paper's text: BERT-base, on validation."""

    task: str
    method: str
    score: float
    error: float | None = None


SINGLE = (
    PublishedScore("glue/mnli", "top-1", 77.8, 0.1),
    PublishedScore("glue/mnli", "houlsby-64", 83.7, 0.1),
    PublishedScore("glue/mnli", "full", 84.4, 0.02),
)
LAYERNORM_DROP = {"glue/cola": 3.5, "glue/mnli": 4.0}  # approximate points below full fine-tuning

# Removing trained adapters of size 64 from BERT-base.
ABLATION_SINGLE_DROP = 2.0  # per cent of the score: the largest drop of any single layer
ABLATION_ALL = {"glue/mnli": 37.0, "glue/cola": 69.0}  # accuracy without any adapters: the majority class
ABLATION_LOWER = "layers 0–4 can be removed on MNLI at almost no loss"

INIT = "stable up to a standard deviation of 0.01, lower accuracy above, first on CoLA"
ALTERNATIVES = "no variant improves on the plain adapter; the paper gives no scores"
