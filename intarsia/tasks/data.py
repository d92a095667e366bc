"""Loading a user's data set: reading, checking and splitting."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from itertools import compress
from numbers import Integral
from pathlib import Path
from typing import Any

from intarsia import formatting
from intarsia.errors import DataError, IntarsiaWarning, check_seed
from intarsia.formatting import listed, shown
from intarsia.tasks.columns import (
    OWN_NAMES,
    Columns,
    find_columns,
    find_own_columns,
    find_texts,
    usual_name,
    with_usual_names,
)
from intarsia.tasks.content import content_limit
from intarsia.tasks.decoding import FileFormat
from intarsia.tasks.documents import documents
from intarsia.tasks.examples import KINDS, Example, Kind, Question, Sentence, TaskData
from intarsia.tasks.labels import infer_kind, is_missing, looks_missing, one_name, plain, to_label
from intarsia.tasks.notes import notes_on
from intarsia.tasks.reading import local_path
from intarsia.tasks.sources import Source, gather, table_of_file
from intarsia.tasks.splits import hold_out, sample, split
from intarsia.tasks.tables import Gathered, RawTable

LEAST_EXAMPLES = 10
MOST_OUTPUTS = 1 << 29  # float32 numbers of one part
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
    sep: str | None = None,
    encoding: str | None = None,
    drop_missing: bool = False,
    max_bytes: int | None = None,
) -> TaskData:
    """Load a file, a folder, a hub data set or Python objects as train, dev and test.

    `text`, `pair` and `label` name columns, and `kind` is the task kind; what is not given is inferred. Missing parts
    are split off with `seed`. `limit` is the largest number of training (and of dev) examples to keep. `sep` and
    `encoding` describe files whose separator or encoding is not recognised. `drop_missing` leaves out the rows without
    a text or without a label, and counts them in `source["dropped"]`; without it they are an error.
    A file may have `max_bytes` of content, after decompression; by default 2 GiB.
    """
    if kind is not None and kind not in KINDS:
        raise DataError(f"unknown kind {kind!r}. Expected one of {', '.join(KINDS)}.")
    check_seed(seed)
    if limit is not None and (not isinstance(limit, Integral) or isinstance(limit, bool)):
        raise DataError(f"limit must be a whole number or None, not {limit!r} ({type(limit).__name__}).")
    if limit is not None and limit < 1:
        raise DataError(f"limit={limit} leaves no training examples. Expected at least 1.")
    seed, limit = int(seed), None if limit is None else int(limit)
    with content_limit(max_bytes):
        gathered = gather(source, FileFormat.of(sep, encoding))
    tables = with_usual_names(_join_lines(gathered.tables, kind))
    main = _training_part(gathered)
    text, pair, label = (usual_name(name, tables[main]) for name in (text, pair, label))
    _check_sizes(tables, main)
    own = find_own_columns(tables[main], text, pair, label, kind)
    columns = own[1] if own else find_columns(tables[main], text, pair, label)
    hidden = "test" in tables and _unlabelled(tables["test"], columns)
    if hidden:
        tables = {name: table for name, table in tables.items() if name != "test"}
    dropped = 0
    if drop_missing:
        tables, dropped = _without_missing(tables, columns)
        _check_sizes(tables, main)
    found_kind = own[0] if own else kind or infer_kind(tables.values(), columns.label or "")

    notes: list[str] = []
    given = {name: _examples(table, columns, found_kind) for name, table in tables.items()}
    labels = tuple(sorted({name for example in given[main] for name in _names(example)}))
    if columns.label is not None:
        _check_training_labels(tables[main], columns.label, given[main], labels, guessed=kind is None and own is None)
        for name, examples in given.items():
            _check_labels_known(tables[name], columns.label, examples, labels)
        for note in (notes := notes_on(tables, given, found_kind, columns.label)):
            warnings.warn(note, IntarsiaWarning, stacklevel=2)

    parts, how = _arrange(given, hidden, seed, found_kind)
    if not all(parts.values()):
        counts = ", ".join(f"{name} {len(part)}" for name, part in parts.items())
        raise DataError(
            f"{tables[main].name}: too few different texts to split ({counts}). Add examples, or give all three parts."
        )
    if limit is not None:
        if limit < len(labels):
            raise DataError(
                f"limit={limit} is less than the number of labels, {len(labels)}. Raise it to {len(labels)}."
            )
        parts["train"] = sample(parts["train"], limit, seed=seed, kind=found_kind)
        parts["dev"] = sample(parts["dev"], limit, seed=seed, kind=found_kind)  # a small run needs no larger dev part
    _check_memory(tables[main].name, found_kind, len(labels), parts)
    provenance = {
        **gathered.origin,
        "columns": {"text": columns.text, "pair": columns.pair, "label": columns.label},
        "rows": {name: len(part) for name, part in parts.items()},
        "sha256": content_hash(parts),
        "split": how,
        "seed": seed,
        "limit": limit,
        **({"dropped": dropped} if drop_missing else {}),
        **{name: value for name, value in (("sep", sep), ("encoding", encoding)) if value is not None},
        **({"notes": notes} if notes else {}),
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
    learned_from: Mapping[str, str | None] | None = None,
    sep: str | None = None,
    encoding: str | None = None,
    drop_missing: bool = False,
    max_bytes: int | None = None,
) -> list[Example]:
    """Labelled examples to evaluate a trained task on: the test part of a source, or all rows if it has no parts.

    As in `load_data`, dev is used if test is missing or has hidden labels. A source without parts is not split here, so
    its rows may be among those that the task was trained on. If no column is named, the columns in `learned_from`
    (text, pair, label) are used where the data has them all.
    """
    with content_limit(max_bytes):
        gathered = gather(source, FileFormat.of(sep, encoding))
    tables = with_usual_names(_join_lines(gathered.tables, kind))
    usable = [tables[name] for name in ("test", "dev", "all") if name in tables]
    if not usable:
        raise DataError("the data has only a train part. Evaluation needs a test part: add it, or give one file.")
    main = tables.get("train", usable[-1])
    text, pair, label = (usual_name(name, main) for name in (text, pair, label))
    known = {role: name for role, name in (learned_from or {}).items() if name is not None}
    if text is pair is label is None and set(known.values()) <= set(main.columns):
        text, pair, label = (known.get(role) for role in ("text", "pair", "label"))
    own = find_own_columns(main, text, pair, label, kind)
    columns = own[1] if own else find_columns(main, text, pair, label)
    table = next((part for part in usable if not _unlabelled(part, columns)), usable[0])
    if drop_missing:
        table = _without_missing({"": table}, columns)[0][""]
    _check_not_empty(table)
    examples = [_with_stored_labels(example, labels) for example in _examples(table, columns, kind)]
    if columns.label is not None:
        _check_labels_known(table, columns.label, examples, labels)
    _check_memory(table.name, kind, len(labels), {"test": examples})
    return examples


def load_texts(path: str | Path, *, text: str | None = None, pair: str | None = None) -> list[str | tuple[str, str]]:
    """The texts or text pairs of a file; labels are ignored."""
    table = table_of_file(local_path(path))
    first, second = find_texts(table, text, pair)
    if table.lines:
        return [row[first] for row in table.rows if row[first]]
    for index, row in enumerate(table.rows):
        for column in (first, second) if second else (first,):
            _check_text(row.get(column), table.where(index, column))
    return [(row[first], row[second]) if second else row[first] for row in table.rows]


def load_sentences(path: str | Path, *, text: str | None = None) -> list[tuple[str, ...]]:
    """The sentences of a file: lists of words, or texts that are split at white space."""
    from intarsia.tasks.tagging import read_words

    table = table_of_file(local_path(path))
    column = text or (
        OWN_NAMES["tags"][0] if OWN_NAMES["tags"][0] in table.columns else find_texts(table, None, None)[0]
    )
    if column not in table.columns:
        raise DataError(f"{table.name}: no column {column!r} for text. Columns found: {listed(table.columns)}.")
    return [read_words(row.get(column), table.where(index, column)) for index, row in enumerate(table.rows)]


def load_questions(path: str | Path, *, text: str | None = None, pair: str | None = None) -> list[Question]:
    """The questions of a file with their contexts; answers are ignored."""
    from intarsia.tasks.spans import read_question

    table = table_of_file(local_path(path))
    first, second, _ = OWN_NAMES["span"]
    columns = text or first, pair or second or ""
    for column in columns:
        if column not in table.columns:
            raise DataError(f"{table.name}: no column {column!r}. Columns found: {listed(table.columns)}.")
    return [read_question(row, *columns, None, table.where(index, columns[0])) for index, row in enumerate(table.rows)]


def content_hash(parts: Parts) -> str:
    """SHA-256 of the examples' content. The file format does not matter."""
    digest = hashlib.sha256()
    for name, examples in parts.items():
        for example in examples:
            content: list[object] = [name, example.text, example.pair, example.label]
            if isinstance(example, Question):
                content += [example.id, example.answers]
            digest.update(json.dumps(content).encode() + b"\n")
    return digest.hexdigest()


