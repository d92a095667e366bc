"""What enters a layer, computed once for all epochs and all jobs.

Where the layers below a method run without dropout, what they give for a text never changes. It is computed when a
batch first asks for it, and kept: in memory up to a budget, then on disk up to another; what fits in neither is
computed at each use. It is computed in *chunks*, fixed sets of rows of similar length: so a row's states are the same
bits whatever batch asks first, and a run that was killed and resumed ends with the weights of one that was not.
"""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import by_token_budget, pack
from intarsia.encoder.sites import Shape
from intarsia.methods.method import lowest
from intarsia.train.chunk_file import ChunkFile
from intarsia.train.job import Job
from intarsia.train.tokens import Parts, Tokens

CHUNK = {"cpu": 1024, "cuda": 16384}  # tokens
SHARE = 4  # a quarter of what is free is the budget, unless told otherwise


def trunk_layer(job: Job, shape: Shape) -> int:
    """The layer at which the job's passes begin, with states that are kept; 0: they begin with the embeddings."""
    if job.settings.trunk_dropout or job.method.cached:
        return 0
    return lowest(job.method, shape)


class TrunkCache:
    """Shared by all jobs of one queue. Budgets are bytes; None: a quarter of what is free at first use."""

    def __init__(
        self,
        encoder: Encoder,
        folder: Path | None = None,
        *,
        memory_budget: int | None = None,
        disk_budget: int | None = None,
    ) -> None:
        """`folder`: where states may lie on disk; None: nowhere."""
        self.encoder, self.folder = encoder, folder
        self.memory_budget, self.disk_budget = memory_budget, disk_budget
        self.shelves: dict[tuple[int, int], Shelf] = {}
        self.expected: tuple[Sequence[Parts], Collection[int]] | None = None
        self.predictions = False

    @torch.no_grad()
    def states(self, layer: int, wanted: Sequence[tuple[Tokens, Sequence[int]]]) -> Tensor:
        """[N, d] what enters a layer, of rows of one or more data sets, one after another."""
        asked = [(self._shelf(tokens, layer), rows) for tokens, rows in wanted]
        loose: dict[tuple[Shelf, int], Tensor] = {}
        for shelf, rows in asked:
            for chunk in np.unique(shelf.chunk_of[np.asarray(rows)]).tolist():
                if not shelf.has(chunk) and not self._keep(shelf, chunk):
                    loose |= {(shelf, row): torch.empty(0) for row in rows if shelf.chunk_of[row] == chunk}
        self._compute_loose(loose)
        keys = [(shelf, row) for shelf, rows in asked for row in rows]
        found = [loose[key] if key in loose else key[0].row(key[1]) for key in keys]
        return torch.cat(found).to(self.encoder.device)

    def expect(self, parts: Sequence[Parts], layers: Collection[int]) -> None:
        """Say what will be asked for from now on: what else is kept makes room when there is need."""
        self.expected = parts, layers

    def close(self) -> None:
        """Let go of everything, also on disk."""
        for shelf in self.shelves.values():
            shelf.drop()
        self.shelves.clear()

    def _shelf(self, tokens: Tokens, layer: int) -> Shelf:
        key = id(tokens), layer
        if key not in self.shelves:  # which keeps the tokens too: their id stays their own
            self.shelves[key] = Shelf(tokens, layer, self.encoder, self.folder)
        return self.shelves[key]

    def _keep(self, shelf: Shelf, chunk: int) -> bool:
        """Compute a chunk and keep it; False where there is no room for it."""
        size = shelf.bytes(chunk)
        if self._room(size, "memory"):
            shelf.memory[chunk] = self._compute(shelf, shelf.chunks[chunk])
            shelf.held += size
            return True
        if self.folder is not None and self._room(size, "disk"):
            try:
                shelf.write(chunk, self._compute(shelf, shelf.chunks[chunk]))
                return True
            except OSError:  # the disk is full, or not ours
                self.disk_budget = 0
        self._say()
        return False

    def _room(self, size: int, where: str) -> bool:
        """Whether so many bytes more are within the budget; shelves that nobody expects to need make room first."""
        if where == "memory":
            self.memory_budget = budget = _budget(self.memory_budget, free_memory)
        else:
            self.disk_budget = budget = _budget(self.disk_budget, lambda: free_disk(self.folder))
        if size > budget:
            return False
        while sum(shelf.used(where) for shelf in self.shelves.values()) + size > budget:
            spare = next((key for key, shelf in self.shelves.items() if shelf.used(where) and self._spare(shelf)), None)
            if spare is None:
                return False
            self.shelves.pop(spare).drop()
        return True

    def _spare(self, shelf: Shelf) -> bool:
        if self.expected is None:
            return False
        parts, layers = self.expected
        return shelf.layer not in layers or not any(shelf.tokens is t for part in parts for t in part.known.values())

    def _compute(self, shelf: Shelf, rows: Sequence[int]) -> Tensor:
        batch = pack([shelf.tokens.segments[row] for row in rows], self.encoder.device)
        return self.encoder.states_below(batch, shelf.layer).cpu().contiguous()

    def _compute_loose(self, loose: dict[tuple[Shelf, int], Tensor]) -> None:
        """Fill in the states of rows that are not kept."""
        for shelf in {shelf for shelf, _ in loose}:
            rows = [row for other, row in loose if other is shelf]
            lengths = shelf.tokens.lengths[rows].tolist()
            for part in by_token_budget(lengths, CHUNK.get(self.encoder.device.type, 1024)):
                states = self._compute(shelf, [rows[i] for i in part])
                for i, own in zip(part, states.split([lengths[i] for i in part]), strict=True):
                    loose[shelf, rows[i]] = own

    def _say(self) -> None:
        if not self.predictions:
            self.predictions = True
            warnings.warn(
                f"the states of the lower layers do not all fit into {_gib(self.memory_budget)} of memory and "
                f"{_gib(self.disk_budget)} of disk: the rest is computed at each use, which is slower and changes "
                "nothing else.",
                stacklevel=4,
            )


