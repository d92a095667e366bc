"""The driver's side of the worker protocol."""

import contextlib
import json
import subprocess
import tempfile
from types import TracebackType
from typing import Any

TAIL = 4000  # characters of a worker's stderr that an error shows


class WorkerError(RuntimeError):
    """A worker died or failed a request. The message ends with the last lines of its stderr."""


class Worker:
    """One worker process. It handles one request at a time and ends with the context."""

    def __init__(self, python: str, script: str, *options: str) -> None:
        self.script = script
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(
            [python, script, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            encoding="utf-8",
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and return its answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except OSError:
            raise self._failure(f"has ended before the request {request.get('do')!r}") from None
        line = self.process.stdout.readline()
        if not line:
            raise self._failure(f"died during the request {request.get('do')!r}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise self._failure(f"failed the request {request.get('do')!r}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the worker by closing its input; kill it if it does not end within 30 seconds."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.log.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _failure(self, problem: str) -> WorkerError:
        code = self.process.poll()
        self.log.flush()
        self.log.seek(0)
        tail = self.log.read()[-TAIL:].rstrip()
        ended = "" if code is None else f" (exit status {code})"
        return WorkerError(f"{self.script} {problem}{ended}\n{tail}")
