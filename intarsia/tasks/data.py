"""A data set as a user has it, read, checked and split."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from intarsia.errors import DataError
from intarsia.tasks.columns import OWN_NAMES, Columns, find_columns, find_own_columns, find_texts
from intarsia.tasks.documents import documents
from intarsia.tasks.examples import KINDS, Example, Kind, Question, Sentence, TaskData
from intarsia.tasks.labels import infer_kind, is_missing, plain, to_label
from intarsia.tasks.sources import Source, gather, table_of_file
from intarsia.tasks.splits import hold_out, sample, split
from intarsia.tasks.tables import Gathered, Table

LEAST_EXAMPLES = 10
Parts = dict[str, list[Example]]


def load_data(
    source: Source,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    kind: Kind | None = None,
    seed: int = 0,
    limit: int | None = None,
) -> TaskData:
    """Reads a file, a folder, a hub data set or Python objects into train, dev and test.

    `text`, `pair` and `label` name columns, `kind` says what the labels are; both are found out if not given. Parts
    that the source does not have are split off with `seed`. `limit` is the most training (and dev) examples to keep.
    """
    if kind is not None and kind not in KINDS:
        raise DataError(f"unknown kind {kind!r}. Expected one of {', '.join(KINDS)}.")
    if limit is not None and limit < 1:
        raise DataError(f"limit={limit} leaves nothing to train on. Expected at least 1.")
    gathered = gather(source)
    tables = _texts(gathered.tables, kind)
    main = _training_part(gathered)
    _check_sizes(tables, main)
    own = find_own_columns(tables[main], text, pair, label, kind)
    columns = own[1] if own else find_columns(tables[main], text, pair, label)
    hidden = "test" in tables and _unlabelled(tables["test"], columns)
    if hidden:
        tables = {name: table for name, table in tables.items() if name != "test"}
    found_kind = own[0] if own else kind or infer_kind(tables.values(), columns.label or "")

    given = {name: _examples(table, columns, found_kind) for name, table in tables.items()}
    labels = tuple(sorted({name for example in given[main] for name in _names(example)}))
    if columns.label is not None:
        _check_training_labels(tables[main], columns.label, given[main], labels, guessed=kind is None and own is None)
        for name, examples in given.items():
            _check_known(tables[name], columns.label, examples, labels)

    parts, how = _arrange(given, hidden, seed, found_kind)
    if not all(parts.values()):
        counts = ", ".join(f"{name} {len(part)}" for name, part in parts.items())
        raise DataError(
            f"{tables[main].name}: too few different texts to split ({counts}). Add examples, or give the parts."
        )
    if limit is not None:
        if limit < len(labels):
            raise DataError(
                f"limit={limit} is less than the {len(labels)} labels there are. Raise it to {len(labels)}."
            )
        parts["train"] = sample(parts["train"], limit, seed=seed, kind=found_kind)
        parts["dev"] = sample(parts["dev"], limit, seed=seed, kind=found_kind)  # no more to choose by
    provenance = {
        **gathered.origin,
        "columns": {"text": columns.text, "pair": columns.pair, "label": columns.label},
        "rows": {name: len(part) for name, part in parts.items()},
        "sha256": content_hash(parts),
        "split": how,
        "seed": seed,
        "limit": limit,
    }
    return TaskData(found_kind, labels, **parts, source=provenance)


def load_examples(
    source: Source,
    *,
    kind: Kind,
    labels: tuple[str, ...],
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
) -> list[Example]:
    """Labelled examples to measure a trained task on: the test part of a source, or all rows where it has no parts.

    As in `load_data`, dev serves where test is missing or hidden. Rows without parts are not split here, so they may
    be rows that the task was trained on.
    """
    tables = _texts(gather(source).tables, kind)
    usable = [tables[name] for name in ("test", "dev", "all") if name in tables]
    if not usable:
        raise DataError("there is a train part only, on which nothing can be measured. Add test, or give one file.")
    main = tables.get("train", usable[-1])
    own = find_own_columns(main, text, pair, label, kind)
    columns = own[1] if own else find_columns(main, text, pair, label)
    table = next((some for some in usable if not _unlabelled(some, columns)), usable[0])
    _check_not_empty(table)
    examples = _examples(table, columns, kind)
    if columns.label is not None:
        _check_known(table, columns.label, examples, labels)
    return examples


def load_texts(path: str | Path, *, text: str | None = None, pair: str | None = None) -> list[str | tuple[str, str]]:
    """The texts of a file, or its pairs of texts; labels are not looked at."""
    table = table_of_file(Path(path).expanduser())
    first, second = find_texts(table, text, pair)
    if table.lines:
        return [row[first] for row in table.rows if row[first]]
    for index, row in enumerate(table.rows):
        for column in (first, second) if second else (first,):
            _check_text(row.get(column), table.where(index, column))
    return [(row[first], row[second]) if second else row[first] for row in table.rows]


def load_sentences(path: str | Path, *, text: str | None = None) -> list[tuple[str, ...]]:
    """The sentences of a file: its lists of words, or its texts, whose words are separated by white space."""
    from intarsia.tasks.tagging import read_words

    table = table_of_file(Path(path).expanduser())
    column = text or (
        OWN_NAMES["tags"][0] if OWN_NAMES["tags"][0] in table.columns else find_texts(table, None, None)[0]
    )
    if column not in table.columns:
        raise DataError(f"{table.name}: no column {column!r} for text. Columns there: {', '.join(table.columns)}.")
    return [read_words(row.get(column), table.where(index, column)) for index, row in enumerate(table.rows)]


def load_questions(path: str | Path, *, text: str | None = None, pair: str | None = None) -> list[Question]:
    """The questions of a file with their contexts; answers are not looked at."""
    from intarsia.tasks.spans import read_question

    table = table_of_file(Path(path).expanduser())
    first, second, _ = OWN_NAMES["span"]
    columns = text or first, pair or second or ""
    for column in columns:
        if column not in table.columns:
            raise DataError(f"{table.name}: no column {column!r}. Columns there: {', '.join(table.columns)}.")
    return [read_question(row, *columns, None, table.where(index, columns[0])) for index, row in enumerate(table.rows)]


def content_hash(parts: Parts) -> str:
    """A hash of what the examples say, the same for the same content from any file format."""
    digest = hashlib.sha256()
    for name, examples in parts.items():
        for example in examples:
            content: list[object] = [name, example.text, example.pair, example.label]
            if isinstance(example, Question):
                content += [example.id, example.answers]
            digest.update(json.dumps(content).encode() + b"\n")
    return digest.hexdigest()


def _texts(tables: dict[str, Table], kind: Kind | None) -> dict[str, Table]:
    """For plain text: lines joined to texts."""
    if kind != "words":
        return tables
    return {name: documents(table) if table.lines else table for name, table in tables.items()}


def _examples(table: Table, columns: Columns, kind: Kind) -> list[Example]:
    for column in columns.texts:
        if column not in table.columns:
            raise DataError(f"{table.name}: no column {column!r} as in training. Columns there: {table.columns}.")
    label = columns.label
    if label is not None:
        _check_all_labelled(table, label)
        if kind == "tags":
            return _sentences(table, columns.text, label)
        if kind == "span":
            return _questions(table, columns.text, columns.pair or "context", label)
    examples = []
    for index, row in enumerate(table.rows):
        for column in columns.texts:
            _check_text(row.get(column), table.where(index, column))
        found = None if label is None else to_label(row[label], kind, table.where(index, label))
        examples.append(Example(row[columns.text], None if columns.pair is None else row[columns.pair], found))
    return examples


def _sentences(table: Table, text: str, label: str) -> list[Example]:
    from intarsia.tasks.tagging import read_sentence

    return [read_sentence(row, text, label, table.where(index, label)) for index, row in enumerate(table.rows)]


def _questions(table: Table, text: str, pair: str, label: str) -> list[Example]:
    from intarsia.tasks.spans import read_question

    return [read_question(row, text, pair, label, table.where(index, label)) for index, row in enumerate(table.rows)]


def _unlabelled(table: Table, columns: Columns) -> bool:
    """Whether every label is missing that should be there."""
    return columns.label is not None and all(_no_label(table, columns.label))


def _no_label(table: Table, column: str) -> list[bool]:
    return [is_missing(plain(row.get(column))) for row in table.rows]


def _check_all_labelled(table: Table, column: str) -> None:
    missing = [index for index, none in enumerate(_no_label(table, column)) if none]
    if missing:
        more = f" ({len(missing):,} of {len(table.rows):,} rows have none)" if len(missing) > 1 else ""
        raise DataError(f"{table.where(missing[0], column)}: no label{more}. Give it a label, or drop the row.")


def _check_text(text: object, where: str) -> None:
    if text is None or (isinstance(text, str) and not text.strip()):
        raise DataError(f"{where}: the text is empty. Fill it in, or drop the row.")
    if not isinstance(text, str):
        raise DataError(f"{where}: expected a text, found {text!r}, a {type(text).__name__}. Put it in quotes.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError(f"{where}: half of a surrogate pair stands alone in the text. Mend it, or drop it.") from None


def _names(example: Example) -> tuple[str, ...]:
    if isinstance(example.label, tuple):
        return example.label
    return (example.label,) if isinstance(example.label, str) else ()


def _training_part(gathered: Gathered) -> str:
    found = ", ".join(sorted(gathered.tables))
    if "all" in gathered.tables and len(gathered.tables) > 1:
        raise DataError(f"{gathered.name}: holds {found}. Expected either all alone, or train with dev and test.")
    if not gathered.tables.keys() & {"all", "train"}:
        raise DataError(f"{gathered.name}: no train part, only {found or 'nothing'}. Training needs one: add it.")
    return "all" if "all" in gathered.tables else "train"


def _check_not_empty(table: Table) -> None:
    if not table.rows:
        raise DataError(f"{table.name}: no examples. Add some, or leave it out.")


def _check_sizes(tables: dict[str, Table], main: str) -> None:
    for table in tables.values():
        _check_not_empty(table)
    total = sum(len(table.rows) for table in tables.values())
    if total < LEAST_EXAMPLES:
        raise DataError(
            f"{tables[main].name}: too few examples: {total} in all parts together. "
            f"Expected at least {LEAST_EXAMPLES}. Add some."
        )


def _check_training_labels(
    table: Table, column: str, training: list[Example], labels: tuple[str, ...], guessed: bool
) -> None:
    where = f"{table.name}, column {column!r}"
    if isinstance(training[0], Question):
        if not any(isinstance(example, Question) and example.answers for example in training):
            raise DataError(f"{where}: no question has an answer. Expected some to learn from.")
        return
    different: set[object] = {example.label for example in training}
    if any(isinstance(example, Sentence) for example in training):
        different = set(labels)
    if len(different) < 2:
        only = next(iter(different))
        raise DataError(f"{where}: every training example has the label {only!r}. Expected two different ones or more.")
    one_each = all(isinstance(label, str) for label in different)
    if guessed and one_each and len(labels) > len(training) / 2:
        raise DataError(
            f"{where}: {len(labels):,} different labels in {len(training):,} rows do not look like classes. Name the "
            f"right column with label=, or say kind='score' for numbers, or kind='label' if they are classes."
        )


def _check_known(table: Table, column: str, examples: list[Example], labels: tuple[str, ...]) -> None:
    for index, example in enumerate(examples):
        for name in _names(example):
            if name not in labels:
                known = ", ".join(labels[:20]) + (", ..." if len(labels) > 20 else "")
                raise DataError(
                    f"{table.where(index, column)}: label {name!r} does not occur in training. Known labels: {known}. "
                    f"Correct it, or add training examples for it."
                )


def _arrange(given: Parts, hidden: bool, seed: int, kind: Kind) -> tuple[Parts, str]:
    """Train, dev and test from what there is, and how they came about.

    Results are reported on test, so where only dev has known labels it serves as test, and never for choosing a model.
    """
    grouped = f"{'' if kind == 'words' else 'stratified by label, '}equal texts kept together"
    no_test = "test labels are hidden; " if hidden else ""
    dev, test = given.get("dev"), given.get("test")
    if "all" in given or (dev is None and test is None):
        train, dev, test = split(given.get("all") or given["train"], seed=seed, kind=kind)
        how = f"{no_test}80/10/10, {grouped}"
    elif test is None:
        train, held = hold_out(given["train"], seed=seed, kind=kind)
        dev, test = held, dev
        how = f"{no_test or 'no test; '}the given dev is test, dev is a tenth of train, {grouped}"
    elif dev is None:
        train, dev = hold_out(given["train"], seed=seed, kind=kind)
        how = f"dev is a tenth of train, {grouped}; test as given"
    else:
        train, how = given["train"], "as given"
    return {"train": train, "dev": dev or [], "test": test or []}, how
