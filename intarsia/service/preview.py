"""What a job would learn from its data: the columns, the labels, and what is wrong with it. The library's own reading
decides, so a preview without a problem is a job that can start."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.errors import IntarsiaError
from intarsia.service import schemas
from intarsia.service.errors import without_paths
from intarsia.service.job_routes import SUFFIXES, Given, board, check_method, options_as_query, storing
from intarsia.service.job_worker import data_options
from intarsia.service.state import Service
from intarsia.service.web import Operation, Reply, Request

if TYPE_CHECKING:
    from intarsia.tasks.examples import TaskData

ROWS, CHARACTERS, LABELS = 5, 200, 100  # of what a preview shows


async def preview(request: Request) -> Reply:
    board(request)
    given = await Given.of(request)
    with storing(), tempfile.TemporaryDirectory(prefix="intarsia-preview-") as folder:
        path = await given.store(request, Path(folder))
        return Reply.json(await request.service.in_thread(preview_of, request.service, path, given.options))


def preview_of(service: Service, path: Path, options: dict[str, Any]) -> schemas.Preview:
    """The preview of a data file. Problems of the data and of the options are part of it."""
    from intarsia.tasks import load_data
    from intarsia.tasks.metrics import check_choosing
    from intarsia.tasks.reading import read_rows

    found = schemas.Preview([], [])
    try:
        rows = [row for _, row in itertools.islice(read_rows(path), ROWS)]
        found.columns = list(dict.fromkeys(str(name) for row in rows for name in row))
        found.examples = [{str(name): _cut(value) for name, value in row.items()} for row in rows]
        data = load_data(path, **data_options(options))
        _describe(found, data)
        if (metric := options.get("metric")) is not None:
            check_choosing(metric, data.kind, data.labels)
        check_method(service, options.get("method"))
    except IntarsiaError as error:
        found.problem = without_paths(str(error), path.parent)
    return found


def _describe(found: schemas.Preview, data: TaskData) -> None:
    written = {name.strip().lower(): name for name in found.columns} | {name: name for name in found.columns}
    columns = {role: written.get(name or "", name) for role, name in data.source["columns"].items()}
    found.kind, found.text, found.pair, found.label = data.kind, columns["text"], columns["pair"], columns["label"]
    found.rows = dict(data.source["rows"])
    found.notes = [without_paths(note) for note in data.source.get("notes", [])]
    counts = Counter(
        name
        for part in (data.train, data.dev, data.test)
        for example in part
        for name in (example.label if isinstance(example.label, tuple) else (example.label,))
        if isinstance(name, str)
    )
    if counts:
        found.labels, found.distinct = dict(counts.most_common(LABELS)), len(counts)


def _cut(value: object) -> str:
    text = "" if value is None else value if isinstance(value, str) else str(value)
    return text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…"


OPERATIONS = (
    Operation("POST", "/v1/jobs/preview", preview, "Check the data of a job without starting it", access="admin",
              takes=schemas.JobRequest, accepts=tuple(SUFFIXES), gives=schemas.Preview, statuses=(507,),
              query=options_as_query()),
)  # fmt: skip
