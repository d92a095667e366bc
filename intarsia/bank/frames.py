"""Requests and answers of a bank in the forms of other libraries: columns, arrays and DataFrames."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from intarsia.bank.family import task_and_version
from intarsia.errors import DataError, IntarsiaError
from intarsia.tasks.examples import Kind, check_answers
from intarsia.tasks.frames import is_of, table_of_frame
from intarsia.tasks.requests import texts_of, texts_of_table

if TYPE_CHECKING:
    import numpy as np

    from intarsia.bank.entry import Entry
    from intarsia.bank.store import Store
    from intarsia.serve.parallel import Parallel
    from intarsia.serve.prediction import Prediction, Text
    from intarsia.tasks.tables import RawTable

logger = logging.getLogger(__name__)

# The fields of a prediction that become columns of a frame.
COLUMNS: dict[str, tuple[str, ...]] = {
    "label": ("label", "probability"),
    "labels": ("labels",),
    "score": ("score",),
    "tags": ("tags", "entities"),
    "span": ("answer", "start", "probability"),
    "words": ("masks",),
}


class Bank(Protocol):
    """What these functions need of a bank."""

    @property
    def predict(self) -> Callable[..., list[Prediction]]: ...
    def show(self, name: str, version: int | None = None) -> Entry: ...
    def tasks(self) -> list[Entry]: ...


class Probabilities(NamedTuple):
    """The probability of each label for each text: `values` [texts, labels], and the labels of the columns."""

    values: np.ndarray
    labels: tuple[str, ...]


def requests_of(store: Store, task: Any, texts: Any, version: int | None = None) -> list[tuple[str, Text]]:
    """The requests of a `predict` call: of one task, or (task, text) requests of many tasks."""
    if isinstance(task, str):
        return [(task, text) for text in _texts(f"predict({task!r}, …)", store, task, texts, version)]
    if texts is not None or isinstance(task, bytes) or not isinstance(task, Iterable):
        raise IntarsiaError(
            f"predict expects the name of a task and its texts, or a list of (task, text); found {_short(task)}."
        )
    requests = list(task)
    for number, request in enumerate(requests, 1):
        if not (isinstance(request, list | tuple) and len(request) == 2 and isinstance(request[0], str)):
            raise IntarsiaError(f"request {number} of predict: expected (task, text), found {_short(request)}.")
    return [(request[0], request[1]) for request in requests]


def parallel_requests(store: Store, parallel: Parallel, texts: Any) -> list[list[tuple[str, int | None, Text]]]:
    """The (task, version, text) requests of each text, one for each task."""
    named = [task_and_version(task) for task in parallel.tasks]
    columns = [_texts(f"predict(Parallel({name!r}, …), …)", store, name, texts, at) for name, at in named]
    return [
        [(name, at, text) for (name, at), text in zip(named, row, strict=True)] for row in zip(*columns, strict=True)
    ]


def texts_to_embed(store: Store, texts: Any, task: str | None) -> list[Any]:
    """The texts of an `embed` call."""
    return _texts("embed", store, task, texts, None)


def _texts(call: str, store: Store, task: str | None, texts: Any, version: int | None) -> list[Any]:
    """The texts for a task (None: for the plain base); raises if one is missing."""
    if isinstance(texts, list) and all(isinstance(text, str | tuple) for text in texts):
        return texts  # as in most calls: no description has to be read
    header = None if task is None else store.entry(task, version).header
    kind = cast(Kind, header.kind if header and header.kind != "none" else "label")
    try:
        found = texts_of(texts, kind, header.data.get("columns") if header else None)
    except DataError as error:
        raise DataError(f"{call}: {error}") from None
    missing = [number for number, text in enumerate(found, 1) if text is None]
    if missing:
        more = f" ({len(missing):,} of {len(found):,} are)" if len(missing) > 1 else ""
        raise DataError(
            f"{call}: text {missing[0]:,} is missing{more}. Drop it, for example with .dropna() in pandas; "
            "predict_frame gives such rows an empty answer."
        )
    return found


def predict_proba(bank: Bank, task: str, texts: Any, version: int | None = None) -> Probabilities:
    """The probabilities of a task's labels for many texts."""
    import numpy as np

    header = bank.show(task, version).header
    check_answers(header.kind, task)
    if header.kind not in ("label", "labels"):
        raise IntarsiaError(
            f"the task {task!r} is of the kind {header.kind!r}, which has no probability for each label. Use predict."
        )
    labels = tuple(header.labels)
    rows = [
        [(answer.probabilities or {})[label] for label in labels]
        for answer in bank.predict(task, texts, version=version)
    ]
    return Probabilities(np.array(rows, dtype=np.float64).reshape(len(rows), len(labels)), labels)


def predict_frame(
    bank: Bank,
    frame: Any,
    tasks: str | Iterable[str] | None = None,
    text: str | None = None,
    pair: str | None = None,
) -> Any:
    """A copy of a DataFrame with the answers' columns, named `task_field`."""
    if not is_of(frame, "pandas", "DataFrame"):
        raise DataError(f"predict_frame expects a pandas DataFrame, found {_short(frame)}. Use predict.")
    all_tasks = [e.name for e in bank.tasks() if e.state != "ok" or e.header.kind != "none"] if tasks is None else []
    names = [tasks] if isinstance(tasks, str) else [*(tasks or all_tasks)]
    table = cast("RawTable", table_of_frame("the DataFrame", frame))
    headers = {name: bank.show(name).header for name in names}
    for name, header in headers.items():
        check_answers(header.kind, name)
    for column in (text, pair):
        if column is not None and column not in table.columns:
            found = ", ".join(map(repr, table.columns))
            raise DataError(f"the DataFrame has no column {column!r}. Columns found: {found}.")
    texts = {}
    for name, header in headers.items():
        columns = dict(header.data.get("columns") or {}) if text is None else {"text": text}
        texts[name] = texts_of_table(
            table, cast(Kind, header.kind), columns if pair is None else {**columns, "pair": pair}
        )
    asked = [(name, row) for name in names for row, text in enumerate(texts[name]) if not _is_empty(text)]
    answers = dict(zip(asked, bank.predict([(name, texts[name][row]) for name, row in asked]), strict=True))
    out = frame.copy()
    for name in names:
        of_task = [answers.get((name, row)) for row in range(len(frame))]
        empty = sum(answer is None for answer in of_task)
        if empty:
            logger.warning("%s: %d of %d rows have no text and get no answer", name, empty, len(frame))
        for field in COLUMNS[headers[name].kind]:
            out[f"{name}_{field}"] = _column(frame, field, of_task)
    return out


def _column(frame: Any, field: str, answers: Sequence[Prediction | None]) -> Any:
    """A Series with a field of each answer, over the frame's index."""
    import pandas as pd

    values = [None if answer is None else getattr(answer, field) for answer in answers]
    if field == "tags":
        values = [None if value is None else [word["tag"] for word in value] for value in values]
    kind = {"score": "float64", "probability": "float64", "start": "Int64"}.get(field)
    if kind is None and all(value is None or isinstance(value, str) for value in values):
        return pd.Series(values, index=frame.index, dtype="str")
    return pd.Series(values, index=frame.index, dtype=kind or object)


def _is_empty(text: Any) -> bool:
    return text is None or (isinstance(text, str) and not text.strip())


def _short(value: Any) -> str:
    return "no texts" if value is None else f"a {type(value).__name__}"
