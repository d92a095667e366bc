"""The report of one task: a self-contained HTML page, and a model card in the hub's format, from the same facts."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from intarsia import files
from intarsia.errors import IntarsiaError, IntarsiaWarning
from intarsia.formatting import number, score, seconds, size
from intarsia.lab.model_card import card
from intarsia.lab.report import Page
from intarsia.lab.task_figures import figures_of, history_figure
from intarsia.methods import short_name
from intarsia.tasks import TaskData
from intarsia.tasks.examples import Kind
from intarsia.tasks.metrics import title_of
from intarsia.tasks.named import load_again

if TYPE_CHECKING:
    from intarsia.bank.bank import Bank, Evaluation
    from intarsia.bank.entry import Entry

FILES = ("index.html", "README.md")
MOST_LABELS = 60  # in a table
CAPTIONS = {
    "confusion": "True labels by row, predicted labels by column. The colour is the share of the true label's rows.",
    "precision-recall": "Precision over recall, over all thresholds.",
    "calibration": "Accuracy over confidence; a point's area is the number of its rows. On the dashed line, "
    "probabilities mean what they say.",
    "scores": "Predicted over true scores.",
}


@dataclass(frozen=True)
class Facts:
    """What the page and the card are made of."""

    entry: Entry
    versions: Sequence[Entry]
    data: TaskData | None  # the data that the version learned from, if it could be read again
    evaluation: Evaluation | None
    missing: str  # why there is no evaluation


def write_report(
    bank: Bank, name: str, folder: str | Path, data: Any = None, *, version: int | None = None, mistakes: int = 20
) -> list[Path]:
    """Write the page and the card of a task into a folder, and return their paths.

    `data`: labelled data to score the task on. By default it is the test part of the data that the task learned from,
    if that can be read again and has not changed; without it, the report has only what the bank stores.
    """
    facts = gather(bank, name, data, version=version)
    contents = page(facts, mistakes), card(facts.entry, facts.evaluation)
    paths = []
    for file, content in zip(FILES, contents, strict=True):
        path = Path(folder) / file
        with files.explained(path, [content.encode()]):
            files.make_folder(path.parent)
        files.replace(path, [content.encode()])
        paths.append(path)
    return paths


def gather(bank: Bank, name: str, data: Any = None, *, version: int | None = None) -> Facts:
    """Return the facts of a task."""
    entry = bank.show(name, version)
    versions, header = bank.versions(name), entry.header
    if data is not None:
        return Facts(entry, versions, None, bank.evaluate(name, data, version=entry.version), "")
    if header.kind == "none":
        return Facts(entry, versions, None, None, "It has no head: it answers nothing, and tasks are learned over it.")
    learned_from, reason = _read_again(header.kind, header.data)
    if learned_from is None:
        return Facts(entry, versions, None, None, reason)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IntarsiaWarning)  # the notes of the data are in the report
        return Facts(entry, versions, learned_from, bank.evaluate(name, learned_from.test, version=entry.version), "")


def _read_again(kind: str, source: dict[str, Any]) -> tuple[TaskData | None, str]:
    """Return the data that a version learned from; None with the reason, if it is not there or has changed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IntarsiaWarning)
            found = load_again(cast(Kind, kind), source)
    except IntarsiaError as error:
        return None, f"The data could not be read again ({error})"
    if found.source["sha256"] != source.get("sha256"):
        place = source.get("suite") or source.get("path") or source.get("hub") or "its files"
        return None, f"The data at {place} has changed since the task learned from it: give the data to score it on."
    return found, ""


def page(facts: Facts, mistakes: int = 20) -> str:
    """Return the HTML page. All texts of the data are escaped."""
    entry, header, found = facts.entry, facts.entry.header, facts.evaluation
    html = Page(f"{entry.name}, version {entry.version}")
    html.text(_summary(entry))
    if facts.missing:
        html.text(f"{facts.missing} What follows is what the bank stores.", "note")
    _data(html, facts)
    html.heading("Training")
    history, metric = header.training.get("history") or [], str(header.metrics.get("metric") or "")
    curves = history_figure(history, metric, int(header.metrics.get("best_epoch") or 0))
    if curves is not None:
        html.figure(curves, "Each epoch's mean loss and validation score; the dotted line is the epoch that was kept.")
    html.table(["", ""], [[k, v] for k, v in _training(entry).items()], left=(0, 1))
    html.heading("Scores")
    _scores(html, facts)
    if found is not None:
        _outcome(html, found, mistakes)
    html.heading("Cost")
    html.table(["", ""], [[k, v] for k, v in _cost(entry).items()], left=(0, 1))
    html.heading("Provenance")
    html.table(["", ""], [[k, v] for k, v in _provenance(facts).items()], left=(0, 1))
    return html.render()


