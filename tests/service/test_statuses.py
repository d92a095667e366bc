"""Every documented status is reached, and nothing else is answered."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from intarsia.bank.bank import Bank
from intarsia.bank.inlay import Inlay
from intarsia.client import KINDS
from intarsia.encoder.encoder import Encoder
from intarsia.errors import BankError, MissingParent, Overloaded
from intarsia.service.app import OPERATIONS
from intarsia.service.errors import failure_of
from intarsia.service.openapi import document
from intarsia.service.web import Endpoint, Operation
from tests.support.families import opinions
from tests.support.forging import forged
from tests.support.service import Running, running

DOCUMENT = document(OPERATIONS)
GOOD: dict[str, Any] = {
    "predict": {"requests": [{"task": "opinion", "input": "good"}]},
    "predict_task": {"inputs": ["good"]},
    "embeddings": {"model": "opinion", "input": "good"},
    "classify": {"model": "opinion", "input": "good"},
    "tei_predict": {"model": "opinion", "inputs": "good"},
    "restore": {"version": 1},
    "create": {"task": "new", "rows": opinions(20), "epochs": 1},
    "preview": {"task": "new", "rows": opinions(20)},
}
ASKS = ("predict", "predict_task", "embeddings", "classify", "tei_predict")
NAMED = {"model": "nothing", "task": "nothing"}


def name(operation: Operation) -> str:
    return operation.handler.__name__


def path(operation: Operation, **parts: str) -> str:
    known = {"task": "opinion", "model": "opinion", "id": "job-0", **parts}
    return re.sub(r"{(\w+)}", lambda found: known[found[1]], operation.path)


class Recorder:
    """Asks, checks the form of each answer against the document, and notes the status."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, int]] = set()

    def __call__(self, service: Running, operation: Operation, body: Any = None, **given: Any) -> int:
        headers, where = given.pop("headers", {}), given.pop("where", path(operation))
        if body is None and operation.method == "POST" and operation.takes is not None:
            body = GOOD[name(operation)]
        reply = service.ask(operation.method, where, body, headers)
        responses = DOCUMENT["paths"][operation.path][operation.method.lower()]["responses"]
        assert str(reply.status) in responses, (operation.path, reply.status, reply.content)
        media = reply.headers["content-type"].partition(";")[0]
        assert media in responses[str(reply.status)]["content"]
        if reply.status >= 400:
            error = reply.json()["error"]
            assert set(error) == {"message", "type", "param", "code", "request_id"}
            assert error["message"] and error["request_id"] == reply.headers["x-request-id"]
            assert ("retry-after" in reply.headers) == (reply.status in (429, 503))
            assert "/" not in re.sub(r"/(docs|readyz)|Authorization: \S+|[a-z-]+/[a-z.\d-]+", "", error["message"])
        self.seen.add((f"{operation.method} {operation.path}", reply.status))
        return reply.status


