"""The door of the cluster: reads each request whole, sends it to a replica, and asks another one if that dies.

Every node that takes requests has one behind Ray Serve's proxy. It holds no model.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

from ray.exceptions import RayActorError, RayTaskError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from intarsia.cluster.replica import Answered, Call
from intarsia.cluster.routing_key import routing_key
from intarsia.service.asgi import Receive, Scope, Send, header
from intarsia.service.errors import Failure
from intarsia.service.options import Options

SENT = ("type", "http_version", "method", "scheme", "path", "query_string", "root_path", "client", "server")
REPEATABLE = ("/predict", "/v1/predict", "/v1/embeddings", "/classify")
PAUSE = 0.05  # seconds before a request is sent again


class Front:
    """The ingress deployment."""

    def __init__(self, replicas: Any, options: Options) -> None:
        """`replicas`: the handle of their deployment."""
        self.front = FrontApp(replicas, options)

    def __serve_build_asgi_app__(self) -> FrontApp:
        return self.front


class FrontApp:
    """Routes requests to the replicas. The ASGI application of the ingress deployment."""

    def __init__(self, replicas: Any, options: Options) -> None:
        self.replicas, self.options = replicas, options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while True:
                kind = (await receive())["type"].removeprefix("lifespan.")
                await send({"type": f"lifespan.{kind}.complete"})
                if kind == "shutdown":
                    return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            body = await self._read(scope, receive)
            answered = await self._ask(scope, body)
            status, headers, content = answered.status, answered.headers, answered.body
            headers = [pair for pair in headers if pair[0] != b"x-request-id"]  # Ray's proxy adds it
            headers.append((b"x-replica", answered.replica.encode()))
        except Failure as failure:
            status, headers, content = failure.status, _headers(failure), _content(failure, scope)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        options = self.options
        most = max(options.body_bytes, options.upload_bytes if options.uploads else 0)
        parts, size = [], 0
        try:
            async with asyncio.timeout(options.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Failure(400, "The client has left.")
                    part = message.get("body", b"")
                    size += len(part)
                    if size > most:
                        raise Failure(413, f"The body is larger than {most:,} bytes.", close=True)
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            seconds = options.body_seconds
            raise Failure(408, f"The body did not arrive within {seconds:g} seconds.", close=True) from None

    async def _ask(self, scope: Scope, body: bytes) -> Answered:
        """Return a replica's answer. A request that may be repeated goes to another replica if the first one dies."""
        sent = {name: scope[name] for name in SENT if name in scope}
        sent["headers"] = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
        if header(scope, b"x-request-id") is None:
            sent["headers"].append((b"x-request-id", os.urandom(12).hex().encode()))
        path = scope["path"]
        key = routing_key(path, body)
        repeats = scope["method"] in ("GET", "HEAD") or path in REPEATABLE or path.endswith("/predict")
        deadline = time.monotonic() + self.options.timeout_ms / 1000
        refused: Answered | None = None
        while True:
            try:
                answered: Answered = await self.replicas.answer.remote(Call(key, sent, body))
            except BackPressureError:
                raise Failure(429, "The cluster is overloaded.", retry_after=1) from None
            except (RayActorError, DeploymentUnavailableError, TaskCancelledError) as error:
                if not repeats:
                    message = "The replica that had this request has died; the request may have had an effect."
                    raise Failure(503, message, code="replica_lost", retry_after=1) from error
            except RayTaskError as error:
                raise Failure(500, "The service failed on this request; the log of its replica says more.") from error
            else:
                if answered.status == 429 and key is not None and refused is None:
                    refused, key = answered, None  # the owner is full: ask the least loaded
                    continue
                if answered.status != 503 or not repeats:
                    return answered
            if time.monotonic() + PAUSE > deadline:
                raise Failure(503, "No replica answers.", retry_after=2)
            await asyncio.sleep(PAUSE)


def _headers(failure: Failure) -> list[tuple[bytes, bytes]]:
    found = [(b"content-type", b"application/json")]
    if failure.retry_after is not None:
        found.append((b"retry-after", str(max(1, round(failure.retry_after))).encode()))
    return [*found, *((name.lower().encode(), value.encode("latin-1")) for name, value in failure.headers)]


def _content(failure: Failure, scope: Scope) -> bytes:
    detail = {**failure.detail(), "request_id": header(scope, b"x-request-id")}
    return json.dumps({"error": detail}).encode()