def _join_lines(tables: dict[str, RawTable], kind: Kind | None) -> dict[str, RawTable]:
    """The tables; for the kind `words`, lines of plain text are joined to texts."""
    if kind != "words":
        return tables
    return {name: documents(table) if table.lines else table for name, table in tables.items()}


def _examples(table: RawTable, columns: Columns, kind: Kind) -> list[Example]:
    """The checked examples of a table."""
    for column in columns.texts:
        if column not in table.columns:
            raise DataError(
                f"{table.name}: no column {column!r}, which the training data has. "
                f"Columns found: {listed(table.columns)}."
            )
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


def _without_missing(tables: dict[str, RawTable], columns: Columns) -> tuple[dict[str, RawTable], int]:
    """The tables without the rows that lack a text or a label, and the number of these rows."""
    kept = {}
    for name, table in tables.items():
        whole = [
            not any(is_missing(row.get(column)) for column in columns.texts)
            and (columns.label is None or not _lacks_label(plain(row.get(columns.label))))
            for row in table.rows
        ]
        kept[name] = replace(
            table,
            numbers=list(compress(table.numbers, whole)),
            rows=list(compress(table.rows, whole)),
        )
    return kept, sum(len(table.rows) for table in tables.values()) - sum(len(table.rows) for table in kept.values())