@pytest.fixture(scope="module")
def record() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def own(learned: Path, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Bank:
    """A copy of the bank that these tests may change."""
    folder = tmp_path_factory.mktemp("statuses") / "bank"
    shutil.copytree(learned, folder)
    return Bank(folder, encoder)


def again(bank: Bank) -> Bank:
    """The same bank with an engine of its own: a service closes its bank's engine."""
    return Bank(bank.store.folder, bank.encoder)


@pytest.fixture(scope="module")
def open_service(own: Bank) -> Iterator[Running]:
    with running(again(own), uploads=True, body_bytes=4000, upload_bytes=200_000, job_bytes=8000, body_seconds=0.3,
                 job_queue=1) as made:  # fmt: skip
        made.service.jobs = FakeBoard(own, made.service.options)
        yield made


@pytest.fixture(scope="module")
def closed_service(own: Bank) -> Iterator[Running]:
    with running(again(own), key="user-key", admin="admin-key") as made:
        yield made


def FakeBoard(bank: Bank, options: Any) -> Any:
    """A board whose jobs wait for ever: no process is started."""
    from intarsia.service.job_process import Worker
    from intarsia.service.jobs import JobBoard

    return JobBoard(bank.store.folder, Worker("", None, "cpu", None), options)


def by(handler: str) -> Operation:
    return next(o for o in OPERATIONS if name(o) == handler)


def test_without_a_key(closed_service: Running, record: Recorder) -> None:
    for operation in OPERATIONS:
        if operation.access != "open":
            assert record(closed_service, operation) == 401, operation.path
            assert record(closed_service, operation, headers={"Authorization": "Bearer other"}) == 401
    for public in ("/livez", "/readyz"):
        assert closed_service.get(public).status == 200
    for unknown in ("/nothing", "/v1", "/page.js", "/index.html", "/v1/predict/"):
        assert closed_service.get(unknown).status == 401  # not even whether a route exists


def test_users_are_no_administrators(closed_service: Running, record: Recorder) -> None:
    for operation in OPERATIONS:
        if operation.access == "admin":
            assert record(closed_service, operation, headers={"Authorization": "Bearer user-key"}) == 403


def test_pages_of_other_origins_are_refused(open_service: Running, record: Recorder) -> None:
    for operation in OPERATIONS:
        assert record(open_service, operation, headers={"Origin": "http://evil.example"}) == 403, operation.path
        assert record(open_service, operation, headers={"Host": "evil.example"}) == 403, operation.path


def test_unknown_query_parameters(open_service: Running, record: Recorder) -> None:
    for operation in OPERATIONS:
        assert record(open_service, operation, where=path(operation) + "?nonsense=1") == 400, operation.path


def test_a_handler_that_fails(open_service: Running, record: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: Endpoint, *_: Any) -> None:
        self.service.door.check({**_[0]})
        raise RuntimeError("/secret/path")

    monkeypatch.setattr(Endpoint, "__call__", broken)
    for operation in OPERATIONS:
        assert record(open_service, operation) == 500, operation.path


def test_bodies(open_service: Running, record: Recorder) -> None:
    for operation in OPERATIONS:
        if operation.takes is not None:
            assert record(open_service, operation, b"{") == 400
            assert record(open_service, operation, b"[1]") == 422
            assert record(open_service, operation, {**GOOD[name(operation)], "unknown": 1}) == 422
        if operation.takes is not None or operation.accepts:
            assert record(open_service, operation, b"x" * 250_000, headers={"Content-Type": media(operation)}) == 413
            assert record(open_service, operation, b"{}", headers={"Content-Type": "text/html"}) == 415
            encoded = {"Content-Type": media(operation), "Content-Encoding": "gzip"}
            assert record(open_service, operation, b"{}", headers=encoded) == 415
            slow = {"Content-Type": media(operation), "Content-Length": "500"}
            assert record(open_service, operation, b"{", headers=slow) == 408
    assert record(open_service, by("upload"), b"no inlay", headers={"Content-Type": "application/octet-stream"}) == 422


def media(operation: Operation) -> str:
    return "application/json" if operation.takes is not None else operation.accepts[0]


def test_nothing_of_that_name(open_service: Running, record: Recorder) -> None:
    for operation in OPERATIONS:
        if 404 in operation.failures:
            where, body = path(operation, **NAMED, id="job-nothing"), GOOD.get(name(operation))
            if body is not None and "model" in body:
                body = {**body, "model": "nothing"}
            if name(operation) == "upload":
                continue
            assert record(open_service, operation, body, where=where) == 404, operation.path


def test_success(own: Bank, open_service: Running, record: Recorder) -> None:
    content = own.show("rating").path.read_bytes()
    for operation in OPERATIONS:
        if name(operation) == "upload":
            given = {"where": "/v1/tasks/rating", "headers": {"Content-Type": "application/octet-stream"}}
            assert record(open_service, operation, content, **given) == 201
            assert own.show("rating").version == 2 and own.verify() == []
        elif name(operation) in ("job", "cancel", "events"):
            continue
        else:
            assert record(open_service, operation) == operation.answer, operation.path
    (job,) = open_service.get("/v1/jobs").json()["jobs"]
    assert record(open_service, by("job"), where=f"/v1/jobs/{job['id']}") == 200
    assert record(open_service, by("cancel"), where=f"/v1/jobs/{job['id']}/cancel") == 200
    assert record(open_service, by("events"), where=f"/v1/jobs/{job['id']}/events") == 200
    assert record(open_service, by("cancel"), where=f"/v1/jobs/{job['id']}/cancel") == 409


def test_switched_off(own: Bank, record: Recorder) -> None:
    with running(again(own)) as service:
        for handler in ("upload", "create", "preview", "jobs", "job", "events", "cancel"):
            given = {"headers": {"Content-Type": "application/octet-stream"}} if handler == "upload" else {}
            assert record(service, by(handler), b"x" if handler == "upload" else None, **given) == 403


def test_conflicts(own: Bank, open_service: Running, record: Recorder) -> None:
    damaged = own.restore("tags", 1).path
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    for handler in ("embeddings", "classify", "tei_predict", "load"):
        body = {**GOOD[handler], "model": "tags"} if handler in GOOD else None
        assert record(open_service, by(handler), body, where=path(by(handler), task="tags")) == 409, handler
    assert record(open_service, by("model"), where="/v1/models/tags") == 409
    assert record(open_service, by("unload"), where="/v1/tasks/tags/unload") == 200
    assert record(open_service, by("restore"), {"version": 2}, where="/v1/tasks/tags/restore") == 409
    own.remove("tags", 2)
    inlay = own.store.load("rating")
    octets = {"Content-Type": "application/octet-stream"}
    foreign = dataclasses.replace(inlay, encoder={**inlay.encoder, "fingerprint": "0" * 64})
    assert record(open_service, by("upload"), content_of(foreign), where="/v1/tasks/rating", headers=octets) == 409
    upper = dataclasses.replace(inlay, name="RATING")
    assert record(open_service, by("upload"), content_of(upper), where="/v1/tasks/RATING", headers=octets) == 409
    assert record(open_service, by("upload"), b"", where="/v1/tasks/a%2Fb", headers=octets) == 404
    first = open_service.post("/v1/jobs", GOOD["create"]).json()["id"]
    assert record(open_service, by("create")) == 409
    assert record(open_service, by("create"), {**GOOD["create"], "task": "another"}) == 429
    open_service.post(f"/v1/jobs/{first}/cancel")


def test_overload(open_service: Running, record: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise Overloaded("The queue is full.", 3.0)

    monkeypatch.setattr(open_service.service.engine, "submit", full)
    for handler in ASKS:
        assert record(open_service, by(handler)) == 429, handler
    monkeypatch.setattr(open_service.service, "streams", 10_000)
    job = open_service.post("/v1/jobs", GOOD["create"]).json()["id"]
    assert record(open_service, by("events"), where=f"/v1/jobs/{job}/events") == 429
    open_service.post(f"/v1/jobs/{job}/cancel")


def test_too_many_rows(own: Bank, record: Recorder) -> None:
    with running(again(own), rows=2) as service:
        assert record(service, by("predict_task"), {"inputs": ["a"] * 3}) == 413
        assert record(service, by("predict"), {"tasks": ["opinion"] * 2, "inputs": ["a"] * 2}) == 413


def content_of(inlay: Inlay) -> bytes:
    return forged(inlay)  # `encode` would refuse to write most of them


def test_uploads_are_checked(own: Bank, open_service: Running) -> None:
    inlay = own.store.load("rating")
    octets = {"Content-Type": "application/octet-stream"}
    tensors = dict(inlay.tensors)
    some = next(name for name in tensors if name.startswith("method."))
    weight = "head.output.weight"
    bad: dict[str, Any] = {
        "another name": lambda d, t: d.update(name="opinion"),
        "a tensor too few": lambda d, t: t.pop(some),
        "a tensor too large": lambda d, t: t.update({some: tensors[some].repeat(2, 1)}),
        "a head of another shape": lambda d, t: t.update({weight: tensors[weight].repeat(2, 1)}),
        "not a number": lambda d, t: t.update({some: tensors[some] * float("nan")}),
        "an unknown method": lambda d, t: d.update(method={"type": "magic"}),
        "an unknown kind": lambda d, t: d.update(kind="magic"),
        "an unknown pooling": lambda d, t: d.update(head={"pooling": "magic"}),
    }
    for what, change in bad.items():
        reply = open_service.ask("PUT", "/v1/tasks/rating", forged(inlay, change), octets)
        assert reply.status == 422, (what, reply.content)
    for name in ("..", "a%2fb", ".hidden", "x" * 65):
        content = forged(inlay, lambda d, t, name=name: d.update(name=name))  # type: ignore[misc]
        reply = open_service.ask("PUT", f"/v1/tasks/{name}", content, octets)
        assert reply.status in (404, 409, 422), reply.content
    assert own.verify() == []


class StoppedCall:
    """A call that never ends, as if the device hung."""

    timing = None
    done = False

    def __init__(self) -> None:
        self.expired = 0

    def add_done_callback(self, function: Any) -> None:
        pass

    def expire(self) -> None:
        self.expired += 1


def test_deadlines(own: Bank, record: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(again(own), timeout_ms=50) as service:
        call = StoppedCall()
        monkeypatch.setattr(service.service.engine, "submit", lambda *_, **__: call)
        for handler in ASKS:
            assert record(service, by(handler)) == 504, handler
        assert call.expired == len(ASKS)  # the work is not done


def test_before_the_engine_runs_and_after(own: Bank, record: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(again(own), jobs=False, uploads=True) as service:
        service.service.jobs = FakeBoard(own, service.service.options)
        engine, service.service.engine = service.service.engine, None
        for operation in OPERATIONS:
            if 503 in operation.failures:
                given = {"headers": {"Content-Type": "application/octet-stream"}} if name(operation) == "upload" else {}
                body = b"x" if name(operation) == "upload" else None
                assert record(service, operation, body, **given) == 503, operation.path
        assert service.get("/livez").status == 200
        service.service.engine = engine


def test_a_full_disk(own: Bank, open_service: Running, record: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise BankError("The disk is full: writing /x/y needs 5 bytes, 0 are free. Nothing was changed.")

    monkeypatch.setattr(type(own.store), "_append", full)
    content = own.show("rating").path.read_bytes()
    octets = {"Content-Type": "application/octet-stream"}
    assert record(open_service, by("restore"), where="/v1/tasks/opinion/restore") == 507
    assert record(open_service, by("upload"), content, where="/v1/tasks/rating", headers=octets) == 507
    monkeypatch.setattr("intarsia.files.replace", full)
    assert record(open_service, by("create"), {**GOOD["create"], "task": "full"}) == 507
    assert record(open_service, by("preview")) == 507
    assert not list((own.store.folder / "work" / "jobs").glob("*/data.*"))


def test_every_documented_status_was_reached(record: Recorder) -> None:
    """The last test of this file: the ones before have filled the record."""
    documented = {
        (f"{operation.method} {operation.path}", int(status))
        for operation in OPERATIONS
        for status in DOCUMENT["paths"][operation.path][operation.method.lower()]["responses"]
    }
    assert documented - record.seen == set()


def test_only_the_administrators_key_answers_under_another_host_name(own: Bank) -> None:
    with running(again(own), admin="secret") as service:
        assert service.get("/v1/tasks", Host="evil.example").json()["error"]["code"] == "foreign_host"
        assert service.get("/v1/tasks", Host="localhost").status == 200
        known = {"Host": "bank.example", "Authorization": "Bearer secret"}
        assert service.get("/v1/tasks", **known).status == 200
        assert service.get("/v1/tasks", **{**known, "Authorization": "Bearer x"}).status == 403


def test_names_of_models_may_have_a_slash_and_are_bounded(
    own: Bank, open_service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own.encoder, "name", "owner/name")
    for name in ("owner/name", "owner%2Fname"):
        assert open_service.get(f"/v1/models/{name}").json()["id"] == "owner/name"
    assert open_service.post("/v1/embeddings", {"model": "owner/name", "input": "a"}).status == 200
    for where in ("/v1/embeddings", "/classify"):
        assert open_service.post(where, {"model": "x" * 300, "input": "a"}).status == 422
    assert open_service.post("/predict", {"model": "x" * 300, "inputs": "a"}).status == 422


def test_other_methods_and_routes(open_service: Running) -> None:
    assert open_service.ask("DELETE", "/v1/predict").status == 405
    assert open_service.get("/v1/predict").headers["allow"] == "POST"
    assert open_service.ask("OPTIONS", "/v1/predict").json()["error"]["code"] == "method_not_allowed"
    for unknown in ("/v1", "/nothing", "//", "/../../etc/passwd", "/%2e%2e/x", "/v1/tasks/a/b", "/openapi.json/"):
        assert open_service.get(unknown).status == 404
    assert open_service.ask("HEAD", "/livez").status == 200


def test_the_options_of_a_service_are_checked() -> None:
    from intarsia.errors import IntarsiaError
    from intarsia.service.options import Keys, Options, check_exposure

    for bad in ({"rows": 0}, {"port": 70000}, {"log": "xml"}, {"job_nice": 30}, {"timeout_ms": 0}):
        with pytest.raises(IntarsiaError):
            Options(**bad)
    for host in ("0.0.0.0", "::", "192.168.0.1", "example.org"):
        with pytest.raises(IntarsiaError, match="no key is set"):
            check_exposure(Options(host=host), Keys())
        check_exposure(Options(host=host), Keys("k"))
    for host in ("127.0.0.1", "::1", "localhost", "127.1.2.3"):
        check_exposure(Options(host=host), Keys())
    for key in ("", " x", "é"):
        with pytest.raises(IntarsiaError, match="INTARSIA_API_KEY"):
            Keys(key)
    assert dataclasses.is_dataclass(Options)


def test_a_lost_parent_is_a_conflict_that_names_it() -> None:
    failure = failure_of(MissingParent("the bank has no intact copy of medical@1, on which it is built."))
    assert (failure.status, failure.code) == (409, "missing_parent") and "medical@1" in failure.message
    assert KINDS["missing_parent"] is MissingParent
