"""Spans of requests, in OTLP, to an endpoint that a test plays."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from intarsia.bank.bank import Bank
from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaError
from intarsia.service.tracing import KEPT, Tracer
from tests.support.service import running

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
FACTS = {"route": "/livez", "status": 200, "request_id": "r"}


class Collector(ThreadingHTTPServer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str], Any]] = []
        got = self.got

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                got.append((self.path, dict(self.headers.items()), body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def spans(self) -> list[dict[str, Any]]:
        return [span for _, _, body in self.got for span in body["resourceSpans"][0]["scopeSpans"][0]["spans"]]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def values(attributes: list[dict[str, Any]]) -> dict[str, str]:
    return {each["key"]: str(next(iter(each["value"].values()))) for each in attributes}


def test_every_sampled_request_is_a_span(
    collector: Collector, learned: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}/")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=a%20b")
    body = {"requests": [{"task": "opinion", "input": "a secret text"}]}
    with running(Bank(learned, encoder)) as service:
        for flags in ("01", "00"):  # the second caller does not sample
            assert service.post("/v1/predict", body, traceparent=f"00-{TRACE}-{PARENT}-{flags}").status == 200
        assert service.get("/nothing").status == 404
    path, headers, sent = collector.got[0]
    assert path == "/v1/traces" and headers["X-Team"] == "a b"
    assert values(sent["resourceSpans"][0]["resource"]["attributes"])["service.name"] == "intarsia"
    asked, missing = [span for span in collector.spans if "readyz" not in span["name"]]
    assert (asked["traceId"], asked["parentSpanId"], asked["name"]) == (TRACE, PARENT, "POST /v1/predict")
    found = values(asked["attributes"])
    assert found["http.response.status_code"] == "200" and found["intarsia.rows"] == "1"
    assert float(found["intarsia.total_ms"]) > 0 and "intarsia.queue_ms" in found
    assert int(asked["endTimeUnixNano"]) > int(asked["startTimeUnixNano"])
    assert values(missing["attributes"])["http.response.status_code"] == "404" and "parentSpanId" not in missing
    assert "secret" not in json.dumps(sent)


def test_without_an_endpoint_nothing_is_sent() -> None:
    assert Tracer.of({}) is None
    for wrong in ("localhost:4318", "file:///etc/passwd"):
        with pytest.raises(IntarsiaError, match="expected an address"):
            Tracer.of({"OTEL_EXPORTER_OTLP_ENDPOINT": wrong})


def test_an_endpoint_that_is_gone_costs_spans_and_nothing_else() -> None:
    tracer = Tracer("http://127.0.0.1:9/v1/traces", {}, "x")
    for _ in range(3):
        tracer.ended("GET", FACTS, 0.001, None)
    tracer.close()
    assert tracer.lost == 3


def test_spans_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    monkeypatch.setattr(Tracer, "_send", lambda *_: go.wait())
    tracer = Tracer("http://127.0.0.1:9/v1/traces", {}, "x")
    for _ in range(3 * KEPT):
        tracer.ended("GET", FACTS, 0.001, None)
    assert tracer.lost > KEPT and len(tracer._spans) <= KEPT
    go.set()
    tracer.close()
