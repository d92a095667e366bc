"""GLUE (Wang et al. 2019): nine tasks, with WNLI, and the diagnostic set AX.

The official sizes are the hub's. QQP's files have a few broken lines, which all readers skip. The download has folders
CoLA, SST-2 and so on; its files are tab-separated without quoting, and CoLA's train and dev files have no header. MNLI
has two dev and two test sets. The matched sets are dev and test here, as in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intarsia.tasks.suites.suite import FileLayout, Hub, Suite, SuiteTask

SOURCE = "https://gluebenchmark.com/tasks"
COLA = ("source", "label", "star", "sentence")
NUMBERED = {"cola", "sst2", "mrpc", "qqp", "wnli"}  # the download and the test server use 0 and 1 for their labels
PLAIN = {"train": "train", "dev": "dev", "test": "test"}
MNLI = {
    "train": "train",
    "dev": "dev_matched",
    "dev_mismatched": "dev_mismatched",
    "test": "test_matched",
    "test_mismatched": "test_mismatched",
}


def _task(
    name: str,
    title: str,
    folder: str,
    metrics: tuple[str, ...],
    rows: Mapping[str, int],
    columns: Mapping[str, str],
    labels: tuple[str, ...] = (),
    *,
    files: Mapping[str, str] = PLAIN,
    hub: Mapping[str, str] | None = None,
    no_header: Mapping[str, tuple[str, ...]] | None = None,
    skip_short: bool = False,
    **more: Any,
) -> SuiteTask:
    """A GLUE task. `columns` are the download's columns, `hub` the hub's if they differ."""
    official = {"dev": "validation", "test": "test", "train": "train"}
    splits = {split: files[split].replace("dev", "validation") if files is MNLI else official[split] for split in rows}
    return SuiteTask(
        suite="glue",
        name=name,
        title=title,
        kind="label" if labels else "score",
        metrics=metrics,
        rows=rows,
        labels=labels,
        pairs="text_b" in columns,
        values={str(number): label for number, label in enumerate(labels)} if name in NUMBERED else {},
        hidden_test=True,
        empty="kept",  # QQP has a few empty texts, and a submission needs an answer for every row
        source=SOURCE,
        hub=Hub("nyu-mll/glue", name, {"label": "label", **(hub or columns)}, splits),
        layout=FileLayout(
            "tsv",
            {split: (f"{folder}/{files[split]}.tsv",) for split in rows},
            {"label": "label", **columns},
            no_header or {},
            skip_short=skip_short,
        ),
        **more,
    )


def _sizes(train: int, dev: int, test: int) -> dict[str, int]:
    return {"train": train, "dev": dev, "test": test}


ENTAILMENT = ("entailment", "not_entailment")
INFERENCE = ("entailment", "neutral", "contradiction")
SENTENCE = {"text": "sentence"}
SENTENCES = {"text_a": "sentence1", "text_b": "sentence2"}
PREMISE = {"text_a": "premise", "text_b": "hypothesis"}

TASKS = (
    _task(
        "cola", "Corpus of Linguistic Acceptability", "CoLA", ("matthews",), _sizes(8551, 1043, 1063),
        {**SENTENCE, "source": "source"}, ("unacceptable", "acceptable"), hub=SENTENCE,
        no_header={"train": COLA, "dev": COLA},
    ),
    _task(
        "sst2", "Stanford Sentiment Treebank", "SST-2", ("accuracy",), _sizes(67349, 872, 1821), SENTENCE,
        ("negative", "positive"), strip=True,
    ),
    _task(
        "mrpc", "Microsoft Research Paraphrase Corpus", "MRPC", ("f1:equivalent", "accuracy"), _sizes(3668, 408, 1725),
        {"text_a": "#1 String", "text_b": "#2 String", "label": "Quality", "id_a": "#1 ID", "id_b": "#2 ID"},
        ("not_equivalent", "equivalent"), hub=SENTENCES,
    ),
    _task(
        "stsb", "Semantic Textual Similarity Benchmark", "STS-B", ("spearman", "pearson"), _sizes(5749, 1500, 1379),
        {**SENTENCES, "label": "score", "genre": "genre"}, hub=SENTENCES,
    ),
    _task(
        "qqp", "Quora Question Pairs", "QQP", ("f1:duplicate", "accuracy"), _sizes(363846, 40430, 390965),
        {"text_a": "question1", "text_b": "question2", "label": "is_duplicate", "id": "id"},
        ("not_duplicate", "duplicate"), hub={"text_a": "question1", "text_b": "question2"}, skip_short=True,
    ),
    _task(
        "mnli", "Multi-Genre Natural Language Inference", "MNLI", ("accuracy",),
        {**_sizes(392702, 9815, 9796), "dev_mismatched": 9832, "test_mismatched": 9847},
        {**SENTENCES, "label": "gold_label", "genre": "genre"}, INFERENCE, files=MNLI, hub=PREMISE,
    ),
    _task(
        "qnli", "Question Natural Language Inference", "QNLI", ("accuracy",), _sizes(104743, 5463, 5463),
        {"text_a": "question", "text_b": "sentence"}, ENTAILMENT,
    ),
    _task(
        "rte", "Recognizing Textual Entailment", "RTE", ("accuracy",), _sizes(2490, 277, 3000), SENTENCES, ENTAILMENT,
    ),
    _task(
        "wnli", "Winograd Natural Language Inference", "WNLI", ("accuracy",), _sizes(635, 71, 146), SENTENCES,
        ("not_entailment", "entailment"),
    ),
    _task(
        "ax", "Diagnostic set", "diagnostic", ("matthews",), {"test": 1104}, SENTENCES, INFERENCE,
        files={"test": "diagnostic"}, hub=PREMISE,
        note="Answered by a task trained on MNLI.",
    ),
)  # fmt: skip

GLUE = Suite(
    "glue",
    "General Language Understanding Evaluation",
    # Wang et al. 2019, GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding
    TASKS,
)