class Shelf:
    """The states of one part of a data set at one layer, as far as they are kept."""

    def __init__(self, tokens: Tokens, layer: int, encoder: Encoder, folder: Path | None) -> None:
        self.tokens, self.layer = tokens, layer
        self.width, self.dtype = encoder.shape.width, encoder.dtype
        size = CHUNK.get(encoder.device.type, 1024)
        self.chunks = by_token_budget(tokens.lengths.tolist(), size)
        self.chunk_of = np.empty(len(tokens.lengths), np.int64)
        self.start_of = np.empty(len(tokens.lengths), np.int64)  # in its chunk
        for chunk, rows in enumerate(self.chunks):
            lengths = tokens.lengths[rows]
            self.chunk_of[rows], self.start_of[rows] = chunk, np.cumsum(lengths) - lengths
        self.memory: dict[int, Tensor] = {}
        self.held = 0  # bytes of it
        self.file: ChunkFile | None = None
        self.path: Path | None = None
        if folder is not None:
            self.path = folder / f"trunk-{states_key(encoder, str(layer), tokens)}.states"
            if self.path.is_file():  # of a run that was killed
                self._open()

    def has(self, chunk: int) -> bool:
        return chunk in self.memory or (self.file is not None and self.file.has(chunk))

    def row(self, row: int) -> Tensor:
        """[tokens of the row, d]."""
        chunk, start = int(self.chunk_of[row]), int(self.start_of[row])
        end = start + int(self.tokens.lengths[row])
        if chunk in self.memory:
            return self.memory[chunk][start:end]
        assert self.file is not None
        a_token = self.width * self.dtype.itemsize
        found = torch.from_numpy(self.file.read(chunk, start * a_token, end * a_token))
        return found.view(self.dtype).view(-1, self.width)

    def write(self, chunk: int, states: Tensor) -> None:
        if self.file is None:
            self._open()
        assert self.file is not None
        self.file.write(chunk, states.view(torch.uint8).numpy())

    def bytes(self, chunk: int) -> int:
        return int(self.tokens.lengths[self.chunks[chunk]].sum()) * self.width * self.dtype.itemsize

    def used(self, where: str) -> int:
        if where == "memory":
            return self.held
        return 0 if self.file is None else self.file.used

    def drop(self) -> None:
        self.memory.clear()
        self.held = 0
        if self.file is not None:
            self.file.delete()
            self.file = None

    def _open(self) -> None:
        assert self.path is not None
        self.file = ChunkFile(self.path, [self.bytes(chunk) for chunk in range(len(self.chunks))])


def states_key(encoder: Encoder, which: str, tokens: Tokens) -> str:
    """Of stored states: the base, how it computes, which of its states and of what tokens."""
    start = f"{encoder.fingerprint} {encoder.dtype} {encoder.device.type} {which} {tokens.types is None} "
    digest = hashlib.sha256(start.encode())
    for part in (tokens.lengths, tokens.ids, *(() if tokens.types is None else (tokens.types,))):
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()[:32]


def _budget(given: int | None, free: Callable[[], int]) -> int:
    return free() // SHARE if given is None else given


def free_memory() -> int:
    """Bytes that may still be had, also in a container that has less than its machine."""
    found = []
    with suppress(OSError, ValueError):
        fields = dict(line.split()[:2] for line in Path("/proc/meminfo").read_text().splitlines())
        found.append(int(fields["MemAvailable:"]) * 1024)
    with suppress(OSError, ValueError, KeyError):  # no such group, or "max": no limit
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        fields = dict(line.split()[:2] for line in (group / "memory.stat").read_text().splitlines())
        found.append(limit - int((group / "memory.current").read_text()) + int(fields["inactive_file"]))
    return max(0, min(found, default=4 << 30))


def free_disk(folder: Path | None) -> int:
    while folder is not None and not folder.exists():
        folder = folder.parent
    return 0 if folder is None else shutil.disk_usage(folder).free


def _gib(size: int | None) -> str:
    return f"{(size or 0) / 2**30:.1f} GiB"
