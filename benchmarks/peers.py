"""The driver's end of the worker protocol."""

import contextlib
import json
import subprocess
import tempfile
from types import TracebackType
from typing import Any

TAIL = 4000  # characters of a worker's stderr that an error shows


class WorkerError(RuntimeError):
    """A worker died or could not answer; the message ends with what it last wrote to stderr."""


class Worker:
    """One worker process: started here, asked one request at a time, ended with the context."""

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
        """Sends a request and waits for its answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except OSError:
            raise self._failure(f"is gone (request {request.get('do')!r})") from None
        line = self.process.stdout.readline()
        if not line:
            raise self._failure(f"died in {request.get('do')!r}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise self._failure(f"could not do {request.get('do')!r}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Ends the worker by ending its input; it is killed when it does not follow."""
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

    def _failure(self, what: str) -> WorkerError:
        code = self.process.poll()
        self.log.flush()
        self.log.seek(0)
        tail = self.log.read()[-TAIL:].rstrip()
        ended = "" if code is None else f" (exit status {code})"
        return WorkerError(f"{self.script} {what}{ended}\n{tail}")