def _lacks_label(value: Any) -> bool:
    return is_missing(value) or looks_missing(value)


def _with_stored_labels(example: Example, labels: tuple[str, ...]) -> Example:
    """The example with its labels as a task has them that was learned before names such as `1.0` and `True` were
    written as `1` and `true`."""
    stored = {one_name(label): label for label in labels if label != one_name(label)}
    if not stored or example.label is None or isinstance(example, Sentence):
        return example
    if isinstance(example.label, tuple):
        return replace(example, label=tuple(stored.get(name, name) for name in example.label))
    return replace(example, label=stored.get(str(example.label), example.label))


def _sentences(table: RawTable, text: str, label: str) -> list[Example]:
    from intarsia.tasks.tagging import read_sentence

    return [read_sentence(row, text, label, table.where(index, label)) for index, row in enumerate(table.rows)]


def _questions(table: RawTable, text: str, pair: str, label: str) -> list[Example]:
    from intarsia.tasks.spans import read_question

    return [read_question(row, text, pair, label, table.where(index, label)) for index, row in enumerate(table.rows)]


def _unlabelled(table: RawTable, columns: Columns) -> bool:
    """Whether the kind needs labels and no row has one."""
    return columns.label is not None and all(_missing_labels(table, columns.label))


def _missing_labels(table: RawTable, column: str) -> list[bool]:
    """Per row, whether its label is missing."""
    return [is_missing(plain(row.get(column))) for row in table.rows]


def _check_all_labelled(table: RawTable, column: str) -> None:
    missing = [index for index, is_none in enumerate(_missing_labels(table, column)) if is_none]
    if missing:
        more = f" ({len(missing):,} of {len(table.rows):,} rows have none)" if len(missing) > 1 else ""
        raise DataError(
            f"{table.where(missing[0], column)}: no label{more}. Give it a label, or leave such rows out "
            "(drop_missing=True)."
        )


