"""Limits of connections that come before the application: slow headers, endless headers, too many connections.

The failures have the same body as those of the application.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from intarsia.service.errors import Failure
from intarsia.service.web import encode

HEADER_BYTES = 64 << 10


class OneWrite:
    """A transport that sends the head of an answer together with its body: one packet and one system call.

    What is written during one turn of the event loop is sent at the end of that turn.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def write(self, part: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(part)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():
            self._transport.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def limited_protocol(connections: int, header_seconds: float) -> type[HttpToolsProtocol]:
    """The protocol class of one server."""

    class Limited(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None
        _reading_headers = False
        _header_bytes = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(OneWrite(transport, self.loop))  # type: ignore[arg-type]
            if len(self.connections) > connections:
                self._refuse(Failure(503, "Too many connections.", code="too_many_connections", retry_after=1))
                return
            self._await_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            if self._timer is None and (self.cycle is None or self.cycle.response_complete):
                self._await_headers()  # the next request of a connection that is kept
            super().data_received(data)
            if self._reading_headers:
                self._header_bytes += len(data)
                if self._header_bytes > HEADER_BYTES:
                    self._refuse(Failure(431, f"The headers are larger than {HEADER_BYTES:,} bytes."))

        def on_message_begin(self) -> None:
            self._reading_headers, self._header_bytes = True, 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._reading_headers = False
            self._stop_timer()
            super().on_headers_complete()

        def send_400_response(self, msg: str) -> None:
            self._refuse(Failure(400, msg, code="not_http"))

        def _await_headers(self) -> None:
            self._timer = self.loop.call_later(header_seconds, self._give_up)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _give_up(self) -> None:
            self._timer = None
            if self._reading_headers:
                self._refuse(Failure(408, f"The headers did not arrive within {header_seconds:g} seconds."))
            else:
                self.transport.close()

        def _refuse(self, failure: Failure) -> None:
            """Answer without the application, and close."""
            if self.transport.is_closing():
                return
            body = encode({"error": {**failure.detail(), "request_id": None}})
            retry = b"retry-after: 1\r\n" if failure.retry_after else b""
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
            if self.cycle is None or self.cycle.response_complete:  # else another answer is on its way
                self.transport.write(STATUS_LINE[failure.status] + head + retry + b"\r\n" + body)
            self.transport.close()

    return Limited
