"""Failures of requests: the status, and the one error body of every route."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from intarsia.errors import (
    BankError,
    DamagedInlay,
    DeadlineExceeded,
    IntarsiaError,
    InvalidName,
    MissingParent,
    Overloaded,
    Refused,
    RequestTooLong,
    UnknownTask,
)

CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    409: "conflict",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid_request",
    429: "overloaded",
    431: "headers_too_large",
    500: "internal_error",
    503: "unavailable",
    504: "deadline_exceeded",
    507: "disk_full",
}
TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "overloaded_error"}

ABSOLUTE = re.compile(r"(?<![\w./:])(?:/[^\s/'\"(),:;]+)+/?")


class Failure(Exception):
    """A request that gets an error. `code` distinguishes failures of one status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
        self.code = code or CODES[status]
        self.retry_after, self.headers, self.close = retry_after, headers, close

    def detail(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"message": self.message, "type": kind, "param": self.param, "code": self.code}


def without_paths(message: str, folder: Path | None = None) -> str:
    """The message with the last names of paths only: clients learn nothing about the machine's folders."""
    if folder is not None:  # its name may hold characters that end a path in a text
        for spelled in {str(folder.absolute()), str(folder.resolve()), str(folder)} - {".", "/"}:
            inside = re.compile(re.escape(spelled) + r"((?:/[^\s/'\"(),:;]+)*)")
            message = inside.sub(lambda found: Path(found[1]).name or found[0].rpartition("/")[2], message)
    return ABSOLUTE.sub(lambda found: Path(found[0]).name or "…", message)


def failure_of(error: IntarsiaError, folder: Path | None = None, task: str | None = None) -> Failure:
    """The failure that tells a client about an error of the library. `folder` is the bank's."""
    if isinstance(error, Overloaded):
        return Failure(429, str(error), retry_after=error.retry_after)
    if isinstance(error, DeadlineExceeded):
        return Failure(504, str(error))
    if isinstance(error, RequestTooLong):
        return Failure(413, str(error))
    message = without_paths(str(error), folder)
    if isinstance(error, UnknownTask):
        return Failure(404, message, code="unknown_task", param="task")
    if isinstance(error, MissingParent):
        return Failure(409, message, code="missing_parent", param="task")
    if isinstance(error, DamagedInlay):
        return Failure(
            409, f"The stored file of {task or 'this task'} is damaged; an administrator can restore another version.",
            code="damaged_inlay", param="task",
        )  # fmt: skip
    if isinstance(error, InvalidName):
        return Failure(422, message, code="invalid_name", param="task")
    if isinstance(error, Refused):
        return Failure(409, message, code="refused")
    if isinstance(error, BankError):
        return Failure(500, message, code="bank_error")
    return Failure(422, message)
