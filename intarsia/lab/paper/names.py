"""Titles of tasks and metrics. The title of a sample or a limited task always says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intarsia.lab.paper.published import MISMATCHED
from intarsia.tasks.metrics import title_of
from intarsia.tasks.suites.registry import find

_TITLES = {
    "glue/cola": "CoLA", "glue/sst2": "SST-2", "glue/mrpc": "MRPC", "glue/stsb": "STS-B", "glue/qqp": "QQP",
    "glue/mnli": "MNLI-m", MISMATCHED: "MNLI-mm", "glue/qnli": "QNLI", "glue/rte": "RTE", "glue/wnli": "WNLI",
    "extra/20_newsgroups": "20 newsgroups", "extra/corporate_messaging": "corporate messages",
    "extra/economic_news_relevance": "economic relevance", "extra/us_economic_performance": "US economy",
    "extra/sms_spam": "SMS spam", "squad/v1.1": "SQuAD 1.1", "squad/v2.0": "SQuAD 2.0",
}  # fmt: skip


def official(task: str) -> str:
    """Return the short title of the official task."""
    return _TITLES.get(task) or task.partition("/")[2].replace("_", " ")


def title(task: str, data: Mapping[str, Any]) -> str:
    """Return the title of a task, marked if the data is a sample or limited to some training rows."""
    if data.get("limit"):
        return f"{official(task)} ({data['limit']} rows{' of a sample' if data.get('partial') else ''})"
    return f"{official(task)} (sample)" if data.get("partial") else official(task)


def metric(task: str) -> str:
    """Return the official metric, which also selects the best epoch and setting."""
    return find("glue/mnli" if task == MISMATCHED else task).metrics[0]


def metric_title(name: str) -> str:
    return title_of(name)
