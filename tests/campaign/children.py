"""Forked processes: everything is loaded once, and a child that is killed costs milliseconds."""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LONGEST = 120.0  # seconds after which a child counts as hung


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    status: int  # exit code, or minus the number of the signal
    value: Any = None  # what its function returned
    error: str = ""  # the type and message of the exception that ended its function
    trace: str = ""
    hung: bool = False


def start(function: Callable[[], Any]) -> tuple[int, int]:
    """Run a function in a forked child; return its process id and the pipe with its result."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    os.close(reader)
    warnings.simplefilter("ignore")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    try:
        outcome: tuple[Any, str, str] = (function(), "", "")
    except BaseException as error:
        outcome = (None, f"{type(error).__mro__[0].__name__}: {error}", traceback.format_exc())
        outcome = (_kind(error), *outcome[1:])
    os.set_blocking(writer, True)
    content = memoryview(pickle.dumps(outcome))
    while content:
        content = content[os.write(writer, content) :]
    os._exit(0)


def _kind(error: BaseException) -> list[str]:
    """The names of an exception's classes: the parent asks whether it is an error for the user."""
    return [kind.__name__ for kind in type(error).__mro__]


def finish(pid: int, reader: int, longest: float = LONGEST) -> Ended:
    """Wait for a child and return how it ended; a child that hangs is killed."""
    content, ends, hung = b"", time.monotonic() + longest, False
    try:
        while True:
            ready, _, _ = select.select([reader], [], [], max(0.0, ends - time.monotonic()))
            if not ready:
                hung = True
                os.kill(pid, signal.SIGKILL)
                break
            part = os.read(reader, 1 << 20)
            if not part:
                break
            content += part
    finally:
        os.close(reader)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if not content or hung:
        return Ended(status, hung=hung)
    try:
        value, error, trace = pickle.loads(content)
    except (EOFError, pickle.UnpicklingError):  # killed while it wrote
        return Ended(status)
    return Ended(status, value, error, trace)


def in_child(function: Callable[[], Any], longest: float = LONGEST) -> Ended:
    return finish(*start(function), longest)


def killed_after(function: Callable[[], Any], seconds: float) -> Ended:
    """Run a function in a child and kill it after some time, unless it has ended before."""
    pid, reader = start(function)
    ready, _, _ = select.select([reader], [], [], seconds)  # readable: it has ended
    if not ready:
        os.kill(pid, signal.SIGKILL)
    return finish(pid, reader)


def is_for_users(ended: Ended) -> bool:
    """Whether the child's function raised an `IntarsiaError`."""
    return bool(ended.error) and "IntarsiaError" in (ended.value or ())
