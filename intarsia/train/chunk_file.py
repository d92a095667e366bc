"""Chunks of bytes in one memory-mapped file, each either whole or not there.

A name, a checksum for each chunk, then the chunks at fixed places. A chunk is written before its checksum, and checked
against it when a later process first reads it: a torn one counts as missing.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from intarsia import files

NAME = b"intarsia chunks 1\n"


class ChunkFile:
    def __init__(self, path: Path, sizes: Sequence[int]) -> None:
        """Open the file for chunks of these sizes; begin it anew where it is not there, or another."""
        self.path = path
        self.sizes = np.array(sizes, np.int64)
        first = len(NAME) + self.sizes.nbytes
        self.starts = first + np.cumsum(self.sizes) - self.sizes
        total = first + int(self.sizes.sum())
        if not path.is_file() or path.stat().st_size != total or not self._named():
            self._begin(total)
        self.map = np.memmap(path, np.uint8, "r")
        self.checksums = np.frombuffer(self.map[len(NAME) : first].tobytes(), np.int64).copy()  # 0: not there
        self.checked = np.zeros(len(sizes), bool)

    @property
    def used(self) -> int:
        """Bytes of the chunks that are there."""
        return int(self.sizes[self.checksums != 0].sum())

    def has(self, chunk: int) -> bool:
        if self.checksums[chunk] and not self.checked[chunk]:
            whole = self.checksums[chunk] == _checksum(self.read(chunk, 0, int(self.sizes[chunk])))
            self.checked[chunk] = whole
            if not whole:
                self.checksums[chunk] = 0
        return bool(self.checked[chunk])

    def read(self, chunk: int, start: int, end: int) -> np.ndarray:
        """A copy of some bytes of a chunk."""
        at = int(self.starts[chunk])
        return np.array(self.map[at + start : at + end])

    def write(self, chunk: int, content: np.ndarray) -> None:
        """Not through the map: a full disk is then an error, and not the process's end."""
        checksum = _checksum(content)
        with self.path.open("r+b") as file:
            file.seek(int(self.starts[chunk]))
            file.write(content.data)
            file.flush()
            file.seek(len(NAME) + 8 * chunk)
            file.write(np.int64(checksum).tobytes())
        self.checksums[chunk], self.checked[chunk] = checksum, True

    def delete(self) -> None:
        del self.map
        self.path.unlink(missing_ok=True)

    def _named(self) -> bool:
        with self.path.open("rb") as file:
            return file.read(len(NAME)) == NAME

    def _begin(self, total: int) -> None:
        files.make_folder(self.path.parent)
        with files.written(self.path.parent, [NAME]) as temporary:
            os.truncate(temporary, total)  # holes: they take no room
            temporary.replace(self.path)


def _checksum(content: np.ndarray) -> int:
    return zlib.crc32(content.data) + 1
