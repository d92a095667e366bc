"""Failing file operations: every call into the operating system that Python code makes for files, counted.

The n-th operation fails with an error, or the process ends there as if it were killed. Libraries that make their own
calls (SQLite, the reader of safetensors) are not seen.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FUNCTIONS = (
    "open", "close", "stat", "lstat", "mkdir", "rmdir", "unlink", "remove", "rename", "replace", "link", "fsync",
    "scandir", "listdir", "truncate", "access", "chmod",
)  # fmt: skip
METHODS = ("read", "write", "flush", "seek", "readline", "close")
CODES = (errno.EIO, errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EMFILE, errno.ENOENT, errno.EPERM, errno.ENOTDIR)
KILLED = 77  # exit code of a process that ended at an operation


class Faults:
    """Counts the file operations below a folder; `at` (from 1) is the one that fails, with `code` or by `end`."""

    def __init__(self, below: Path, at: int = 0, code: int = errno.EIO, end: Callable[[], Any] | None = None) -> None:
        self.below, self.at, self.code, self.end = str(below), at, code, end
        self.count = 0
        self.failed = ""  # the operation that failed
        self.handles: set[int] = set()  # file descriptors of files below the folder

    def operation(self, name: str, target: object) -> None:
        self.count += 1
        if self.count == self.at:
            self.failed = f"{name} {target}"
            if self.end is not None:
                self.end()
            raise OSError(self.code, os.strerror(self.code), str(target))

    def concerns(self, target: object) -> bool:
        if isinstance(target, int):
            return target in self.handles
        if isinstance(target, str | os.PathLike):
            return os.fspath(target).startswith(self.below)  # type: ignore[arg-type]
        return False


class _File:
    """A file whose operations are counted."""

    def __init__(self, file: Any, faults: Faults, path: object) -> None:
        self._file, self._faults, self._path = file, faults, path
        if hasattr(file, "fileno"):
            with contextlib.suppress(OSError):
                faults.handles.add(file.fileno())

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._file, name)
        if name not in METHODS:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "close":
                self._forget()
                found()  # a failing close still closes
                return self._faults.operation(name, self._path)
            self._faults.operation(name, self._path)
            return found(*args, **kwargs)

        return call

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)

    def _forget(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._faults.handles.discard(self._file.fileno())


@contextlib.contextmanager
def injected(faults: Faults) -> Iterator[Faults]:
    """Replace the functions of `os` and `open` by ones that count and fail."""
    real = {name: getattr(os, name) for name in FUNCTIONS}
    real_open = io.open

    def wrapped(name: str) -> Callable[..., Any]:
        function = real[name]

        def call(*args: Any, **kwargs: Any) -> Any:
            target = args[0] if args else kwargs.get("path", kwargs.get("fd"))
            counted = faults.concerns(target) or (len(args) > 1 and faults.concerns(args[1]))
            if counted and name == "close":
                faults.handles.discard(target)  # type: ignore[arg-type]
                function(*args, **kwargs)
                return faults.operation(name, target)
            if counted:
                faults.operation(name, target)
            result = function(*args, **kwargs)
            if counted and name == "open":
                faults.handles.add(result)
            return result

        return call

    def opened(file: Any, *args: Any, **kwargs: Any) -> Any:
        if not faults.concerns(file):
            return real_open(file, *args, **kwargs)
        faults.operation("open", file)
        return _File(real_open(file, *args, **kwargs), faults, file)

    try:
        for name in FUNCTIONS:
            setattr(os, name, wrapped(name))
        io.open = builtins.open = opened  # type: ignore[assignment]
        yield faults
    finally:
        for name, function in real.items():
            setattr(os, name, function)
        io.open = builtins.open = real_open
