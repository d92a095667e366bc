"""A bank's contents, as tables for the terminal and as plain values for JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from intarsia.bank.family import parents_of
from intarsia.cli.console import styled, table
from intarsia.formatting import number, score, seconds, size
from intarsia.methods import COMPOSITIONS, full_name, short_name

if TYPE_CHECKING:
    from rich.console import RenderableType

    from intarsia.bank.bank import Bank
    from intarsia.bank.entry import Entry
    from intarsia.bank.family import Relatives
    from intarsia.bank.inlay import InlayHeader


# The fields of a version in `tasks --json`; `show --json` has these and the rest of the header.
SUMMARY = ("name", "version", "state", "held", "kind", "labels", "method", "method_name", "metrics", "parameters",
           "file", "bytes", "created", "digest", "parents")  # fmt: skip


def summary_dict(entry: Entry) -> dict[str, Any]:
    """Return the fields of `SUMMARY`, with the reason if the file cannot be used."""
    described = entry.to_dict()
    return {key: described[key] for key in (*SUMMARY, "reason") if key in described}


def tasks_dict(bank: Bank) -> dict[str, Any]:
    """Return all tasks and the cost of the bank as plain values."""
    cost = bank.cost()
    rows = [summary_dict(entry) | _lost(bank, entry) for entry in bank.tasks()]
    return {
        "encoder": bank.store.encoder,
        "tasks": rows,
        "trained": cost.method + cost.head,
        "bytes": cost.bytes,
        "total": cost.total_with_heads,
        "total_without_heads": cost.total,
        "full_fine_tuning": cost.fine_tuning,
    }


def _lost(bank: Bank, entry: Entry) -> dict[str, list[str]]:
    """Return the parents that an inlay has lost, if it has lost any."""
    lost = [name for name, found in parents_of(bank.store, entry).items() if found is None]
    return {"lost_parents": lost} if lost else {}


def tasks_table(bank: Bank) -> list[RenderableType]:
    """Return the table of `intarsia tasks`, and notes."""
    cost = bank.cost()
    rows = []
    for entry in bank.tasks():
        if entry.state != "ok":
            rows.append([entry.name, str(entry.version), entry.state, "", "", "", "", ""])
            continue
        header = entry.header
        rows.append(
            [
                entry.name,
                str(entry.version),
                _kind(header),
                short_name(header.method),
                test_score(header.metrics),
                number(header.parameters["total"]),
                f"{header.parameters['total'] / cost.base:.2%}",
                size(entry.bytes),
            ]
        )
    rows += [
        [parent.name, str(parent.version), "parent", "", "", number(parent.method), f"{parent.share:.2%}",
         size(parent.bytes)]
        for parent in cost.parents
    ]  # fmt: skip
    trained = cost.method + cost.head
    total = ["total", "", "", "", "", number(trained), f"{trained / cost.base:.2%}", size(cost.bytes)]
    columns = ["task", "v", "kind", "method", "test (95 %)", "trained", "of base", "file"]
    encoder = bank.store.encoder or {}
    base = f"{encoder.get('name')} ({number(cost.base)} parameters, {str(encoder.get('fingerprint'))[:12]}…)"
    summary = (
        f"\nbase: {base}\nbase and tasks: {cost.total_with_heads:.2f}× the base ({cost.total:.2f}× without heads); "
        f"full fine-tuning: {cost.fine_tuning}×"
    )
    made: list[RenderableType] = [table(columns, rows, left=4, total=total), summary]
    for entry in bank.tasks():
        if entry.state != "ok":
            made.append(styled((f"{entry.state}:", "red"), f" {entry.reason}"))
        for lost in _lost(bank, entry).get("lost_parents", []):
            made.append(styled(("incomplete:", "red"), f" {entry.name} is built on {lost}, which the bank has lost"))
    return made


def show_dict(entry: Entry, relatives: Relatives) -> dict[str, Any]:
    """Return what `intarsia show` prints as plain values."""
    lost = {"lost_parents": relatives.lost} if relatives.lost else {}
    children = [{"name": child.name, "version": child.version} for child in relatives.children]
    return {**entry.to_dict(), "children": children, **lost}


def show_table(entry: Entry, versions: Sequence[Entry], relatives: Relatives | None = None) -> RenderableType:
    """Return the table of `intarsia show`."""
    header = entry.header
    labels = ", ".join(header.labels[:12]) + (f" … ({len(header.labels)})" if len(header.labels) > 12 else "")
    training, data, metrics = header.training, header.data, header.metrics
    shown = [
        "learning_rate", "epochs", "batch_size", "max_length", "seed", "head_start", "bias_correction",
        "class_weights", "threshold", "calibrate",
    ]  # fmt: skip
    recipe = {k: own[k] for own in (training, training.get("adam") or {}) for k in shown if k in own}
    served = max((v.version for v in versions if not v.held), default=versions[-1].version)
    others = [
        f"{v.version}{' (served)' if v.version == served else ''}{' (held back)' if v.held else ''}"
        f"{'' if v.state == 'ok' else f' ({v.state})'}"
        for v in versions
    ]
    source = data.get("path") or data.get("source") or data.get("hub") or "in memory"
    data_rows, duration = data.get("rows"), seconds(training.get("seconds") or 0)
    label = _collapsed(header)
    collapsed = "" if label is None else f"; predicts {label} for every text"
    rows = [
        ["task", f"{entry.name}, version {entry.version}"],
        ["output", f"{_kind(header)}: {labels}" if header.labels else _kind(header)],
        *([] if header.kind == "none" else [
            ["test", f"{test_score(metrics)} ({metrics.get('metric')}){_perplexity(metrics.get('test'))}"],
            ["validation", f"{_score(metrics.get('dev'))} at epoch {metrics.get('best_epoch')}{collapsed}"],
        ]),
        *_calibration(metrics),
        ["method", _method(header.method)],
        *_relatives(relatives),
        *_origin(training),
        ["head", _options(header.head)],
        ["trained", _parameters(header.parameters)],
        ["training", f"{_options(recipe)}; {training.get('steps') or 0:,} steps, {duration}"],
        ["data", f"{source}: {_options(data_rows) if isinstance(data_rows, dict) else data_rows}"],
        *_truncated(data),
        *[["note", note] for note in data.get("notes") or ()],
        ["split", str(data.get("split"))],
        ["base", f"{header.encoder.get('name')} ({header.encoder['fingerprint']})"],
        ["versions", ", ".join(others)],
        ["created", f"{header.created}, {_options(header.versions)}"],
        ["file", f"{entry.path} ({size(entry.bytes)})"],
        ["digest", header.digest],
    ]  # fmt: skip
    made = table(["", ""], rows, left=2)
    made.show_header = False
    made.columns[1].no_wrap = False
    return made


def _relatives(found: Relatives | None) -> list[list[str]]:
    """Return the rows of `intarsia show` about parents and children."""
    if found is None:
        return []
    parents = [name if entry is not None else f"{name}: lost" for name, entry in found.parents.items()]
    children = [f"{child.name}@{child.version}" for child in found.children[:12]]
    more = f" … ({len(found.children)})" if len(found.children) > 12 else ""
    rows = [["built on", ", ".join(parents)]] if parents else []
    return [*rows, ["parent of", ", ".join(children) + more]] if children else rows


def _origin(training: dict[str, Any]) -> list[list[str]]:
    """Return the rows of `intarsia show` about an inlay that was merged, or moved from another base."""
    rows = []
    if (merged := training.get("merged")) is not None:
        rows.append(["merged", merged_from(merged)])
    if (moved := training.get("moved")) is not None:
        scores = [_score(moved.get(key)) for key in ("old_score", "new_score")]
        scored = f"; {moved['metric']} {scores[0]} there, {scores[1]} here" if "metric" in moved else ""
        base = moved["from"]
        shown = f"{moved['name']}@{moved['version']} on {base['name']} ({base['fingerprint'][:12]}…)"
        rows.append(["moved from", f"{shown}{scored}"])
    return rows


def merged_from(merged: dict[str, Any]) -> str:
    """Return how an inlay was merged, and from what."""
    parts = ", ".join(f"{part['name']}@{part['version']} {part['weight']:g}" for part in merged["from"])
    lost = merged.get("relative_error")
    return f"{merged['how']} of {parts}; head: {merged['head']}" + (f"; relative error {lost:.1%}" if lost else "")


def learned(entry: Entry) -> Text:
    """Return the line that `intarsia learn` prints for a new version."""
    header = entry.header
    test = header.metrics.get("test")
    result = (
        ""
        if test is None
        else f"{header.metrics.get('metric')} {test_score(header.metrics)}{_perplexity(test)} on "
        f"{test.get('examples') or 0:,} test examples; "
    )
    start = "" if header.training.get("head_start") is None else "; the head was initialised from the checkpoint"
    held = " (kept, not served)" if entry.held else ""
    label, advice = _collapsed(header), _zero_f1(header.metrics)
    if label is not None:
        advice += [
            "\n", (f"The model predicts {label} for every validation text.", "yellow"),
            " Try a smaller learning rate, another seed, more epochs, or --bias-correction.",
        ]  # fmt: skip
    return styled(
        f"{entry.name} version {entry.version}{held}: {result}{_parameters(header.parameters)}, {size(entry.bytes)}, "
        f"{seconds(header.training.get('seconds') or 0)}{start}",
        *advice,
    )


def _zero_f1(metrics: dict[str, Any]) -> list[str | tuple[str, str]]:
    """Return a hint if a task with several labels of n found none of them."""
    test = metrics.get("test")
    if test is None or metrics.get("metric") != "f1-micro" or test.get("value") is None or test["value"] > 0:
        return []
    return [
        "\n", ("f1-micro is 0: no right label reached its threshold.", "yellow"),
        " Try more epochs, a higher learning rate, --class-weights balanced, or a lower --threshold.",
    ]  # fmt: skip


def _calibration(metrics: dict[str, Any]) -> list[list[str]]:
    """Return the row of `intarsia show` about calibration, if the version has one."""
    found = metrics.get("calibration")
    if found is None:
        return []
    before, after, temperature = found["ece_before"], found["ece_after"], found["temperature"]
    if temperature == 1.0:
        return [["calibration", f"none; expected calibration error {score(after)}"]]
    return [
        [
            "calibration",
            f"temperature {temperature:.3g}; expected calibration error {score(before)} before, {score(after)} after "
            f"(on {found['part']})",
        ]
    ]


def _truncated(data: dict[str, Any]) -> list[list[str]]:
    """Return the row of `intarsia show` about cut texts, if there are any."""
    found = data.get("truncated")
    if found is None:
        return []
    return [
        [
            "cut texts",
            f"{found['cut']:,} of {found['of']:,} to {found['max_length']} tokens ({found['mean_tokens']:,.0f} in the "
            f"mean, {found['longest']:,} at most)",
        ]
    ]


def _collapsed(header: InlayHeader) -> str | None:
    """Return the label that the best epoch predicts for every validation text, or None."""
    best, history = header.metrics.get("best_epoch") or 0, header.training.get("history") or []
    label = history[best - 1].get("always") if 1 <= best <= len(history) else None
    return None if label is None else repr(label)


def test_score(metrics: dict[str, Any]) -> str:
    """Return the test score and its 95 % interval, times 100 as in the papers."""
    test = metrics.get("test")
    if test is None:
        return "–"
    value, low, high = (_score(test.get(k), test.get("value")) for k in ("value", "low", "high"))
    few = ", too few" if test.get("too_few") else ""
    return f"{value} ({low}–{high}{few})"


def _score(value: float | None, bound_of: float | None = None) -> str:
    """Return a score; a dash for an undefined one."""
    return "–" if value is None else score(value, bound_of)


def _perplexity(test: dict[str, Any] | None) -> str:
    return f", perplexity {test['perplexity']:.2f}" if test and test.get("perplexity") is not None else ""


def _parameters(counts: dict[str, int]) -> str:
    return (
        f"{number(counts['total'])} trained parameters ({counts['total'] / counts['base']:.2%} of the base; "
        f"head {number(counts['head'])})"
    )


def _kind(header: Any) -> str:
    count = len(header.labels)
    kinds = {"label": f"1 of {count}", "labels": f"any of {count}", "tags": f"{count} tags", "none": "no head"}
    return kinds.get(header.kind, header.kind)


def _method(config: dict[str, Any]) -> str:
    """The name of a method and the options that it sets; those of a composition are in its name."""
    if config["type"] in COMPOSITIONS:
        return full_name(config)
    given = {name: value for name, value in config.items() if name != "type" and value is not None}
    return f"{short_name(config)}: {_options(given)}" if given else short_name(config)


def _options(values: dict[str, Any]) -> str:
    return ", ".join(f"{k} {_option(v)}" for k, v in values.items())


def _option(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(v, float) for v in value):
        return ", ".join(f"{v:.3g}" for v in value[:12]) + (" …" if len(value) > 12 else "")
    return f"{value:.4g}" if isinstance(value, float) and len(str(value)) > 8 else json.dumps(value)
