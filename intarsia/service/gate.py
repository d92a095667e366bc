"""The outermost part of the application: request ids, traces, keys, times, logs, and the error body."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from intarsia.errors import IntarsiaError
from intarsia.service.asgi import Message, Receive, Scope, Send, header
from intarsia.service.errors import Failure
from intarsia.service.state import Service
from intarsia.service.tracing import parent_of
from intarsia.service.web import Disconnected, Reply

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
CLIENT_LEFT = 499  # in logs and metrics only

log = logging.getLogger("intarsia.access")
errors = logging.getLogger("intarsia.error")


class Gate:
    """Wraps the application: everything that is equal for all routes."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        begun = time.perf_counter()
        facts = scope["intarsia"] = {"request_id": _request_id(scope), "route": "unknown", "status": 500}
        metrics = self.service.metrics
        metrics.in_flight += 1
        sending = _Sending(send, facts, begun)
        try:
            await self._answer(scope, receive, sending)
        except Disconnected:
            facts["status"] = CLIENT_LEFT
            metrics.disconnected += 1
        finally:
            metrics.in_flight -= 1
            seconds = time.perf_counter() - begun
            metrics.ended(_method(scope), facts["route"], facts["status"], seconds)
            if self.service.tracer is not None:
                self.service.tracer.ended(_method(scope), facts, seconds, header(scope, b"traceparent"))
            if self.service.options.log != "none":
                self._log(scope, facts, seconds)

    async def _answer(self, scope: Scope, receive: Receive, send: _Sending) -> None:
        try:
            self.service.door.check(scope)
            scope["app"] = self  # the router then raises what it would answer itself
            await self.app(scope, receive, send)
        except Disconnected:
            raise
        except Failure as failure:
            await self._fail(failure, scope, send)
        except IntarsiaError as error:
            await self._fail(self.service.failure(error), scope, send)
        except HTTPException as error:  # no such route, or not with this method
            names = {404: "There is no such route; /docs lists the routes.", 405: "This route has other methods."}
            allow = tuple((error.headers or {}).items())
            await self._fail(
                Failure(error.status_code, names.get(error.status_code, error.detail), headers=allow), scope, send
            )
        except Exception:
            facts = scope["intarsia"]
            errors.exception("request %s failed", facts["request_id"])
            await self._fail(
                Failure(500, "The service failed on this request; its log says more.", close=True), scope, send
            )

    async def _fail(self, failure: Failure, scope: Scope, send: _Sending) -> None:
        if send.begun_answer:
            raise Disconnected  # the answer cannot be taken back: closing the connection tells the client
        headers = [*failure.headers]
        if failure.retry_after is not None:
            headers.append(("Retry-After", str(max(1, round(failure.retry_after)))))
        if failure.close:
            headers.append(("Connection", "close"))
        body = {"error": {**failure.detail(), "request_id": scope["intarsia"]["request_id"]}}
        scope["intarsia"]["code"] = failure.code
        await Reply.json(body, failure.status, headers).send(send)

    def _log(self, scope: Scope, facts: dict[str, Any], seconds: float) -> None:
        line = {
            "time": utc_now(),
            "event": "request",
            "request_id": facts["request_id"],
            "method": _method(scope),
            "route": facts["route"],
            "status": facts["status"],
            "ms": round(1000 * seconds, 2),
        }
        line |= {key: facts[key] for key in ("code", "rows", "tokens", "queue_ms") if key in facts}
        if (parent := parent_of(header(scope, b"traceparent"))) is not None:
            line |= {"trace_id": parent[0], "parent_id": parent[1]}
        if self.service.options.log == "json":
            log.info(json.dumps(line))
        else:
            log.info(" ".join(f"{key}={value}" for key, value in line.items()))


class _Sending:
    """Adds the headers of every answer, and notes its status."""

    def __init__(self, send: Send, facts: dict[str, Any], begun: float) -> None:
        self._send, self._facts, self._begun = send, facts, begun
        self.begun_answer = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun_answer = True
            facts = self._facts
            facts["status"] = message["status"]
            total = 1000 * (time.perf_counter() - self._begun)
            stages = facts.get("stages", {})
            timing = "".join(f"{name};dur={1000 * value:.2f}, " for name, value in stages.items() if name != "total")
            headers = [
                *message["headers"],
                (b"x-request-id", facts["request_id"].encode()),
                (b"server-timing", f"{timing}total;dur={total:.2f}".encode()),
                (b"x-content-type-options", b"nosniff"),
            ]
            for name, value in stages.items():
                milliseconds = total if name == "total" else 1000 * value
                headers.append((f"x-{name}-time".encode(), f"{milliseconds:.2f}".encode()))
            message = {**message, "headers": headers}
        await self._send(message)


def utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _request_id(scope: Scope) -> str:
    given = header(scope, b"x-request-id")
    return given if given is not None and REQUEST_ID.fullmatch(given) else os.urandom(12).hex()


def _method(scope: Scope) -> str:
    """The method, if it is a usual one: clients must not fill the metrics with names."""
    method = str(scope["method"])
    return method if method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS") else "OTHER"
