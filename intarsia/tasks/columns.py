"""Finding the columns of the text, its pair and the label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from intarsia.errors import DataError, did_you_mean
from intarsia.formatting import listed
from intarsia.tasks.examples import Kind
from intarsia.tasks.tables import RawTable

# The first name of each tuple is Intarsia's own: it wins if a table also has columns with other names of the tuple.
TEXT_NAMES = ("text", "sentence", "content", "tweet")
LABEL_NAMES = ("label", "labels", "class", "category", "score", "target")
PAIR_NAMES = (
    ("text_a", "text_b"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("question1", "question2"),
)


@dataclass(frozen=True)
class Columns:
    """The names of a table's text, pair and label columns."""

    text: str
    pair: str | None
    label: str | None  # None for kinds without labels

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.text,) if self.pair is None else (self.text, self.pair)


# The default columns (text, pair, label) of kinds that have their own column names.
OWN_NAMES: dict[Kind, tuple[str, str | None, str]] = {
    "tags": ("tokens", None, "tags"),
    "span": ("question", "context", "answers"),
}


USUAL_NAMES = {
    *TEXT_NAMES,
    *LABEL_NAMES,
    *(name for pair in PAIR_NAMES for name in pair),
    *(name for names in OWN_NAMES.values() for name in names if name),
}


def with_usual_names(tables: Mapping[str, RawTable]) -> dict[str, RawTable]:
    """The tables with the usual column names in lower case, however a file writes them (`Text`, `LABEL`)."""
    return {part: _with_usual_names(table) for part, table in tables.items()}


def usual_name(name: str | int | None, table: RawTable) -> str | None:
    """A column's name as it is after `with_usual_names`. A DataFrame's columns may be numbers; a table's are texts."""
    name = None if name is None else str(name)
    lower = None if name is None else name.strip().lower()
    return lower if lower in USUAL_NAMES and name not in table.columns else name


def _with_usual_names(table: RawTable) -> RawTable:
    lower = [name.strip().lower() if isinstance(name, str) else name for name in table.columns]
    renamed = {
        name: usual
        for name, usual in zip(table.columns, lower, strict=True)
        if name != usual and usual in USUAL_NAMES and lower.count(usual) == 1
    }
    if not renamed:
        return table
    return replace(table, rows=[{renamed.get(name, name): value for name, value in row.items()} for row in table.rows])


def find_own_columns(
    table: RawTable, text: str | None, pair: str | None, label: str | None, kind: Kind | None
) -> tuple[Kind, Columns] | None:
    """The kind and columns of a table whose kind has its own column names (or is `words`), else None.

    The kind is given by `kind`, or found if the table has all default columns of a kind and no column is named.
    """
    if kind == "words":
        return kind, _plain_texts(table, text, pair, label)
    for own_kind, (own_text, own_pair, own_label) in OWN_NAMES.items():
        needed = {own_text, own_label} | ({own_pair} if own_pair else set())
        if kind == own_kind:
            columns = Columns(text or own_text, pair or own_pair, label or own_label)
        elif kind is None and text is pair is label is None and needed <= set(table.columns):
            columns = Columns(own_text, own_pair, own_label)
        else:
            continue
        for role, name in (("text", columns.text), ("pair", columns.pair), ("label", columns.label)):
            _check_exists(table, role, name)
        return own_kind, columns
    return None


def _plain_texts(table: RawTable, text: str | None, pair: str | None, label: str | None) -> Columns:
    """The text column for the kind `words`, which has neither pair nor label."""
    if pair is not None or label is not None:
        raise DataError(f"{table.name}: kind='words' takes plain texts only. Name text= only, not {pair or label!r}.")
    first, second = find_texts(table, text, None)
    if second is not None:
        raise DataError(f"{table.name}: kind='words' takes single texts, not pairs. Name one column with text=.")
    return Columns(first, None, None)


def find_columns(table: RawTable, text: str | None, pair: str | None, label: str | None) -> Columns:
    """The named columns; a role that is not named gets the column with a conventional name."""
    text, pair = find_texts(table, text, pair)
    _check_exists(table, "label", label)
    label = label or _find_label(table)
    if label in (text, pair):
        raise DataError(f"{table.name}: column {label!r} cannot be both text and label. Name another with label=.")
    return Columns(text, pair, label)


def find_texts(table: RawTable, text: str | None, pair: str | None) -> tuple[str, str | None]:
    """The columns of the text and its pair, if any. If only `text` is named, the examples are single texts."""
    if text is None and pair is not None:
        raise DataError(f"pair={pair!r} is named without text. Name the column of the first text too (text=).")
    _check_exists(table, "text", text)
    _check_exists(table, "pair", pair)
    return _find_text(table) if text is None else (text, pair)


def _check_exists(table: RawTable, role: str, name: str | None) -> None:
    if name is not None and name not in table.columns:
        near = did_you_mean(name, [column for column in table.columns if isinstance(column, str)])
        raise DataError(f"{table.name}: no column {name!r} for {role}.{near} {_columns_found(table)}")


def _find_text(table: RawTable) -> tuple[str, str | None]:
    pairs = [pair for pair in PAIR_NAMES if set(pair) <= set(table.columns)]
    in_pairs = {name for pair in pairs for name in pair}
    singles = [name for name in TEXT_NAMES if name in table.columns and name not in in_pairs]
    if len(pairs) == 1 and not singles:
        return pairs[0]
    if not pairs and singles and (len(singles) == 1 or singles[0] == TEXT_NAMES[0]):
        return singles[0], None
    if pairs or singles:
        found = ", ".join([f"{first}/{second}" for first, second in pairs] + singles)
        raise DataError(
            f"{table.name}: several columns could be the text ({found}). Name one with text=. {_columns_found(table)}"
        )
    expected = ", ".join([*TEXT_NAMES, *(f"{first}/{second}" for first, second in PAIR_NAMES)])
    raise DataError(
        f"{table.name}: no text column. {_columns_found(table)} Expected one of {expected}. "
        f"Name it with text= (and pair=), or add a header if the file has none."
    )


def _find_label(table: RawTable) -> str:
    found = [name for name in LABEL_NAMES if name in table.columns]
    if len(found) == 1 or found[:1] == [LABEL_NAMES[0]]:
        return found[0]
    if found:
        raise DataError(
            f"{table.name}: several columns could be the label ({', '.join(found)}). Name one with label=. "
            f"{_columns_found(table)}"
        )
    raise DataError(
        f"{table.name}: no label column. {_columns_found(table)} Expected one of {', '.join(LABEL_NAMES)}. "
        f"Name it with label=, or set kind='words' to learn from plain text."
    )


def _columns_found(table: RawTable) -> str:
    """A sentence for error messages that lists the table's columns."""
    return f"Columns found: {listed([repr(name) for name in table.columns]) or 'none'}."
