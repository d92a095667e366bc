"""A model card: README.md with a YAML header, as the Hugging Face hub reads it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from intarsia.formatting import number, score, size
from intarsia.methods import short_name
from intarsia.tasks.metrics import title_of

if TYPE_CHECKING:
    from intarsia.bank.bank import Evaluation
    from intarsia.bank.entry import Entry

PIPELINES = {
    "label": "text-classification", "labels": "text-classification", "score": "text-classification",
    "tags": "token-classification", "span": "question-answering", "words": "fill-mask",
    "none": "feature-extraction",
}  # fmt: skip
HUB_METRICS = {"matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
MOST_LABELS = 60


def card(entry: Entry, evaluation: Evaluation | None) -> str:
    """Return the card of a version; with an evaluation, it also has the scores of each label."""
    header = entry.header
    lines = [
        "---", *_front(entry), "---", "", f"# {entry.name}", "",
        f"An Intarsia inlay: version {entry.version} of the task `{entry.name}`, "
        f"{number(header.parameters['total'])} parameters over the frozen base `{header.encoder['name']}`.", "",
        "## Use", "", "```python", "import intarsia", "", 'bank = intarsia.open("bank")  # the folder with this inlay',
        _call(entry.name, header), "```", "",
        "## Output", "", _output(header), "",
        "## Data", "", *_data(header), "",
        "## Results", "", *_results(header, evaluation), "",
        "## Training", "",
        f"Method `{short_name(header.method)}`; {_settings(header.training)}. "
        f"{header.training.get('steps', 0):,} steps. The base was not changed; the file has {size(entry.bytes)}.", "",
        "## Provenance", "",
        "| | |", "| --- | --- |",
        f"| created | {_cell(header.created)} |",
        f"| digest of the inlay | `{header.digest}` |",
        f"| fingerprint of the base | `{_cell(header.encoder['fingerprint'])}` |",
        f"| SHA-256 of the data | `{_cell(header.data.get('sha256', '–'))}` |",
        f"| libraries | {_cell(', '.join(f'{k} {v}' for k, v in header.versions.items()))} |",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _front(entry: Entry) -> list[str]:
    """Return the lines of the YAML header; JSON strings are YAML strings."""
    header = entry.header
    pipeline, base = PIPELINES[header.kind], str(header.encoder["name"])
    lines = ["library_name: intarsia", f"pipeline_tag: {pipeline}"]
    if HUB_NAME.fullmatch(base):
        lines += [f"base_model: {_yaml(base)}"]
    hub = header.data.get("hub")
    if hub:
        lines += ["datasets:", f"- {_yaml(hub)}"]
    lines += ["tags:", "- intarsia", "- adapter", f"- {_yaml(str(header.method['type']))}"]
    test = header.metrics.get("test")
    if test is not None:
        metric = str(header.metrics["metric"])
        kind = HUB_METRICS.get(metric, metric.partition(":")[0].partition("-")[0])
        lines += [
            "metrics:", f"- {_yaml(kind)}", "model-index:", f"- name: {_yaml(entry.name)}", "  results:", "  - task:",
            f"      type: {pipeline}", "    dataset:", f"      name: {_yaml(_source(header.data))}",
            f"      type: {_yaml(str(hub or 'private'))}", "      split: test", "    metrics:",
            f"    - type: {_yaml(kind)}", f"      name: {_yaml(title_of(metric))}",
            f"      value: {json.dumps(round(test['value'], 4))}",
        ]  # fmt: skip
    return lines


def _output(header: Any) -> str:
    if header.kind == "score":
        return "A score: a number."
    if not header.labels:
        return {
            "span": "A part of the context.", "words": "The hidden words.",
            "none": "Nothing: it has no head. Tasks are learned over it, and it gives vectors.",
        }.get(header.kind, header.kind)  # fmt: skip
    what = {"label": "One label of", "labels": "Any of the labels", "tags": "A tag for each word, of"}[header.kind]
    labels = ", ".join(f"`{_cell(label)}`" for label in header.labels[:MOST_LABELS])
    more = f" … ({len(header.labels)})" if len(header.labels) > MOST_LABELS else ""
    thresholds = header.head.get("thresholds")
    limits = ""
    given = header.training.get("threshold")
    if given is not None:
        limits = f" A label applies from the probability {given:.3g}."
    elif thresholds:
        listed = ", ".join(f"{limit:.3g}" for limit in thresholds[:MOST_LABELS])
        limits = f" A label applies from its threshold, found on the validation part: {listed}."
    return f"{what}: {labels}{more}.{limits}"


def _data(header: Any) -> list[str]:
    data = header.data
    counts = data.get("rows") or {}
    rows = ", ".join(f"{counts[part]:,} {part}" for part in ("train", "dev", "test") if part in counts)
    lines = [f"{_cell(_source(data))}: {rows or 'rows unknown'} ({_cell(data.get('split') or 'as given')})."]
    if (cut := data.get("truncated")) is not None:
        lines += ["", f"{cut['cut']:,} of {cut['of']:,} training texts are cut to {cut['max_length']} tokens."]
    for note in data.get("notes") or ():
        lines += ["", f"Note: {_cell(note)}"]
    return lines


def _results(header: Any, evaluation: Evaluation | None) -> list[str]:
    metrics, lines = header.metrics, list[str]()
    test = metrics.get("test")
    if test is None:
        lines.append("No test part.")
    else:
        value, low, high = (score(test[k], test["value"]) for k in ("value", "low", "high"))
        few = "; too few rows to say more" if test.get("too_few") else ""
        title, rows = title_of(metrics["metric"]), f"{test['examples']:,} test rows"
        lines.append(f"{title} {value} (95 % interval {low} to {high}{few}) on {rows}.")
    calibration = metrics.get("calibration")
    if calibration is not None:
        before, after = score(calibration["ece_before"]), score(calibration["ece_after"])
        how = f"before calibration {before}; temperature {calibration['temperature']:.3g}"
        lines += [
            "",
            f"Expected calibration error {after} ({'not calibrated' if calibration['temperature'] == 1 else how}).",
        ]
    if evaluation is not None and evaluation.outcome.classes:
        lines += ["", "| label | precision | recall | F1 | rows |", "| --- | ---: | ---: | ---: | ---: |"]
        for r in sorted(evaluation.outcome.classes, key=lambda row: -row.support)[:MOST_LABELS]:
            shares = " | ".join(score(value) for value in (r.precision, r.recall, r.f1))
            lines.append(f"| {_cell(r.label)} | {shares} | {r.support:,} |")
    return lines


def _settings(training: dict[str, Any]) -> str:
    shown = ("learning_rate", "epochs", "batch_size", "max_length", "seed")
    return ", ".join(f"{name.replace('_', ' ')} {training[name]}" for name in shown if name in training)


def _call(name: str, header: Any) -> str:
    if header.kind == "none":
        return f'bank.embed(["A text."], {json.dumps(name)})'
    return f"bank.predict({json.dumps(name)}, {_example(header)})"


def _example(header: Any) -> str:
    examples = {"span": '[("A question?", "A context.")]', "words": '["A text with a [MASK]."]'}
    return examples.get(header.kind, '[("A text.", "Another text.")]' if header.data.get("pairs") else '["A text."]')


def _source(data: dict[str, Any]) -> str:
    path = data.get("path")
    return str(data.get("hub") or (str(path).rstrip("/").rpartition("/")[2] if path else None) or "data in memory")


def _cell(text: Any) -> str:
    """Return a text for Markdown: nothing in it is markup, and it stays in its table cell."""
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", " ".join(str(text).split()))


def _yaml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