def _check_text(text: object, where: str) -> None:
    if text is None or (isinstance(text, str) and not text.strip()):
        raise DataError(f"{where}: the text is empty. Fill it in, or drop the row.")
    if not isinstance(text, str):
        raise DataError(f"{where}: expected a text, found {shown(text)} ({type(text).__name__}). Make it a text.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError(f"{where}: the text has half of a surrogate pair. Correct it, or drop the row.") from None


def _names(example: Example) -> tuple[str, ...]:
    """The label names of an example."""
    if isinstance(example.label, tuple):
        return example.label
    return (example.label,) if isinstance(example.label, str) else ()


def _training_part(gathered: Gathered) -> str:
    """The name of the table to train on: `all` or `train`."""
    found = ", ".join(sorted(gathered.tables))
    if "all" in gathered.tables and len(gathered.tables) > 1:
        raise DataError(f"{gathered.name}: has the parts {found}. Expected only all, or train with dev and test.")
    if not gathered.tables.keys() & {"all", "train"}:
        raise DataError(f"{gathered.name}: no train part; found {found or 'nothing'}. Add one.")
    return "all" if "all" in gathered.tables else "train"


def _check_not_empty(table: RawTable) -> None:
    if not table.rows:
        raise DataError(f"{table.name}: no examples. Add some, or leave the file out.")


def _check_sizes(tables: dict[str, RawTable], main: str) -> None:
    for table in tables.values():
        _check_not_empty(table)
    total = sum(len(table.rows) for table in tables.values())
    if total < LEAST_EXAMPLES:
        raise DataError(
            f"{tables[main].name}: too few examples: {total} in all parts. Expected at least {LEAST_EXAMPLES}."
        )


def _check_training_labels(
    table: RawTable, column: str, training: list[Example], labels: tuple[str, ...], guessed: bool
) -> None:
    where = f"{table.name}, column {column!r}"
    if isinstance(training[0], Question):
        if not any(isinstance(example, Question) and example.answers for example in training):
            raise DataError(f"{where}: no question has an answer. Expected at least one.")
        return
    different: set[object] = {example.label for example in training}
    if any(isinstance(example, Sentence) for example in training):
        different = set(labels)
    if len(different) < 2:
        only = next(iter(different))
        raise DataError(f"{where}: every training example has the label {shown(only)}. Expected two or more labels.")
    one_each = all(isinstance(label, str) for label in different)
    if guessed and one_each and len(labels) > len(training) / 2:
        raise DataError(
            f"{where}: {len(labels):,} different labels in {len(training):,} rows do not look like classes. Name the "
            f"right column with label=, or set kind='score' for numbers, or kind='label' if they are classes."
        )


def _check_labels_known(table: RawTable, column: str, examples: list[Example], labels: tuple[str, ...]) -> None:
    known = set(labels)
    for index, example in enumerate(examples):
        for name in _names(example):
            if name not in known:
                raise DataError(
                    f"{table.where(index, column)}: label {shown(name)} does not occur in training. Known labels: "
                    f"{listed(labels)}. "
                    f"Correct it, or add training examples for it."
                )


def _check_memory(name: str, kind: Kind, labels: int, parts: Parts) -> None:
    """Raise if the outputs of a part, one number for each row or word and label, would take too much memory."""
    held = parts if kind == "labels" else {part: parts[part] for part in parts if part != "train"}
    for part, examples in held.items():
        rows = sum(len(e.words) for e in examples if isinstance(e, Sentence)) if kind == "tags" else len(examples)
        if rows * labels > MOST_OUTPUTS:
            unit = "words" if kind == "tags" else "rows"
            raise DataError(
                f"{name}: {labels:,} labels are too many for {rows:,} {unit} in {part}: their outputs would take "
                f"{formatting.size(4 * rows * labels)} (the limit is {formatting.size(4 * MOST_OUTPUTS)}). Merge rare "
                f"labels, or use fewer rows (limit=, or a smaller {part} part)."
            )


def _arrange(given: Parts, hidden: bool, seed: int, kind: Kind) -> tuple[Parts, str]:
    """Train, dev and test from the given parts, and a description of how they were made.

    Results are reported on test. If only dev has labels, dev becomes test, and a model is never selected on it.
    """
    grouped = f"{'' if kind == 'words' else 'stratified by label, '}equal texts kept together"
    no_test = "test labels are hidden; " if hidden else ""
    dev, test = given.get("dev"), given.get("test")
    if "all" in given or (dev is None and test is None):
        train, dev, test = split(given.get("all") or given["train"], seed=seed, kind=kind)
        how = f"{no_test}80/10/10, {grouped}"
    elif test is None:
        test = dev
        train, dev = hold_out(given["train"], seed=seed, kind=kind)
        how = f"{no_test or 'no test; '}the given dev is test, dev is a tenth of train, {grouped}"
    elif dev is None:
        train, dev = hold_out(given["train"], seed=seed, kind=kind)
        how = f"dev is a tenth of train, {grouped}; test as given"
    else:
        train, how = given["train"], "as given"
    return {"train": train, "dev": dev or [], "test": test or []}, how
