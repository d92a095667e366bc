"""A memory-mapped file of byte chunks; each chunk is either complete or missing.

The file holds a format name, one checksum per chunk, then the chunks at fixed offsets. A chunk is written before its
checksum. A later process verifies the checksum when it first reads the chunk, so a torn chunk counts as missing.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from intarsia import files

NAME = b"intarsia chunks 1\n"


class ChunkFile:
    def __init__(self, path: Path, sizes: Sequence[int]) -> None:
        """Open the file for chunks of these sizes (bytes); create it if it is missing or has another layout."""
        self.path = path
        self.sizes = np.array(sizes, np.int64)
        header_size = len(NAME) + self.sizes.nbytes
        self.starts = header_size + np.cumsum(self.sizes) - self.sizes
        total = header_size + int(self.sizes.sum())
        if not path.is_file() or path.stat().st_size != total or not self._has_format_name():
            self._create(total)
        self.map = np.memmap(path, np.uint8, "r")
        self.checksums = np.frombuffer(self.map[len(NAME) : header_size].tobytes(), np.int64).copy()  # 0: missing
        self.verified = np.zeros(len(sizes), bool)

    @property
    def used(self) -> int:
        """The total size of the stored chunks, in bytes."""
        return int(self.sizes[self.checksums != 0].sum())

    def has(self, chunk: int) -> bool:
        """Return whether a chunk is stored and complete."""
        if self.checksums[chunk] and not self.verified[chunk]:
            complete = self.checksums[chunk] == _checksum(self.read(chunk, 0, int(self.sizes[chunk])))
            self.verified[chunk] = complete
            if not complete:
                self.checksums[chunk] = 0
        return bool(self.verified[chunk])

    def read(self, chunk: int, start: int, end: int) -> np.ndarray:
        """Return a copy of the bytes `start` to `end` of a chunk."""
        offset = int(self.starts[chunk])
        return np.array(self.map[offset + start : offset + end])

    def write(self, chunk: int, content: np.ndarray) -> None:
        """Store a chunk."""
        checksum = _checksum(content)
        # A write to the memory map would kill the process when the disk is full; a file write raises OSError.
        with self.path.open("r+b") as file:
            file.seek(int(self.starts[chunk]))
            file.write(content.data)
            file.flush()
            file.seek(len(NAME) + 8 * chunk)
            file.write(np.int64(checksum).tobytes())
        self.checksums[chunk], self.verified[chunk] = checksum, True

    def delete(self) -> None:
        """Close the file and delete it."""
        del self.map
        with contextlib.suppress(OSError):  # it is a cache
            self.path.unlink(missing_ok=True)

    def _has_format_name(self) -> bool:
        with self.path.open("rb") as file:
            return file.read(len(NAME)) == NAME

    def _create(self, total: int) -> None:
        files.make_folder(self.path.parent)
        with files.written(self.path.parent, [NAME]) as temporary:
            os.truncate(temporary, total)  # a sparse file: missing chunks take no disk space
            temporary.replace(self.path)


def _checksum(content: np.ndarray) -> int:
    """Return CRC-32 plus 1, because 0 marks a missing chunk."""
    return zlib.crc32(content.data) + 1