def _summary(entry: Entry) -> str:
    header = entry.header
    kinds = {
        "label": f"one label of {len(header.labels)}", "labels": f"any of {len(header.labels)} labels",
        "tags": f"one of {len(header.labels)} tags for each word", "score": "a score", "span": "a part of a context",
        "words": "hidden words",
    }  # fmt: skip
    what = "a pair of texts" if header.data.get("pairs") else "a text"
    count, method = number(header.parameters["total"]), short_name(header.method)
    learned = f"of {count} parameters, learned with {method} over the frozen base {header.encoder['name']}."
    if header.kind == "none":
        return f"An inlay without a head {learned}"
    return (
        f"The task answers {kinds.get(header.kind, header.kind)} for {what}. It is an inlay {learned} "
        f"{_test(header.metrics)}"
    )


def _test(metrics: dict[str, Any]) -> str:
    test = metrics.get("test")
    if test is None:
        return "It has no test score."
    value, low, high = (score(test[k], test["value"]) for k in ("value", "low", "high"))
    few = " These are too few rows to say more." if test.get("too_few") else ""
    title = title_of(metrics["metric"])
    return f"{title} on {test['examples']:,} test rows: {value} (95 % interval {low} to {high}).{few}"


def _data(html: Page, facts: Facts) -> None:
    data = facts.entry.header.data
    html.heading("Data")
    rows = data.get("rows") or {}
    source = data.get("path") or data.get("hub") or data.get("source") or "in memory"
    columns = {role: name for role, name in (data.get("columns") or {}).items() if name}
    listed = {
        "source": str(source),
        "rows": ", ".join(f"{rows[part]:,} {part}" for part in ("train", "dev", "test") if part in rows),
        "split": str(data.get("split") or "as given"),
        "columns": ", ".join(f"{role}: {name}" for role, name in columns.items()) or "–",
    }
    if (cut := data.get("truncated")) is not None:
        listed["cut texts"] = (
            f"{cut['cut']:,} of {cut['of']:,} training texts are cut to {cut['max_length']} tokens; they have "
            f"{cut['mean_tokens']:,.0f} in the mean"
        )
    html.table(["", ""], [[k, v] for k, v in listed.items()], left=(0, 1))
    for note in data.get("notes") or ():
        html.text(f"Note: {note}", "note")
    if facts.data is None or not facts.data.labels or facts.data.kind == "tags":
        return
    parts = {part: _counts(getattr(facts.data, part)) for part in ("train", "dev", "test")}
    labels = sorted(facts.data.labels, key=lambda label: -parts["train"][label])
    table = [[label, *(f"{parts[part][label]:,}" for part in parts)] for label in labels[:MOST_LABELS]]
    html.text("Rows by label:")
    html.table(["label", *parts], table)
    if len(labels) > MOST_LABELS:
        html.text(f"… and {len(labels) - MOST_LABELS} rarer labels.", "note")


