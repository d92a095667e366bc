"""The bank's tasks: what there is, and what administrators may do with it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from intarsia.bank.bank import Bank
from intarsia.bank.entry import Entry
from intarsia.bank.inlay import read_inlay
from intarsia.errors import DamagedInlay
from intarsia.files import DISK_FULL
from intarsia.service import schemas
from intarsia.service.catalog import Listed, describe
from intarsia.service.errors import Failure, without_paths
from intarsia.service.web import Operation, Query, Reply, Request

RESTORE = msgspec.json.Decoder(schemas.RestoreRequest)
PAGE, LARGEST_PAGE = 100, 1000
INLAY = "application/octet-stream"


def _resident(request: Request, entry: Entry) -> bool:
    engine = request.service.engine
    return entry.state == "ok" and engine is not None and engine.resident(entry.header.digest)


async def tasks(request: Request) -> Reply:
    found = request.query
    limit = request.query_number("limit", PAGE, LARGEST_PAGE)

    def page() -> schemas.TaskList:
        listed = Listed.of(request.service.bank)
        entries, total, cursor = listed.page(found.get("prefix", ""), found.get("cursor", ""), limit)
        rows = [describe(entry, entry.version, resident=_resident(request, entry)) for entry in entries]
        return schemas.TaskList(rows, total, cursor)

    return Reply.json(await request.service.in_thread(page))


async def task(request: Request) -> Reply:
    entry = await request.service.in_thread(request.service.bank.show, request.part("task"))
    return Reply.json(describe(entry, entry.version, resident=_resident(request, entry), whole=True))


async def versions(request: Request) -> Reply:
    name = request.part("task")
    bank = request.service.bank
    entries = await request.service.in_thread(bank.versions, name)
    served = (await request.service.in_thread(bank.show, name)).version
    rows = [describe(entry, served, resident=_resident(request, entry), whole=True) for entry in entries]
    return Reply.json(schemas.VersionList(name, rows))


async def load(request: Request) -> Reply:
    engine = request.service.running()
    await request.service.in_thread(engine.load, request.part("task"))
    return await task(request)


async def unload(request: Request) -> Reply:
    engine = request.service.running()
    try:
        await request.service.in_thread(engine.unload, request.part("task"))
    except Failure as failure:
        if failure.code not in ("damaged_inlay", "missing_parent"):  # such a task is nowhere
            raise
    return await task(request)


async def restore(request: Request) -> Reply:
    body = await request.json(RESTORE)
    try:
        entry = await request.service.in_thread(request.service.bank.restore, request.part("task"), body.version)
    except Failure as failure:
        raise _disk(failure) from failure
    Listed.forget()
    return Reply.json(describe(entry, entry.version, resident=_resident(request, entry), whole=True))


async def upload(request: Request) -> Reply:
    """Add an inlay file as the task's newest version, after every check that the bank makes."""
    service = request.service
    if not service.options.uploads:
        raise Failure(403, "Uploads are switched off; start the service with --uploads.", code="uploads_off")
    request.check_media((INLAY,))
    with tempfile.TemporaryDirectory(prefix="intarsia-upload-") as folder:
        path = Path(folder) / "upload.safetensors"
        try:
            with path.open("wb") as file:
                async for part in request.chunks(service.options.upload_bytes):
                    file.write(part)
        except OSError as error:
            if error.errno in DISK_FULL:
                raise Failure(507, "The disk of the service is full.") from error
            raise
        try:
            entry = await service.in_thread(_add, service.bank, request.part("task"), path)
        except Failure as failure:
            raise _disk(failure) from failure
    Listed.forget()
    location = [("Location", f"/v1/tasks/{entry.name}")]
    info = describe(entry, entry.version, resident=_resident(request, entry), whole=True)
    return Reply.json(info, 201, location)


def _add(bank: Bank, name: str, path: Path) -> Entry:
    """Add the inlay of a file. The checks are the bank's own: form, digest, base, tensors, numbers, name."""
    try:
        inlay = read_inlay(path)
        if inlay.name != name:
            raise Failure(422, f"The file holds the task {inlay.name[:64]!r}, not {name!r}.", param="task")
        return bank.store.add(inlay, encoder=bank.encoder)
    except DamagedInlay as error:
        reason = without_paths(str(error).replace(str(path), "the file"), bank.store.folder)
        raise Failure(422, f"This is no inlay that can answer here: {reason}", code="not_an_inlay") from error


def _disk(failure: Failure) -> Failure:
    """A full disk has a status of its own."""
    if "disk is full" in failure.message:
        return Failure(507, failure.message)
    return failure


ADMIN = (404, 409, 503)
OPERATIONS = (
    Operation(
        "GET", "/v1/tasks", tasks, "List the tasks", gives=schemas.TaskList,
        query=(
            Query("prefix", "Only tasks whose names begin so."),
            Query("cursor", "`next_cursor` of the page before."),
            Query("limit", "Tasks of a page.", {"type": "integer", "minimum": 1, "maximum": LARGEST_PAGE}),
        ),
    ),
    Operation("GET", "/v1/tasks/{task}", task, "Describe a task", gives=schemas.TaskInfo, statuses=(404,)),
    Operation("GET", "/v1/tasks/{task}/versions", versions, "Describe all versions of a task",
              gives=schemas.VersionList, statuses=(404,)),
    Operation("POST", "/v1/tasks/{task}/load", load, "Make a task resident", access="admin", gives=schemas.TaskInfo,
              statuses=ADMIN),
    Operation("POST", "/v1/tasks/{task}/unload", unload, "Free the slot of a task", access="admin",
              gives=schemas.TaskInfo, statuses=(404, 503)),
    Operation("POST", "/v1/tasks/{task}/restore", restore, "Serve an older version again", access="admin",
              takes=schemas.RestoreRequest, gives=schemas.TaskInfo, statuses=(404, 409, 507)),
    Operation("PUT", "/v1/tasks/{task}", upload, "Upload an inlay file as the newest version", access="admin",
              accepts=(INLAY,), answer=201, gives=schemas.TaskInfo, statuses=(404, 409, 507)),
)  # fmt: skip
