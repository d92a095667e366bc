"""A client of the service, with the bank's own `predict`, `embed` and `tasks`. It needs neither torch nor an extra.

    client = intarsia.Client("http://127.0.0.1:8080")
    client.predict("spam", ["You have won!"])
    client.predict([("spam", "You have won!"), ("topic", "Shares fell on Monday.")])

A service that is busy (429) or not ready (503) is asked again after the time that it names, within `patience` seconds.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload
from urllib.parse import quote, urlsplit

from intarsia import errors, local_socket
from intarsia.errors import IntarsiaError, ServiceError
from intarsia.serve.prediction import Prediction
from intarsia.tasks.examples import Question

if TYPE_CHECKING:
    import numpy as np

    from intarsia.serve.prediction import Text

Rows = list[dict[str, Any]]
ROWS = 512  # of one request
CHARACTERS = 1 << 20  # of one request
KINDS: dict[str, type[IntarsiaError]] = {
    "unknown_task": errors.UnknownTask,
    "damaged_inlay": errors.DamagedInlay,
    "missing_parent": errors.MissingParent,
    "refused": errors.Refused,
    "invalid_name": errors.InvalidName,
    "overloaded": errors.Overloaded,
    "too_large": errors.RequestTooLong,
    "deadline_exceeded": errors.DeadlineExceeded,
}


@dataclass(frozen=True)
class RemoteTask:
    """A task of a service, as `/v1/tasks` describes it. `details` has all fields."""

    name: str
    version: int
    state: str
    kind: str | None = None
    labels: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict, repr=False)


class Client:
    """Asks one service. May be used from any number of threads; connections are kept and reused."""

    def __init__(self, url: str, key: str | None = None, *, timeout: float = 60.0, patience: float = 30.0) -> None:
        """`timeout` limits one answer. `patience` limits the time in which a busy service is asked again."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https", "unix") or (not parts.hostname and parts.scheme != "unix"):
            raise IntarsiaError(f"{url!r} is no address of a service; expected one like http://127.0.0.1:8080.")
        try:
            self._port = parts.port
        except ValueError as error:
            raise IntarsiaError(f"{url!r}: {error}.") from None
        if key is not None and not (key.isascii() and key.isprintable()):
            raise IntarsiaError("The key must be printable ASCII; a line break at its end is often from a file.")
        self._prefix = parts.path.rstrip("/") if parts.scheme != "unix" else ""  # of a proxy
        self.url, self.timeout, self.patience = url.rstrip("/"), timeout, patience
        self._parts, self._key = parts, key
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []

    @classmethod
    def for_bank(cls, folder: str | Path, *, timeout: float = 60.0) -> Client | None:
        """A client of the service that runs over a bank on this machine, or None if there is none that is ready.

        It uses the bank's Unix socket, which only the user of the service can open, so it needs no key.
        """
        path = local_socket.socket_path(folder)
        if (probe := local_socket.connect(path, timeout=1.0)) is None:
            return None
        probe.close()
        client = cls(f"unix://{path}", timeout=timeout)
        try:
            client._once("GET", "/readyz", None, timeout=5.0)
        except (_Later, IntarsiaError, OSError, http.client.HTTPException):
            client.close()
            return None
        return client

    @overload
    def predict(self, task: str, texts: Sequence[Text]) -> list[Prediction]: ...
    @overload
    def predict(self, task: Sequence[tuple[str, Text]]) -> list[Prediction]: ...

    def predict(self, task: str | Sequence[tuple[str, Text]], texts: Sequence[Text] | None = None) -> list[Prediction]:
        """Return the predictions of one task for many texts or, given (task, text) requests, of many tasks at once.

        Many rows become several requests. The first row with an error raises it, as `bank.predict` does.
        """
        if isinstance(task, str):
            requests = [(task, text) for text in self._texts(task, texts)]
        else:
            requests = _requests(task, texts)
        rows = [{"task": name, "input": _input(text)} for name, text in requests]
        results = self._in_parts(rows, lambda part: self.post("/v1/predict", {"requests": part})["results"])
        return [_prediction(result) for result in results]

    def embed(self, texts: Sequence[Text], task: str | None = None) -> np.ndarray:
        """Return the pooled states of the base, or of a task, for texts or pairs of texts: [texts, width], float32."""
        import numpy as np

        model = task or self.info()["encoder"]["name"]
        rows = [{"input": _input(text)} for text in self._texts(task, texts)]

        def ask(part: list[dict[str, Any]]) -> list[dict[str, Any]]:
            body = {"model": model, "input": [row["input"] for row in part], "encoding_format": "base64"}
            found: list[dict[str, Any]] = self.post("/v1/embeddings", body)["data"]
            return found

        vectors = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in self._in_parts(rows, ask)]
        return np.stack(vectors) if vectors else np.zeros((0, self.info()["encoder"]["width"]), np.float32)

    def tasks(self, prefix: str = "") -> list[RemoteTask]:
        """Return the newest version of every task."""
        found: list[RemoteTask] = []
        cursor = ""
        while True:
            page = self.get(f"/v1/tasks?limit=1000&prefix={quote(prefix, safe='')}&cursor={quote(cursor, safe='')}")
            for row in page["tasks"]:
                labels = tuple(row.get("labels") or ())
                found.append(RemoteTask(row["task"], row["version"], row["state"], row.get("kind"), labels, row))
            cursor = page["next_cursor"]
            if not cursor:
                return found

    def info(self) -> dict[str, Any]:
        """What the service is, and its limits."""
        found: dict[str, Any] = self.get("/v1/info")
        return found

    def get(self, path: str) -> Any:
        """The JSON answer to a GET request."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: Any = None) -> Any:
        """The JSON answer to a POST request."""
        return self._ask("POST", path, json.dumps(body if body is not None else {}).encode())

    def close(self) -> None:
        """Close the kept connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __del__(self) -> None:
        if hasattr(self, "_idle"):
            self.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Requests.

    def _texts(self, task: str | None, texts: Any) -> Sequence[Any]:
        """The texts for a task (None: for the base). Columns and tables of other libraries become lists."""
        if isinstance(texts, list) and all(isinstance(text, str | tuple | list | Question) for text in texts):
            return texts
        from intarsia.tasks.requests import texts_of

        kind = None if task is None else self.get(f"/v1/tasks/{quote(task, safe='')}").get("kind")
        found = texts_of(texts, "label" if kind in (None, "none") else kind)
        if None in found:
            raise errors.DataError(f"text {found.index(None) + 1:,} is missing. Drop it.")
        return found

    def _in_parts(self, rows: list[dict[str, Any]], ask: Callable[[Rows], Rows]) -> Rows:
        """The answers to any number of rows, in requests that the service takes."""
        found: Rows = []
        waiting = _parts(rows)[::-1]
        while waiting:
            part = waiting.pop()
            try:
                found += ask(part)
            except errors.RequestTooLong:  # the service has smaller limits than usual
                if len(part) == 1:
                    raise
                half = len(part) // 2
                waiting += [part[half:], part[:half]]
        return found

    def _ask(self, method: str, path: str, body: bytes | None) -> Any:
        """The answer; a service that is busy or not ready is asked again."""
        end = time.monotonic() + self.patience
        while True:
            try:
                return self._once(method, path, body, self.timeout)
            except _Later as later:
                left = end - time.monotonic()
                if left <= later.after:
                    raise later.error from None
                time.sleep(later.after)
            except TimeoutError:
                raise errors.DeadlineExceeded(f"{self.url} gave no answer within {self.timeout:g} seconds.") from None
            except (OSError, http.client.HTTPException) as error:
                raise ServiceError(f"Cannot ask {self.url}: {error or type(error).__name__}. Is it running?") from error

    def _once(self, method: str, path: str, body: bytes | None, timeout: float) -> Any:
        path = self._prefix + path
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        reused, connection = self._connection(timeout)
        try:
            status, after, content = _exchange(connection, method, path, body, headers)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            connection.close()
            if not reused:
                raise
            # The service closed a kept connection before it read the request: ask on a new one.
            connection = self._connect(timeout)
            try:
                status, after, content = _exchange(connection, method, path, body, headers)
            except BaseException:
                connection.close()
                raise
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None:
            with self._lock:
                self._idle.append(connection)
        return _read(status, after, content)

    def _connection(self, timeout: float) -> tuple[bool, http.client.HTTPConnection]:
        with self._lock:
            kept = self._idle.pop() if self._idle else None
        if kept is not None and kept.sock is not None:
            kept.sock.settimeout(timeout)
            return True, kept
        return False, self._connect(timeout)

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        if self._parts.scheme == "unix":
            return _UnixConnection(Path(self._parts.path), timeout)
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        made = kind(self._parts.hostname or "", self._port, timeout=timeout)
        made.connect()
        made.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made