def _counts(examples: Sequence[Any]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for example in examples:
        counts.update((example.label,) if isinstance(example.label, str) else example.label or ())
    return counts


def _training(entry: Entry) -> dict[str, str]:
    header = entry.header
    training = header.training
    shown = ("learning_rate", "epochs", "batch_size", "max_length", "seed", "class_weights")
    recipe = ", ".join(f"{k.replace('_', ' ')} {training[k]}" for k in shown if training.get(k) is not None)
    return {
        "method": f"{short_name(header.method)}: "
        + ", ".join(f"{k} {v}" for k, v in header.method.items() if v is not None),
        "head": ", ".join(
            f"{k} {v}" for k, v in header.head.items() if k not in ("thresholds", "temperature", "mean", "spread")
        ),
        "settings": recipe,
        "steps": f"{training.get('steps', 0):,}, {training.get('tokens', 0):,} tokens",
        "best epoch": f"{header.metrics.get('best_epoch')} (validation {score(header.metrics.get('dev') or 0.0)})",
        "grid": f"the best of {len(training['grid'])} jobs by validation score" if "grid" in training else "one run",
    }


def _scores(html: Page, facts: Facts) -> None:
    metrics, found = facts.entry.header.metrics, facts.evaluation
    html.text(_test(metrics))
    calibration = metrics.get("calibration")
    if calibration is not None:
        before, after = score(calibration["ece_before"]), score(calibration["ece_after"])
        found_on = (
            f"Calibration: temperature {calibration['temperature']:.3g}, found on the validation part. The expected "
            f"calibration error on the test part is {before} before and {after} after it."
        )
        none = f"Not calibrated. The expected calibration error on the test part is {after}."
        html.text(none if calibration["temperature"] == 1 else found_on)
    if found is None:
        return
    others = found.outcome.scores()
    if others:
        shown = [[title_of(name), _value(name, value)] for name, value in others.items()]
        html.text(f"Scores on the {found.examples:,} rows of this report:")
        html.table(["metric", "value"], shown)


def _value(metric: str, value: float) -> str:
    return f"{value:.3g}" if metric in ("perplexity", "mse", "mae") else score(value)


def _outcome(html: Page, found: Evaluation, mistakes: int) -> None:
    outcome = found.outcome
    figures = figures_of(outcome)
    if outcome.classes:
        html.heading("Labels")
        rows = sorted(outcome.classes, key=lambda row: -row.support)[:MOST_LABELS]
        columns = ["label", "precision", "recall", "F1", "rows", "predicted"]
        shares = [[score(r.precision), score(r.recall), score(r.f1)] for r in rows]
        counts = [[f"{r.support:,}", f"{r.predicted:,}"] for r in rows]
        html.table(columns, [[r.label, *s, *c] for r, s, c in zip(rows, shares, counts, strict=True)])
        if len(rows) < len(outcome.classes):
            html.text(f"… and {len(outcome.classes) - len(rows)} rarer labels.", "note")
    titles = {"confusion": "Confusions", "precision-recall": "Precision and recall", "calibration": "Calibration"}
    for name, figure in figures.items():
        html.heading(titles.get(name, name.capitalize()))
        html.figure(figure, CAPTIONS.get(name, ""))
    shown = outcome.mistakes(mistakes)
    html.heading("Mistakes")
    if not shown:
        html.text("No mistakes.")
        return
    html.text(f"The worst {len(shown):,} of {len(outcome.all_mistakes):,} on {found.examples:,} rows.")
    rows_of_table = [
        [
            str(m.row), m.text if m.pair is None else f"{m.text} ⟷ {m.pair}", m.gold, m.predicted,
            "" if m.probability is None else f"{m.probability:.2f}",
        ]
        for m in shown
    ]  # fmt: skip
    columns = ["row", "text", "true", "predicted", "p"]
    html.table(columns, [_shortened(row) for row in rows_of_table], left=(0, 1, 2, 3))


def _shortened(row: list[str], most: int = 600) -> list[str]:
    return [cell if len(cell) <= most else cell[:most] + "…" for cell in row]


def _cost(entry: Entry) -> dict[str, str]:
    header, counts = entry.header, entry.header.parameters
    return {
        "trained parameters": f"{number(counts['total'])} ({counts['total'] / counts['base']:.2%} of the base), of "
        f"which the head has {number(counts['head'])}",
        "file": size(entry.bytes),
        "base, shared by all tasks": f"{number(counts['base'])} parameters",
        "training time": seconds(header.training.get("seconds") or 0.0),
    }


def _provenance(facts: Facts) -> dict[str, str]:
    entry, header = facts.entry, facts.entry.header
    served = max((v.version for v in facts.versions if not v.held), default=entry.version)
    versions = ", ".join(
        f"{v.version}{' (served)' if v.version == served else ''}{' (held back)' if v.held else ''}"
        for v in facts.versions
    )
    return {
        "created": header.created,
        "versions of the task": versions,
        "digest": header.digest,
        "base": f"{header.encoder['name']}, fingerprint {header.encoder['fingerprint']}",
        "data": f"SHA-256 of the rows {header.data.get('sha256', '–')}",
        "libraries": ", ".join(f"{name} {version}" for name, version in header.versions.items()),
    }
