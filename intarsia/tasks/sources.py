"""Data sources: a file, a folder, a hub data set or Python objects. Each becomes tables of raw rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from intarsia.errors import DataError
from intarsia.tasks.decoding import FileFormat
from intarsia.tasks.examples import Example, Question, Sentence
from intarsia.tasks.frames import EXPECTED, is_of, row_of, table_of_frame
from intarsia.tasks.hub import load_hub
from intarsia.tasks.reading import KNOWN_ENDINGS, RawRow, data_format, local_path, read_rows, stem
from intarsia.tasks.tables import SPLIT_NAMES, Gathered, RawTable

HUB_NAME = re.compile(r"(?P<name>[\w.-]+(/[\w.-]+)?)(:(?P<config>[\w.-]+))?")

Source = str | Path | Mapping[str, Any] | Sequence[Any] | Any  # Any: the frames of frames.py


def gather(source: Source, form: FileFormat | None = None) -> Gathered:
    """The tables of any source that a user may give. `form` says what cannot be told from its files."""
    if isinstance(source, str | Path):
        return _from_name(source, form)
    if isinstance(source, Mapping) and not source.keys().isdisjoint(SPLIT_NAMES):
        return _from_mapping(source, form)
    if (table := table_in_memory(source)) is not None:
        return Gathered(table.name, {"all": table}, {"from": "memory"})
    if isinstance(source, Mapping):
        return _from_mapping(source, form)
    raise DataError(f"cannot read data from a {type(source).__name__}. Expected {EXPECTED}.")


def table_in_memory(source: Any) -> RawTable | None:
    """The table of Python objects: a frame, a dict of lists, (X, y) or rows; None if `source` has no rows."""
    if (table := table_of_frame(_name_of(source), source)) is not None:
        return table
    if isinstance(source, Iterable) and not isinstance(source, Mapping | bytes):
        return _table_of_objects("the list", source)
    return None


def _name_of(source: Any) -> str:
    """What to call an object in error messages."""
    kind = type(source).__name__
    return {"dict": "the dict", "tuple": "(X, y)"}.get(kind, f"the {kind}")


def _from_mapping(parts: Mapping[str, Any], form: FileFormat | None) -> Gathered:
    """The tables of a mapping from part names to files or examples."""
    if is_of(parts, "datasets"):  # a data set may have further parts, such as the unlabelled one of IMDb
        parts = {name: part for name, part in parts.items() if name in SPLIT_NAMES}
    files = {SPLIT_NAMES.get(name, name): str(part) for name, part in parts.items() if isinstance(part, str | Path)}
    tables = _one_table_per_split(parts.items(), "the mapping", lambda name, part: _table_of_part(name, part, form))
    return Gathered("the mapping", tables, {"from": "files", "files": files} if files else {"from": "memory"})


def table_of_file(path: Path, form: FileFormat | None = None) -> RawTable:
    """The table of all rows of a file."""
    numbered = list(read_rows(path, form))
    unit = {"parquet": "row", "xlsx": "row", "json": "item"}.get(data_format(path) or "", "line")
    lines = data_format(path) == "txt"
    return RawTable(str(path), unit, [number for number, _ in numbered], [row for _, row in numbered], lines)


def _table_of_objects(name: str, items: Iterable[Any]) -> RawTable:
    """The table of Python objects."""
    rows = [_row(name, number, item) for number, item in enumerate(items, 1)]
    return RawTable(name, "item", range(1, len(rows) + 1), rows)


def _table_of_part(name: str, part: Any, form: FileFormat | None) -> RawTable:
    """The table of one part of a mapping: a file or examples."""
    if isinstance(part, str | Path):
        return table_of_file(local_path(part), form)
    if (table := table_of_frame(name, part)) is not None:
        return table
    if isinstance(part, Iterable) and not isinstance(part, Mapping | bytes):
        return _table_of_objects(name, part)
    raise DataError(f"{name}: expected a list of examples or the path of a file, found a {type(part).__name__}.")


def _row(name: str, number: int, item: Any) -> RawRow:
    """A Python object as a raw row."""
    if isinstance(item, Question):
        answers = (
            None if item.answers is None else [{"answer_start": start, "text": text} for start, text in item.answers]
        )
        return {"id": item.id, "question": item.text, "context": item.pair, "answers": answers}
    if isinstance(item, Sentence):
        return {"tokens": item.words, "tags": item.label}
    if isinstance(item, Example):
        if item.pair is None:
            return {"text": item.text, "label": item.label}
        return {"text_a": item.text, "text_b": item.pair, "label": item.label}
    return row_of(name, number, item)


def _from_name(source: str | Path, form: FileFormat | None) -> Gathered:
    """The tables of a path or a hub name."""
    path = local_path(source)
    if path.is_dir():
        return _from_folder(path, form)
    if path.exists() or isinstance(source, Path):
        return _from_file(path, form)
    name, forced = source.removeprefix("hub:"), source.startswith("hub:")
    match = HUB_NAME.fullmatch(name)
    # A path and a hub name can look alike. A name in an existing folder, or with the ending of a data file, is a path.
    if match and (forced or ("/" in name and not path.parent.is_dir() and data_format(path) is None)):
        return load_hub(match["name"], match["config"])
    if forced:
        raise DataError(f"{source!r} does not name a hub data set. Expected hub:OWNER/NAME or hub:OWNER/NAME:CONFIG.")
    try:
        return _from_file(path, form)
    except DataError as error:
        if match and data_format(path) is None:
            raise DataError(f"{error} For a data set of the hub, write hub:{name}.") from None
        raise


def _from_file(path: Path, form: FileFormat | None) -> Gathered:
    return Gathered(str(path), {"all": table_of_file(path, form)}, {"from": "file", "path": str(path)})


def _from_folder(folder: Path, form: FileFormat | None) -> Gathered:
    files = sorted(path for path in folder.iterdir() if path.is_file() and data_format(path))
    parts = [(stem(path), path) for path in files if stem(path) in SPLIT_NAMES]
    if not parts:
        raise DataError(
            f"{folder}: no data files with a known name. Expected train, dev and test, or all, with one of the endings "
            f"{KNOWN_ENDINGS}; found {_listed(folder)}. "
            f"Rename the files, give the path of one file, or in Python {{'train': path, 'dev': path}}."
        )
    tables = _one_table_per_split(parts, str(folder), lambda _, path: table_of_file(path, form))
    names = {SPLIT_NAMES[name]: path.name for name, path in parts}
    return Gathered(str(folder), tables, {"from": "folder", "path": str(folder), "files": names})


def _one_table_per_split(
    parts: Iterable[tuple[Any, Any]], name: str, read: Callable[[str, Any], RawTable]
) -> dict[str, RawTable]:
    """One table per split; raises if a part's name is unknown or if two parts are the same split."""
    chosen: dict[str, Any] = {}
    for part_name, part in parts:
        split = SPLIT_NAMES.get(str(part_name))
        if split is None:
            raise DataError(f"{name}: unknown part {part_name!r}. Expected train, dev and test, or all.")
        if split in chosen:
            raise DataError(f"{name}: more than one {split} part ({chosen[split]} and {part}). Keep one of them.")
        chosen[split] = part
    return {split: read(split, part) for split, part in chosen.items()}


def _listed(folder: Path) -> str:
    """The first names in a folder, for a message."""
    names = sorted(entry.name for entry in folder.iterdir())
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") or "nothing"
