"""Counters and histograms, and their text for Prometheus. No label names a task: a bank may hold ten thousand."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
STAGES = ("tokenization", "queue", "inference", "total")


class Histogram:
    """Counts of values by upper bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def lines(self, name: str, labels: str = "") -> Iterator[str]:
        total = 0
        comma = "," if labels else ""
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels}{comma}le="{bound}"}} {total}'
        braces = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{braces} {self.sum:.9g}"
        yield f"{name}_count{braces} {total}"


class Metrics:
    """What the HTTP layer counts. Only the event loop's thread uses it."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()  # method, route, status
        self.seconds = Histogram(SECONDS)
        self.rows = Histogram(tuple(map(float, ROWS)))
        self.stages = {stage: Histogram(SECONDS) for stage in STAGES}
        self.row_errors: Counter[str] = Counter()  # code
        self.in_flight = 0
        self.disconnected = 0

    def ended(self, method: str, route: str, status: int, seconds: float) -> None:
        self.requests[method, route, status] += 1
        self.seconds.add(seconds)

    def answered(self, rows: int, stages: Mapping[str, float]) -> None:
        self.rows.add(rows)
        for stage, value in stages.items():
            self.stages[stage].add(value)

    def text(self, engine: Iterable[tuple[str, str, str, float]]) -> str:
        """All metrics; `engine` has name, type, help and value of the engine's."""
        lines = [*_head("intarsia_http_requests_total", "counter", "Requests by route and status.")]
        for (method, route, status), count in sorted(self.requests.items()):
            lines.append(f'intarsia_http_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}')
        lines += _head("intarsia_http_request_seconds", "histogram", "Time from the headers to the end of the answer.")
        lines += self.seconds.lines("intarsia_http_request_seconds")
        lines += _head("intarsia_request_rows", "histogram", "Rows of a request.")
        lines += self.rows.lines("intarsia_request_rows")
        lines += _head("intarsia_stage_seconds", "histogram", "Time of a request in each stage of the engine.")
        for stage, histogram in self.stages.items():
            lines += histogram.lines("intarsia_stage_seconds", f'stage="{stage}"')
        lines += _head("intarsia_row_errors_total", "counter", "Rows that were answered with an error.")
        lines += [f'intarsia_row_errors_total{{code="{code}"}} {n}' for code, n in sorted(self.row_errors.items())]
        own = [
            ("intarsia_http_in_flight", "gauge", "Requests that are being answered.", float(self.in_flight)),
            ("intarsia_http_disconnected_total", "counter", "Clients that left early.", float(self.disconnected)),
        ]
        for name, kind, help, value in (*own, *engine):
            lines += [*_head(name.partition("{")[0], kind, help), f"{name} {value:.9g}"]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, help: str) -> tuple[str, str]:
    return f"# HELP {name} {help}", f"# TYPE {name} {kind}"
