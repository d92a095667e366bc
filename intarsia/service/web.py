"""Requests and replies: the small part of HTTP that the operations see.

An `Operation` describes one route: its handler, who may call it, and what it takes and gives. The application, the
OpenAPI document and the tests are made from the same list of operations.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from intarsia.service.asgi import Receive, Scope, Send, header
from intarsia.service.errors import Failure

if TYPE_CHECKING:
    from intarsia.service.state import Service

Access = Literal["open", "user", "admin"]
Body = TypeVar("Body")

JSON = "application/json"
encode = msgspec.json.Encoder().encode


class Disconnected(Exception):
    """The client has left: nobody reads an answer."""


@dataclass(frozen=True)
class Query:
    """A query parameter."""

    name: str
    help: str
    schema: dict[str, Any] = field(default_factory=lambda: {"type": "string"})
    required: bool = False


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    handler: Callable[[Request], Awaitable[Reply]]
    summary: str
    access: Access = "user"
    takes: Any = None  # the type of the JSON body
    gives: Any = None  # the type of the JSON answer
    accepts: tuple[str, ...] = ()  # media types of a body that is not JSON
    media: str = JSON  # of the answer
    answer: int = 200  # the status of success
    statuses: tuple[int, ...] = ()  # of failures, beside those of every route
    query: tuple[Query, ...] = ()

    @property
    def failures(self) -> tuple[int, ...]:
        """Every status of a failure of this operation."""
        always = {400, 403, 500} | ({401} if self.access != "open" else set())
        body = {408, 413, 415, 422} if self.takes is not None or self.accepts else set()
        return tuple(sorted({*always, *body, *self.statuses}))


@dataclass
class Reply:
    """An answer: a whole body, or parts that are sent as they come."""

    body: bytes = b""
    status: int = 200
    media: str = JSON
    headers: list[tuple[str, str]] = field(default_factory=list)
    parts: AsyncIterator[bytes] | None = None

    @classmethod
    def json(cls, value: Any, status: int = 200, headers: list[tuple[str, str]] | None = None) -> Reply:
        return cls(encode(value), status, JSON, headers or [])

    async def send(self, send: Send) -> None:
        headers = [(b"content-type", self.media.encode())]
        if self.parts is None:
            headers.append((b"content-length", b"%d" % len(self.body)))
        headers += [(name.encode(), value.encode("latin-1")) for name, value in self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        if self.parts is None:
            await send({"type": "http.response.body", "body": self.body})
            return
        async for part in self.parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class Request:
    """What a handler reads. `facts` go into the log, the headers and the metrics."""

    def __init__(self, scope: Scope, receive: Receive, service: Service, operation: Operation) -> None:
        self.scope, self.receive, self.service, self.operation = scope, receive, service, operation
        self.facts: dict[str, Any] = scope["intarsia"]
        self.query = self._query()

    @property
    def id(self) -> str:
        return str(self.facts["request_id"])

    def part(self, name: str) -> str:
        """A part of the path."""
        return str(self.scope["path_params"][name])

    def header(self, name: bytes) -> str | None:
        return header(self.scope, name)

    def _query(self) -> dict[str, str]:
        """The query parameters. Unknown, repeated and undecodable ones are refused."""
        from urllib.parse import parse_qsl

        raw = self.scope.get("query_string", b"")
        if not raw:
            return {}
        try:
            pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100)
        except (UnicodeError, ValueError):
            raise Failure(400, "The query string cannot be decoded; expected name=value pairs in UTF-8.") from None
        known = {query.name for query in self.operation.query}
        found: dict[str, str] = {}
        for name, value in pairs:
            if name not in known:
                expected = f"expected one of: {', '.join(sorted(known))}" if known else "this route takes none"
                raise Failure(400, f"Unknown query parameter {name[:64]!r}; {expected}.", param=name[:64])
            if name in found:
                raise Failure(400, f"The query parameter {name!r} is given twice.", param=name)
            found[name] = value
        return found

    def query_number(self, name: str, default: int, most: int) -> int:
        text = self.query.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= most):
            raise Failure(400, f"{name}: expected a whole number from 1 to {most}.", param=name)
        return int(text)

    async def json(self, decoder: msgspec.json.Decoder[Body], most: int | None = None) -> Body:
        """The body as a value of the operation's type."""
        self.check_media((JSON,))
        content = await self.content(most or self.service.options.body_bytes)
        try:
            return decoder.decode(content)
        except msgspec.ValidationError as error:
            message, _, place = str(error).partition(" - at `$")
            raise Failure(422, f"{message}.", param=place.rstrip("`").lstrip(".") or None) from None
        except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError) as error:
            raise Failure(400, f"The body is not JSON: {str(error)[:200]}.", code="not_json") from None

    def check_media(self, accepted: tuple[str, ...]) -> str:
        """The media type of the body; raises unless it is one of `accepted`."""
        given = self.header(b"content-type") or ""
        kind, _, rest = given.partition(";")
        kind = kind.strip().lower()
        charset = rest.strip().lower().removeprefix("charset=").strip('"')
        if (
            kind not in accepted
            or charset not in ("", "utf-8")
            or self.header(b"content-encoding") not in (None, "identity")
        ):
            raise Failure(
                415, f"Expected the header Content-Type: {' or '.join(accepted)} (UTF-8, without Content-Encoding)."
            )
        return kind

    async def chunks(self, most: int) -> AsyncIterator[bytes]:
        """The body as it arrives, at most `most` bytes, within the time for a body."""
        length = self.header(b"content-length")
        if length is not None and length.isdigit() and int(length) > most:
            raise self._too_large(most)
        size, seconds = 0, self.service.options.body_seconds
        try:
            async with asyncio.timeout(seconds):
                while True:
                    message = await self.receive()
                    if message["type"] == "http.disconnect":
                        raise Disconnected
                    part = message.get("body", b"")
                    size += len(part)
                    if size > most:
                        raise self._too_large(most)
                    if part:
                        yield part
                    if not message.get("more_body", False):
                        return
        except TimeoutError:
            raise Failure(408, f"The body did not arrive within {seconds:g} seconds.", close=True) from None

    async def content(self, most: int) -> bytes:
        """The whole body."""
        parts = [part async for part in self.chunks(most)]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _too_large(self, most: int) -> Failure:
        # The connection stays open: closing it now would reset it while the client still sends, and the client would
        # never read why. The server drops the rest of the body, for at most `header_seconds`.
        return Failure(413, f"The body is larger than {most:,} bytes, the limit of this route.")


class Endpoint:
    """An operation as an ASGI application."""

    def __init__(self, operation: Operation, service: Service) -> None:
        self.operation, self.service = operation, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["intarsia"]["route"] = self.operation.path
        if self.operation.access == "admin":
            self.service.door.check_admin(scope)
        request = Request(scope, receive, self.service, self.operation)
        reply = await self.operation.handler(request)
        await reply.send(send)
