"""Jobs over HTTP: learn a task from rows or a file, follow it, cancel it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from intarsia import files
from intarsia.files import DISK_FULL
from intarsia.service import schemas
from intarsia.service.errors import Failure
from intarsia.service.jobs import JobBoard
from intarsia.service.state import Service
from intarsia.service.web import JSON, Operation, Query, Reply, Request

REQUEST = msgspec.json.Decoder(schemas.JobRequest)
SUFFIXES = {
    "text/csv": ".csv",
    "text/tab-separated-values": ".tsv",
    "application/x-ndjson": ".jsonl",
    "application/jsonl": ".jsonl",
    "application/vnd.apache.parquet": ".parquet",
    "text/plain": ".txt",
}
SSE = "text/event-stream"
QUIET_SECONDS = 15.0  # after which a comment keeps a stream of events open
OPTIONS = tuple(f for f in schemas.JobRequest.__struct_fields__ if f not in ("task", "rows"))


def board(request: Request) -> JobBoard:
    board = request.service.jobs
    if board is None:
        raise Failure(403, "Jobs are switched off; start the service without --no-jobs.", code="jobs_off")
    board.check_owner()
    return board


@dataclass(frozen=True)
class Given:
    """The task, its options and its data, as a request gives them. Without `rows`, the body is a file."""

    task: str
    options: dict[str, Any]
    media: str
    rows: list[dict[str, Any]] | None = None

    @classmethod
    async def of(cls, request: Request) -> Given:
        media = request.check_media((JSON, *SUFFIXES))
        if media != JSON:
            return cls(*_from_query(request), media)
        body = await request.json(REQUEST, request.service.options.job_bytes)
        options = {name: getattr(body, name) for name in OPTIONS if getattr(body, name) is not None}
        return cls(body.task, options, media, body.rows)

    async def store(self, request: Request, folder: Path) -> Path:
        """Write the data to a file of the folder."""
        if self.rows is not None:
            path, lines = folder / "data.jsonl", (msgspec.json.encode(row) + b"\n" for row in self.rows)
            await request.service.in_thread(files.replace, path, [b"".join(lines)])
            return path
        path = folder / f"data{SUFFIXES[self.media]}"
        with path.open("wb") as file:
            async for part in request.chunks(request.service.options.job_bytes):
                file.write(part)
        return path


@contextlib.contextmanager
def storing() -> Iterator[None]:
    """A disk that is full, or cannot be written, has a status of its own."""
    try:
        yield
    except Failure as failure:
        if failure.code == "bank_error":
            raise Failure(507, failure.message) from failure
        raise
    except OSError as error:
        reason = "The disk of the service is full" if error.errno in DISK_FULL else "The service cannot store the data"
        raise Failure(507, f"{reason}; the data was not accepted.") from error


async def create(request: Request) -> Reply:
    jobs = board(request)
    request.service.running()
    given = await Given.of(request)
    await request.service.in_thread(_check, request, given.task, given.options.get("method"))
    jobs.check_room(given.task)
    with storing(), jobs.new_folder() as folder:
        await given.store(request, folder)
        rows = None if given.rows is None else len(given.rows)
        info = await request.service.in_thread(jobs.add, folder, given.task, given.options, rows)
    return Reply.json(info, 202, [("Location", f"/v1/jobs/{info.id}")])


def _from_query(request: Request) -> tuple[str, dict[str, Any]]:
    """The task and the options of a job whose data is a file."""
    found: dict[str, Any] = request.query
    if "task" not in found:
        raise Failure(400, "The query parameter task is missing.", param="task")
    try:
        body = msgspec.convert({**found, "rows": [{}]}, schemas.JobRequest, strict=False)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        raise Failure(422, f"{message}.", param=place.rstrip("`").lstrip(".") or None) from None
    return body.task, {name: getattr(body, name) for name in OPTIONS if getattr(body, name) is not None}


def _check(request: Request, task: str, method: str | None) -> None:
    """Refuse what would fail in the job's process at once."""
    request.service.bank.store.check_name(task)
    check_method(request.service, method)


def check_method(service: Service, method: str | None) -> None:
    """Raise unless this base can have the method (None: the usual one)."""
    from intarsia.bank.family import resolved
    from intarsia.methods import parse

    if method is not None:
        resolved(service.bank.store, parse(method, ())).check(service.running().encoder.shape)


async def jobs(request: Request) -> Reply:
    return Reply.json(schemas.JobList(board(request).infos()))


async def job(request: Request) -> Reply:
    return Reply.json(board(request).job(request.part("id")).info)


async def cancel(request: Request) -> Reply:
    return Reply.json(board(request).cancel(request.part("id")))


async def events(request: Request) -> Reply:
    """The events of a job as they happen; `Last-Event-ID` continues after an interruption."""
    jobs, service = board(request), request.service
    id = request.part("id")
    jobs.job(id)
    if service.streams >= service.options.job_streams:
        raise Failure(429, "Too many clients follow jobs.", code="too_many_streams", retry_after=10)
    last = request.header(b"last-event-id") or ""
    after = int(last) + 1 if last.isascii() and last.isdigit() and len(last) < 9 else 0
    headers = [("Cache-Control", "no-store"), ("X-Accel-Buffering", "no")]
    return Reply(media=SSE, headers=headers, parts=_stream(request, jobs, id, after))


async def _stream(request: Request, board: JobBoard, id: str, after: int) -> AsyncIterator[bytes]:
    service, loop, news = request.service, asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        loop.call_soon_threadsafe(news.set)

    unlisten = board.listen(wake)
    service.streams += 1
    try:
        while True:
            news.clear()
            found, ended = board.events(id, after)
            for number, event in found:
                yield b"id: %d\nevent: %s\ndata: %s\n\n" % (number, event["event"].encode(), msgspec.json.encode(event))
                after = number + 1
            if ended or service.draining.is_set():
                return
            try:
                await asyncio.wait_for(news.wait(), QUIET_SECONDS)
            except TimeoutError:
                yield b": still here\n\n"
    finally:
        service.streams -= 1
        unlisten()


def options_as_query() -> tuple[Query, ...]:
    schema = msgspec.json.schema(schemas.JobRequest)["$defs"]["JobRequest"]["properties"]
    helps = {"task": "The task to learn, for a body that is a file.", "method": "As in `intarsia methods`."}
    return tuple(
        Query(name, helps.get(name, "As in the JSON body, for a body that is a file."), schema[name])
        for name in ("task", *OPTIONS)
    )


JOB = (403, 404)
OPERATIONS = (
    Operation("POST", "/v1/jobs", create, "Learn a task", access="admin", takes=schemas.JobRequest,
              accepts=tuple(SUFFIXES), gives=schemas.JobInfo, answer=202, statuses=(409, 429, 503, 507),
              query=options_as_query()),
    Operation("GET", "/v1/jobs", jobs, "List the jobs, the newest first", gives=schemas.JobList, statuses=(403,)),
    Operation("GET", "/v1/jobs/{id}", job, "Describe a job", gives=schemas.JobInfo, statuses=JOB),
    Operation("GET", "/v1/jobs/{id}/events", events, "Follow a job (server-sent events)", media=SSE,
              statuses=(*JOB, 429)),
    Operation("POST", "/v1/jobs/{id}/cancel", cancel, "Cancel a job", access="admin", gives=schemas.JobInfo,
              statuses=(*JOB, 409)),
)  # fmt: skip
