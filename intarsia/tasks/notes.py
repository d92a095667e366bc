"""What a reader of data should know before training on it: contradictions, near-equal names, labels with one row."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from intarsia.tasks.examples import Example, Kind, TaskData
from intarsia.tasks.labels import looks_missing
from intarsia.tasks.splits import same_text
from intarsia.tasks.tables import RawTable

SHOWN = 3  # examples in a note
LONGEST = 60  # characters of a text in a note
DOMINANT = 0.8  # share of the training rows
Place = tuple[str, int]  # a part and a row of it
Where = Callable[[Place], str]


def notes_on(
    tables: Mapping[str, RawTable], examples: Mapping[str, Sequence[Example]], kind: Kind, column: str
) -> list[str]:
    """Notes on the labels of a data set, each a sentence that names rows. `column`: the label column."""
    if kind not in ("label", "labels"):
        return []
    places: dict[str, list[Place]] = defaultdict(list)
    for part, rows in examples.items():
        for index, example in enumerate(rows):
            for name in _names(example):
                places[name].append((part, index))

    def where(place: Place) -> str:
        table = tables[place[0]]
        return f"{table.name}, {table.unit} {table.numbers[place[1]]}"

    return [
        *_missing(places, where, column),
        *_near_equal(places),
        *_single(places, where),
        *_contradictions(examples, where),
    ]


def imbalance(data: TaskData) -> str | None:
    """A note if one label dominates the training rows: accuracy then says little."""
    if data.kind != "label":
        return None
    ((label, rows),) = Counter(example.label for example in data.train).most_common(1)
    share = rows / len(data.train)
    if share < DOMINANT:
        return None
    return (
        f"{share:.0%} of the training rows have the label {label!r}: a model that always answers it would have an "
        f"accuracy of about {100 * share:.0f}. Consider --metric f1-macro, and --class-weights balanced."
    )


def _missing(places: Mapping[str, list[Place]], where: Where, column: str) -> Iterator[str]:
    for name, rows in places.items():
        if looks_missing(name):
            yield (
                f"{_count(len(rows), 'row')} with {name!r} in the column {column!r} (first: {where(rows[0])}): "
                f"it is read as a label. If it means that the label is missing, leave such rows out "
                "(drop_missing=True) or fill them in."
            )


# What a name may be written with or without: separators between letters, and marks at its end. A sign distinguishes.
SEPARATORS = re.compile(r"(?<=[^\W\d_])[\s_.-]+(?=[^\W\d_])|^\s+|[\s.,:;!]+$")


def _near_equal(places: Mapping[str, list[Place]]) -> Iterator[str]:
    alike: dict[str, list[str]] = defaultdict(list)
    for name in sorted(places):
        alike[SEPARATORS.sub("", name.casefold()) or name].append(name)
    for names in alike.values():
        if len(names) > 1:
            listed = " and ".join(f"{name!r} ({_count(len(places[name]), 'row')})" for name in names)
            yield f"the labels {listed} differ only in case or punctuation. If they are one label, write them alike."


def _single(places: Mapping[str, list[Place]], where: Where) -> Iterator[str]:
    single = [name for name, rows in places.items() if len(rows) == 1]
    if single:
        listed = ", ".join(f"{name!r} ({where(places[name][0])})" for name in single[:SHOWN])
        more = f" and {len(single) - SHOWN} more" if len(single) > SHOWN else ""
        one = len(single) == 1
        yield (
            f"{'the label' if one else 'the labels'} {listed}{more} {'has' if one else 'have'} only one row: no score "
            f"will say whether {'it was' if one else 'they were'} learned. Add rows, or merge "
            f"{'it' if one else 'them'} with other labels."
        )


def _contradictions(examples: Mapping[str, Sequence[Example]], where: Where) -> Iterator[str]:
    seen: dict[tuple[str, str], tuple[Place, Example]] = {}
    found: dict[tuple[str, str], list[tuple[Place, Example]]] = {}
    for part, rows in examples.items():
        for index, example in enumerate(rows):
            key = same_text(example)
            first = seen.setdefault(key, ((part, index), example))
            if first[1].label != example.label:
                found.setdefault(key, [first]).append(((part, index), example))
    if found:
        rows_of_one = next(iter(found.values()))
        text = rows_of_one[0][1].text
        shown = text if len(text) <= LONGEST else text[:LONGEST] + "…"
        labels = " and ".join(f"{_label(example)} ({where(place)})" for place, example in rows_of_one[:2])
        one = len(found) == 1
        yield (
            f"{_count(len(found), 'text')} {'has' if one else 'have'} contradictory labels, "
            f"{'' if one else 'for instance '}{shown!r}: {labels}. No model can answer both; correct the wrong ones."
        )


def _names(example: Example) -> tuple[str, ...]:
    if isinstance(example.label, tuple):
        return example.label
    return (example.label,) if isinstance(example.label, str) else ()


def _label(example: Example) -> str:
    return repr("|".join(_names(example)))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
