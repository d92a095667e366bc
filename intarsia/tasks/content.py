"""The bytes of data files: decompressed, and limited, because a few kilobytes can decompress to any amount."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO, cast

from intarsia.errors import DataError

LIMIT = 2 << 30  # bytes of one file's content
LONGEST_LINE = 64 << 20
ROW_BYTES = 64  # what a row counts besides its content: rows without content need memory too
READ_ERRORS = (OSError, EOFError, zlib.error)

_limit: ContextVar[int] = ContextVar("content limit", default=LIMIT)


@contextmanager
def content_limit(limit: int | None) -> Iterator[None]:
    """Read at most `limit` bytes of content from each file meanwhile; None keeps the present limit."""
    token = _limit.set(_limit.get() if limit is None else limit)
    try:
        yield
    finally:
        _limit.reset(token)


def set_content_limit(limit: int | None) -> None:
    """Read at most `limit` bytes of content from each file from now on; None keeps the present limit."""
    if limit is not None:
        _limit.set(limit)


class Budget:
    """Counts the content that is read from one file."""

    def __init__(self, path: Path) -> None:
        self.path, self.limit = path, _limit.get()
        self.left = self.limit

    def spend(self, count: int) -> None:
        """Count bytes; raise if they exceed the limit."""
        self.left -= count
        if self.left < 0:
            raise DataError(
                f"{self.path} holds more than {self.limit:,} bytes of content (each row counts {ROW_BYTES} more). "
                f"If you trust the file and have the memory, raise the limit: --max-bytes, or max_bytes= in Python."
            )


class _Counted(io.RawIOBase):
    """A stream that counts what is read."""

    def __init__(self, stream: Any, budget: Budget) -> None:
        self.stream, self.budget = stream, budget

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self.stream.read(len(buffer))
        self.budget.spend(len(content))
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        if not self.closed:
            self.stream.close()
        super().close()


def open_content(path: Path, budget: Budget | None = None) -> BinaryIO:
    """Open a file's content, decompressed by the file's ending."""
    ending = path.suffix.lower()
    stream: Any
    if ending == ".gz":
        stream = gzip.GzipFile(path)
    elif ending == ".zst":
        import pyarrow as pa

        stream = pa.input_stream(str(path), compression="zstd")
    else:
        stream = path.open("rb")
    return cast(BinaryIO, io.BufferedReader(_Counted(stream, budget or Budget(path)), 1 << 16))


def read_content(path: Path) -> bytes:
    """Return the whole content of a file."""
    with closing(open_content(path)) as stream:
        return stream.read()


def damaged(path: Path, error: Exception, lines: int = 0) -> DataError:
    """The error for a file that cannot be read, after `lines` lines."""
    if isinstance(error, PermissionError):
        return DataError(f"{path} cannot be read: permission denied. Change its permissions.")
    place = f" after line {lines}" if lines else ""
    return DataError(f"{path} is damaged or truncated{place} ({error}). Download or compress the file again.")


def raw_lines(path: Path, stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a stream with their line ends."""
    number = 0
    while line := stream.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE:
            raise DataError(f"{path}, line {number}: longer than {LONGEST_LINE:,} bytes. Split it into several rows.")
        yield line