class _Later(Exception):
    """Ask again after some seconds; if that takes too long, `error` says why."""

    def __init__(self, after: float, error: IntarsiaError) -> None:
        self.after, self.error = after, error


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        made = local_socket.connect(path, timeout)
        if made is None:
            raise ConnectionRefusedError(f"no service listens at {path}")
        self.sock = made


def _exchange(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None, headers: dict[str, str]
) -> tuple[int, float, bytes]:
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    content = answer.read()
    try:
        after = float(answer.headers.get("Retry-After", "1"))
    except ValueError:
        after = 1.0
    return answer.status, after, content


def _read(status: int, after: float, content: bytes) -> Any:
    try:
        value = json.loads(content) if content else None
    except ValueError:
        raise ServiceError(f"The service answered {status} without JSON; is it an Intarsia service?") from None
    if status < 400:
        return value
    detail = value.get("error") if isinstance(value, dict) else None
    error = _error(detail if isinstance(detail, dict) else {}, status)
    if status in (429, 503):
        raise _Later(after, error)
    raise error


def _error(detail: dict[str, Any], status: int) -> IntarsiaError:
    """The error of the library that the service's error stands for."""
    message = str(detail.get("message") or f"The service answered with status {status}.")
    kind = KINDS.get(str(detail.get("code")))
    if kind is not None:
        return kind(message)
    return ServiceError(message) if status in (401, 403) or status >= 500 else IntarsiaError(message)


