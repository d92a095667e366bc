"""Clients that are slow, leave, or send what is no HTTP: the service answers in form, and forgets them."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from intarsia.bank.bank import Bank
from intarsia.encoder.encoder import Encoder
from intarsia.service.protocol import OneWrite
from tests.support.service import Running, running, wait_until

BODY = json.dumps({"requests": [{"task": "opinion", "input": "good film"}]}).encode()
POST = b"POST /v1/predict HTTP/1.1\r\n"
HEAD = POST + b"Host: localhost\r\nContent-Type: application/json\r\n"
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.fixture(scope="module")
def service(learned: Any, encoder: Encoder) -> Iterator[Running]:
    with running(Bank(learned, encoder), header_seconds=0.3, body_seconds=0.3, connections=12) as made:
        yield made


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def error(answer: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert set(found) == {"message", "type", "param", "code", "request_id"}
    return found


def test_headers_that_never_end(service: Running) -> None:
    with closing(service.raw()) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n")
        answer = read_all(connection)
    assert status(answer) == 408 and "headers" in error(answer)["message"]


def test_a_connection_without_a_request_is_closed(service: Running) -> None:
    with closing(service.raw()) as connection:
        assert read_all(connection) == b""


def test_slow_headers_on_a_kept_connection(service: Running) -> None:
    with closing(service.raw()) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status(connection.recv(65536)) == 200
        connection.sendall(b"GET /live")
        assert status(read_all(connection)) == 408


def test_headers_that_are_too_large(service: Running) -> None:
    with closing(service.raw()) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
        try:
            for _ in range(40):
                connection.sendall(b"x" * 8192)
        except OSError:
            pass  # the service has closed the connection
        try:
            answer = read_all(connection)
        except OSError:
            return  # reset: the rest of the headers was never read
    assert not answer or status(answer) == 431


def test_a_body_that_never_comes(service: Running) -> None:
    with closing(service.raw()) as connection:
        connection.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        answer = read_all(connection)
    assert status(answer) == 408 and error(answer)["code"] == "request_timeout"


def test_a_chunked_body_without_end_is_cut_at_the_limit(service: Running) -> None:
    with closing(service.raw()) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        try:
            for _ in range(200):
                connection.sendall(chunk)
            answer = read_all(connection)
        except OSError:
            return  # closed while we sent
    assert status(answer) in (408, 413)


@pytest.mark.parametrize(
    ("media", "expected"), [("application/json", 413), ("text/plain", 415), ("application/json; charset=latin-1", 415)]
)
def test_the_answer_to_a_large_body_is_read_by_usual_clients(
    learned: Any, encoder: Encoder, media: str, expected: int
) -> None:
    """Usual clients send the whole body first: a connection that is closed meanwhile shows them no answer."""
    with running(Bank(learned, encoder)) as service:
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
        with closing(connection):
            for _ in range(2):  # and the connection goes on
                connection.request("POST", "/v1/predict", b"x" * (24 << 20), {"Content-Type": media})
                answer = connection.getresponse()
                assert answer.status == expected and json.loads(answer.read())["error"]["request_id"]


def test_half_closed_and_lost_clients_leave_nothing_behind(service: Running) -> None:
    for _ in range(5):
        with closing(service.raw()) as connection:
            connection.sendall(WHOLE)
            connection.shutdown(socket.SHUT_WR)
            answer = read_all(connection)
            assert not answer or status(answer) == 200
        with closing(service.raw()) as connection:
            connection.sendall(WHOLE[:-10])
    metrics = service.service.metrics
    wait_until(lambda: metrics.in_flight == 0)
    assert service.get("/readyz").status == 200


def test_rows_of_a_client_that_left_are_dropped(learned: Any, encoder: Encoder) -> None:
    with running(Bank(learned, encoder)) as service:
        engine = service.service.engine
        go = threading.Event()
        blocked = threading.Thread(target=lambda: engine._on_device(go.wait))
        blocked.start()  # the engine's thread waits: rows stay in the queue
        try:
            with closing(service.raw()) as connection:
                connection.sendall(WHOLE)
                wait_until(lambda: engine.stats().queue_rows == 1)
            wait_until(lambda: service.service.metrics.disconnected == 1)
            before = engine.stats().rows
        finally:
            go.set()
            blocked.join()
        assert service.post("/v1/predict", json.loads(BODY)).status == 200
        assert engine.stats().rows == before + 1  # only the second request's


def test_what_is_no_http(service: Running) -> None:
    for bad in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
                POST + b"Content-Length: -1\r\n\r\n",
                POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nx",
                POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"):  # fmt: skip
        with closing(service.raw()) as connection:
            connection.sendall(bad)
            answer = read_all(connection)
        assert not answer or (status(answer) == 400 and error(answer)["code"] == "not_http"), bad


def test_no_header_of_a_client_enters_the_answer(service: Running) -> None:
    for value in (b"a\r\nX-Evil: 1", b"a\nX-Evil: 1", b"a%0d%0aX-Evil:1", b"a\x00b", b"\xff\xfe"):
        with closing(service.raw()) as connection:
            connection.sendall(
                b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Request-Id: " + value + b"\r\n\r\n"
            )
            answer = read_all(connection).lower()
        head = answer.partition(b"\r\n\r\n")[0]
        assert b"x-evil" not in head and b"\x00" not in head and b"\xff" not in head
    reply = service.get("/v1/tasks/a%0d%0aX-Evil:%201")
    assert reply.status == 404 and "x-evil" not in reply.headers


def test_requests_in_a_pipeline_are_answered_in_order(service: Running) -> None:
    with closing(service.raw()) as connection:
        ids = [f"{i}".encode() for i in range(5)]
        parts = [WHOLE.replace(b"Host:", b"X-Request-Id: " + i + b"\r\nHost:", 1) for i in ids]
        connection.sendall(b"".join(parts[:-1]) + parts[-1].replace(b"Host:", b"Connection: close\r\nHost:", 1))
        answer = read_all(connection)
    found = [line.split(b": ")[1] for line in answer.split(b"\r\n") if line.startswith(b"x-request-id")]
    assert found == ids


def test_too_many_connections(service: Running) -> None:
    held = [service.raw() for _ in range(12)]
    try:
        wait_until(lambda: _refused(service))
    finally:
        for connection in held:
            connection.close()
    wait_until(lambda: not _refused(service))


def _refused(service: Running) -> bool:
    try:
        reply = service.get("/livez")
    except OSError:
        return True
    assert reply.status in (200, 503)
    assert reply.status == 200 or reply.json()["error"]["code"] == "too_many_connections"
    return reply.status == 503


def row(**fields: str) -> bytes:
    """A request of one row, with fields as JSON texts."""
    known = {"task": '"opinion"', "input": '"x"', **fields}
    return ('{"requests": [{' + ", ".join(f'"{k}": {v}' for k, v in known.items()) + "}]}").encode()


MALFORMED = [
    b"", b"{", b"null", b"[]", b"1e999", b'"\\ud800"', b"\xff\xfe", b"{}" * 1000, b"[" * 40_000,
    b'{"requests":' + b"[" * 40_000, row(task='"\\u0000"'), row(task='"../../etc"'), row(input='""'),
    row(input='"\\u0000\\u202e\\ufffe"'), row(input="[]"), row(input='[""]'), row(input='["a", "b", "c"]'),
    row(version="99999999999999999999"), row(version="0"), row(input='{"question": "a", "context": "b"}'),
]  # fmt: skip


@pytest.mark.parametrize("body", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_bodies(service: Running, body: bytes) -> None:
    assert service.ask("POST", "/v1/predict", body).status in (200, 400, 422)


class Recorded:
    """A transport that notes what is written to it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, part: bytes) -> None:
        self.written.append(part)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def test_head_and_body_are_sent_together() -> None:
    async def turns() -> None:
        whole, cut, left = Recorded(), Recorded(), Recorded()
        one, two, three = (OneWrite(transport, asyncio.get_running_loop()) for transport in (whole, cut, left))
        one.write(b"head"), one.write(b"body")
        two.write(b"last"), two.close()
        three.write(b"to nobody")
        left.closed = True  # the client has left in between
        await asyncio.sleep(0)
        one.write(b"more")
        await asyncio.sleep(0)
        assert whole.written == [b"headbody", b"more"]
        assert cut.written == [b"last"] and two.is_closing()
        assert left.written == []

    asyncio.run(turns())


@pytest.mark.parametrize("refused", [False, True])
def test_requests_leave_no_cycles_behind(service: Running, refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector looks for garbage rarely while a service runs: see `intarsia.memory.settle`."""
    if refused:
        monkeypatch.setattr(service.service.engine, "_is_full", lambda tokens: True)

    def ask() -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", service.port)) as connection:
            for _ in range(20):
                connection.request("POST", "/v1/predict", BODY, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                assert answer.read() and answer.status == (429 if refused else 200)

    ask()
    gc.collect()
    gc.disable()
    try:
        ask()
        found = gc.collect()
    finally:
        gc.enable()
    assert found < 100, "of 20 requests"
