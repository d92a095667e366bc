"""Which columns hold the text, its pair and the label."""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.errors import DataError
from intarsia.tasks.examples import Kind
from intarsia.tasks.tables import Table

# The first name of each is the project's own: it is taken even where a column with another of the names stands by it.
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
    text: str
    pair: str | None
    label: str | None  # None: of kinds that have none

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.text,) if self.pair is None else (self.text, self.pair)


# The columns of kinds that have names of their own: the text, its pair, the label.
OWN_NAMES: dict[Kind, tuple[str, str | None, str]] = {
    "tags": ("tokens", None, "tags"),
    "span": ("question", "context", "answers"),
}


def find_own_columns(
    table: Table, text: str | None, pair: str | None, label: str | None, kind: Kind | None
) -> tuple[Kind, Columns] | None:
    """The kind and the columns of a table that has all columns of one of these kinds, or is said to be of one."""
    if kind == "words":
        return kind, _plain_texts(table, text, pair, label)
    for own, (first, second, last) in OWN_NAMES.items():
        needed = {first, last} | ({second} if second else set())
        if kind == own:
            columns = Columns(text or first, pair or second, label or last)
        elif kind is None and text is pair is label is None and needed <= set(table.columns):
            columns = Columns(first, second, last)
        else:
            continue
        for role, name in (("text", columns.text), ("pair", columns.pair), ("label", columns.label)):
            _check_there(table, role, name)
        return own, columns
    return None


def _plain_texts(table: Table, text: str | None, pair: str | None, label: str | None) -> Columns:
    if pair is not None or label is not None:
        raise DataError(f"{table.name}: kind='words' is for plain texts. Name text= alone, not {pair or label!r}.")
    first, second = find_texts(table, text, None)
    if second is not None:
        raise DataError(f"{table.name}: kind='words' is for single texts, not pairs. Name one column with text=.")
    return Columns(first, None, None)


def find_columns(table: Table, text: str | None, pair: str | None, label: str | None) -> Columns:
    """The columns that were named, and for what was not named the ones with a conventional name."""
    text, pair = find_texts(table, text, pair)
    _check_there(table, "label", label)
    label = label or _find_label(table)
    if label in (text, pair):
        raise DataError(f"{table.name}: column {label!r} cannot be both text and label. Name the other one.")
    return Columns(text, pair, label)


def find_texts(table: Table, text: str | None, pair: str | None) -> tuple[str, str | None]:
    """The columns of the text and of its pair, if there is one. Naming `text` alone means single texts."""
    if text is None and pair is not None:
        raise DataError(f"pair={pair!r} was named without text. Name the column of the first text too (text=...).")
    _check_there(table, "text", text)
    _check_there(table, "pair", pair)
    return _find_text(table) if text is None else (text, pair)


def _check_there(table: Table, role: str, name: str | None) -> None:
    if name is not None and name not in table.columns:
        raise DataError(f"{table.name}: no column {name!r} for {role}. {_there(table)}")


def _find_text(table: Table) -> tuple[str, str | None]:
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
            f"{table.name}: several columns could be the text ({found}). Name one with text=. {_there(table)}"
        )
    known = ", ".join([*TEXT_NAMES, *(f"{first}/{second}" for first, second in PAIR_NAMES)])
    raise DataError(
        f"{table.name}: no text column. {_there(table)} Expected one of {known}. "
        f"Name it with text= (and pair=), or add a header if the file has none."
    )


def _find_label(table: Table) -> str:
    found = [name for name in LABEL_NAMES if name in table.columns]
    if len(found) == 1 or found[:1] == [LABEL_NAMES[0]]:
        return found[0]
    if found:
        raise DataError(
            f"{table.name}: several columns could be the label ({', '.join(found)}). Name one with label=. "
            f"{_there(table)}"
        )
    raise DataError(
        f"{table.name}: no label column. {_there(table)} Expected one of {', '.join(LABEL_NAMES)}. Name it with "
        f"label=, or say kind='words' to learn from plain text."
    )


def _there(table: Table) -> str:
    return f"Columns there: {', '.join(repr(name) for name in table.columns) or 'none'}."