def _requests(requests: Any, texts: Any) -> list[tuple[str, Any]]:
    if texts is not None or isinstance(requests, bytes) or not isinstance(requests, Iterable):
        raise IntarsiaError("predict expects the name of a task and its texts, or a list of (task, text).")
    found = list(requests)
    for number, request in enumerate(found, 1):
        if not (isinstance(request, list | tuple) and len(request) == 2 and isinstance(request[0], str)):
            raise IntarsiaError(f"request {number} of predict: expected (task, text), found {request!r:.60}.")
    return [(name, text) for name, text in found]


def _input(text: Any) -> Any:
    if isinstance(text, Question):
        return {"question": text.text, "context": text.context}
    if isinstance(text, str | Mapping):
        return text
    if isinstance(text, list | tuple):
        return list(text)
    raise IntarsiaError(f"expected a text, a pair of texts or a list of words, found {text!r:.60}.")


def _prediction(result: dict[str, Any]) -> Prediction:
    if "error" in result:
        raise _error(result["error"], 422)
    return Prediction.of(result["task"], {k: v for k, v in result.items() if k not in NOT_ANSWERS})


NOT_ANSWERS = ("index", "task", "version", "kind")


def _parts(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The rows in parts that one request can hold."""
    parts: list[list[dict[str, Any]]] = []
    characters = 0
    for row in rows:
        size = len(json.dumps(row["input"]))
        if not parts or len(parts[-1]) >= ROWS or characters + size > CHARACTERS:
            parts.append([])
            characters = 0
        parts[-1].append(row)
        characters += size
    return parts
