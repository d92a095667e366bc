"""Health, what the service is, and its metrics. Health needs no key and does not wait in the queue."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from intarsia.service import schemas
from intarsia.service.catalog import Listed
from intarsia.service.web import Operation, Reply, Request
from intarsia.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from intarsia.serve.engine import EngineStats

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
PERCENTILES = (50, 95, 99)
NOT_LIMITS = ("host", "port", "socket", "log")

# The engine's numbers as metrics: field, name, help.
COUNTERS = (
    ("calls", "calls", "Requests that were admitted."),
    ("rows", "rows", "Rows that passes answered."),
    ("tokens", "tokens", "Tokens of these rows."),
    ("passes", "passes", "Passes through the base."),
    ("tasks_in_passes", "pass_tasks", "Different tasks of each pass, summed over passes."),
    ("busy", "busy_seconds", "Time in passes."),
    ("truncated", "truncated_rows", "Rows that were cut to the longest length of their task."),
    ("errors", "row_errors", "Rows that got an error."),
    ("refused", "refused", "Requests that were refused because the queue was full."),
    ("expired", "expired", "Requests whose deadline passed."),
    ("host_hits", "loads_from_memory", "Tasks that were found in host memory."),
    ("file_loads", "loads_from_files", "Tasks that were read from files."),
    ("evictions", "evictions", "Tasks that lost their slot to others."),
)
GAUGES = (
    ("queue_rows", "queue_rows", "Rows that wait."),
    ("queue_tokens", "queue_tokens", "Tokens that wait."),
    ("oldest_wait", "oldest_wait_seconds", "Time that the oldest row has waited."),
    ("resident", "resident_tasks", "Tasks on the device."),
    ("slot_bytes", "slot_bytes", "Bytes of all slots."),
    ("host_tasks", "host_tasks", "Tasks in host memory."),
    ("host_bytes", "host_bytes", "Bytes of inlays in host memory."),
)


async def livez(request: Request) -> Reply:
    return Reply.json({"status": "alive"})


async def readyz(request: Request) -> Reply:
    await request.service.check_ready()
    return Reply.json({"status": "ready"})


async def info(request: Request) -> Reply:
    service = request.service
    engine = service.running()
    listed = await service.in_thread(Listed.of, service.bank)
    encoder = engine.encoder
    limits = {k: v for k, v in dataclasses.asdict(service.options).items() if k not in NOT_LIMITS}
    about = {
        "name": service.base_name,
        "fingerprint": encoder.fingerprint,
        "family": encoder.shape.family,
        "parameters": encoder.shape.parameters,
        "width": encoder.shape.width,
        "compiled": encoder.compiled is not None,  # its passes on a CPU
    }
    return Reply.json(
        schemas.Info(
            intarsia=__version__,
            encoder=about,
            device=str(encoder.device),
            precision=service.precision,
            tasks=len(listed.entries),
            limits=limits | dataclasses.asdict(engine.limits),
            engine=engine_values(engine.stats()),
            keys={"user": service.keys.user is not None, "admin": service.keys.admin is not None},
        )
    )


def engine_values(stats: EngineStats) -> dict[str, Any]:
    """The engine's numbers as plain values."""
    values: dict[str, Any] = {name: getattr(stats, field) for field, name, _ in (*COUNTERS, *GAUGES)}
    values["slots"] = [
        {"shape": shape, "used": used, "capacity": capacity} for shape, (used, capacity) in stats.slots.items()
    ]
    return values


async def stats(request: Request) -> Reply:
    """What changes while the service runs: cheap enough to be read every second."""
    found = request.service.running().stats()
    latest = sorted(found.recent)
    milliseconds = {f"p{share}": round(1000 * _percentile(latest, share), 3) for share in PERCENTILES}
    return Reply.json(
        schemas.Stats(
            engine=engine_values(found),
            latency_ms={"calls": len(latest), **milliseconds},
            in_flight=request.service.metrics.in_flight,
        )
    )


def _percentile(ordered: list[float], share: int) -> float:
    """The smallest of the values that at least `share` percent of them do not exceed; 0 without values."""
    return ordered[max(0, -(-share * len(ordered) // 100) - 1)] if ordered else 0.0


async def metrics(request: Request) -> Reply:
    engine = request.service.engine
    rows = [] if engine is None else list(_engine_metrics(engine.stats()))
    return Reply(request.service.metrics.text(rows).encode(), media=PROMETHEUS)


def _engine_metrics(stats: EngineStats) -> Iterator[tuple[str, str, str, float]]:
    for field, name, help in COUNTERS:
        yield f"intarsia_engine_{name}_total", "counter", help, float(getattr(stats, field))
    for field, name, help in GAUGES:
        yield f"intarsia_engine_{name}", "gauge", help, float(getattr(stats, field))


OPERATIONS = (
    Operation("GET", "/livez", livez, "Whether the process answers", access="open", gives=schemas.Health),
    Operation("GET", "/readyz", readyz, "Whether requests can be answered: a recent pass, and no stale queue",
              access="open", gives=schemas.Health, statuses=(503,)),
    Operation("GET", "/v1/info", info, "What the service is, and every limit in force", gives=schemas.Info,
              statuses=(503,)),
    Operation("GET", "/v1/stats", stats, "What the service does: counters, the queue, latencies of the latest requests",
              gives=schemas.Stats, statuses=(503,)),
    Operation("GET", "/metrics", metrics, "Metrics for Prometheus", media=PROMETHEUS),
)  # fmt: skip
