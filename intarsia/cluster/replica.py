"""A replica of the service: the engine and the application of one machine, called through Ray, not by a socket."""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import dataclass, field
from typing import Any

from intarsia.service.asgi import Message
from intarsia.service.errors import Failure
from intarsia.service.options import Keys, Options


@dataclass(frozen=True)
class ServedBank:
    """What every replica serves, and within which limits."""

    folder: str  # on storage that all nodes see, under the same path
    encoder: str | None = None
    device: str = "cpu"
    precision: str | None = None
    options: Options = field(default_factory=Options)
    keys: Keys = field(default_factory=Keys)
    limits: dict[str, int] = field(default_factory=dict)
    threads: int = 1


@dataclass(frozen=True)
class Call:
    """An HTTP request, read whole."""

    key: str | None  # the task by which it is routed
    scope: dict[str, Any]
    body: bytes


@dataclass(frozen=True)
class Answered:
    """An HTTP answer, and the replica that gave it."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    replica: str


class Replica:
    """Answers calls with the application of `intarsia serve`."""

    def __init__(self, served: ServedBank) -> None:
        import torch
        from ray import serve

        from intarsia.bank.bank import Bank
        from intarsia.serve.limits import Limits
        from intarsia.service.app import create_app
        from intarsia.service.state import Service

        torch.set_num_threads(served.threads)
        _log_to_stderr()
        limits = Limits(**served.limits)
        bank = Bank(served.folder, served.encoder, device=served.device, precision=served.precision, limits=limits)
        self.service = Service(bank, served.options, served.keys)
        self.app = create_app(self.service)
        self.service.load()  # a replica gets requests when this method has returned
        self.name = serve.get_replica_context().replica_id.unique_id

    async def answer(self, call: Call) -> Answered:
        """Answer one request. A client that leaves cancels this call, and with it the rows that wait."""
        start: dict[str, Any] = {}
        parts: list[bytes] = []
        messages = [{"type": "http.request", "body": call.body, "more_body": False}]

        async def receive() -> Message:
            if messages:
                return messages.pop()
            await asyncio.Event().wait()  # the client's departure arrives as a cancellation
            raise AssertionError

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                parts.append(message.get("body", b""))

        await self.app(dict(call.scope), receive, send)
        return Answered(start["status"], list(start["headers"]), b"".join(parts), self.name)

    async def check_health(self) -> None:
        """Called by Ray Serve, which replaces a replica whose engine no longer computes."""
        try:
            await self.service.check_ready()
        except Failure as failure:
            if failure.code == "no_pass":
                raise RuntimeError(failure.message) from failure

    def __del__(self) -> None:
        if (service := getattr(self, "service", None)) is not None:
            service.draining.set()
            service.close()


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    for name in ("intarsia.access", "intarsia.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
