"""Traces: one span for each request, sent in OTLP (JSON over HTTP) to the endpoint that the environment names.

The variables are OpenTelemetry's: `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, or `OTEL_EXPORTER_OTLP_ENDPOINT` with
`/v1/traces` after it; `OTEL_EXPORTER_OTLP_HEADERS`; `OTEL_SERVICE_NAME`. Without an endpoint nothing is made or sent.
Spans hold no texts and no names of tasks. A thread sends them; if the endpoint is slow or gone, spans are lost, and
requests never wait.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from intarsia.errors import IntarsiaError
from intarsia.version import __version__

PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
KEPT, BATCH, SECONDS, TIMEOUT = 4096, 512, 1.0, 10.0
SERVER, ERROR = 2, 2  # OTLP's numbers for the kind of a span and for its status
FACTS = ("rows", "tokens", "code")

log = logging.getLogger("intarsia.error")


def parent_of(header: str | None) -> tuple[str, str, bool] | None:
    """The trace, the parent span, and whether it is sampled, from a W3C `traceparent` header."""
    found = PARENT.fullmatch(header or "")
    return None if found is None else (found[1], found[2], bool(int(found[3], 16) & 1))


class Tracer:
    """Sends spans from a thread of its own."""

    def __init__(self, endpoint: str, headers: Mapping[str, str], service: str) -> None:
        self.endpoint, self.headers = endpoint, {"Content-Type": "application/json", **headers}
        self.resource = {"attributes": _attributes({"service.name": service, "service.version": __version__})}
        self.lost = 0
        self._spans: deque[dict[str, Any]] = deque()
        self._changed = threading.Condition()
        self._closing = self._failing = False
        self._thread = threading.Thread(target=self._run, name="intarsia-traces", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Tracer | None:
        """The tracer that the environment asks for, if it names an endpoint."""
        base = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
        endpoint = environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or (base and base.rstrip("/") + "/v1/traces")
        if not endpoint:
            return None
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise IntarsiaError(
                f"OTEL_EXPORTER_OTLP_ENDPOINT {endpoint!r}: expected an address like http://localhost:4318."
            )
        pairs = [pair.partition("=") for pair in environment.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(",")]
        headers = {name.strip(): unquote(value.strip()) for name, _, value in pairs if name.strip()}
        return cls(endpoint, headers, environment.get("OTEL_SERVICE_NAME", "intarsia"))

    def ended(self, method: str, facts: Mapping[str, Any], seconds: float, traceparent: str | None) -> None:
        """Note the span of a request that has just ended, unless its caller does not sample it."""
        trace, parent, sampled = parent_of(traceparent) or (os.urandom(16).hex(), "", True)
        if not sampled:
            return
        end = time.time_ns()
        known = {"http.request.method": method, "http.route": facts["route"],
                 "http.response.status_code": facts["status"], "intarsia.request_id": facts["request_id"]}  # fmt: skip
        known |= {f"intarsia.{name}": facts[name] for name in FACTS if name in facts}
        known |= {f"intarsia.{stage}_ms": round(1000 * value, 3) for stage, value in facts.get("stages", {}).items()}
        span = {
            "traceId": trace, "spanId": os.urandom(8).hex(), "name": f"{method} {facts['route']}", "kind": SERVER,
            "startTimeUnixNano": str(end - int(seconds * 1e9)), "endTimeUnixNano": str(end),
            "attributes": _attributes(known), "status": {"code": ERROR} if facts["status"] >= 500 else {},
        }  # fmt: skip
        if parent:
            span["parentSpanId"] = parent
        with self._changed:
            if len(self._spans) >= KEPT:
                self.lost += 1
                return
            self._spans.append(span)
            if len(self._spans) == BATCH:
                self._changed.notify()

    def close(self) -> None:
        """Send what is left, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout=TIMEOUT)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or len(self._spans) >= BATCH, SECONDS)
                spans = [self._spans.popleft() for _ in range(min(BATCH, len(self._spans)))]
                closing = self._closing
            if spans:
                self._send(spans)
            elif closing:
                return

    def _send(self, spans: list[dict[str, Any]]) -> None:
        scope = {"scope": {"name": "intarsia", "version": __version__}, "spans": spans}
        body = json.dumps({"resourceSpans": [{"resource": self.resource, "scopeSpans": [scope]}]}).encode()
        try:
            asked = urllib.request.Request(self.endpoint, body, self.headers)
            with urllib.request.urlopen(asked, timeout=TIMEOUT) as answer:
                answer.read()
            self._failing = False
        except (OSError, ValueError) as error:
            self.lost += len(spans)
            if not self._failing:  # once, until it works again
                log.warning("spans cannot be sent to %s: %s", urlsplit(self.endpoint).netloc, error)
            self._failing = True


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": str(value)}
