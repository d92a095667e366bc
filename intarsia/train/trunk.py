"""The trunk cache: the trunk's output states, computed once for all epochs and all jobs.

The trunk is the layers below the lowest trained place. If it runs without dropout, its output for a text never changes.
Frozen inlays may act in it: then its output is theirs, and all jobs that are built on them share it.
The output is computed at its first use and cached: in memory up to a budget, then on disk up to a second budget. States
that exceed both budgets are computed at each use.

States are computed in *chunks*, fixed sets of rows of similar length. Thus the states of a row have the same bits in
whichever batch they are used first, and a killed and resumed run ends with the same weights as an uninterrupted run.
"""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import by_token_budget, pack
from intarsia.encoder.routed import Group
from intarsia.encoder.shape import Shape
from intarsia.methods.below import lowest_trained
from intarsia.train.chunk_file import ChunkFile
from intarsia.train.job import Job
from intarsia.train.tokens import TokenizedParts, Tokens

CHUNK = {"cpu": 1024, "cuda": 16384}  # tokens
FREE_PER_BUDGET = 4  # the default budget is a quarter of the free memory or disk space


def trunk_layer(job: Job, shape: Shape) -> int:
    """Return the layer at which the job's passes begin, from cached states; 0: they begin at the embeddings."""
    if job.settings.trunk_dropout or job.method.cached:
        return 0
    return lowest_trained(job.method, shape)


class Below(NamedTuple):
    """What frozen inlays compute in the trunk of a job."""

    key: Hashable  # equal for jobs that compute the same there
    group: Callable[[int, int], Group]  # of rows in a pass: from the first row, and their number


class TrunkCache:
    """The cache that all jobs of one queue share.

    Budgets are bytes. None means a quarter of the memory or disk space that is free at the first use.
    """

    def __init__(
        self,
        encoder: Encoder,
        folder: Path | None = None,
        *,
        memory_budget: int | None = None,
        disk_budget: int | None = None,
    ) -> None:
        """`folder`: the folder for states on disk; None: cache in memory only."""
        self.encoder, self.folder = encoder, folder
        self.memory_budget, self.disk_budget = memory_budget, disk_budget
        self.entries: dict[tuple[int, int, Hashable], CachedStates] = {}
        self.expected: tuple[Sequence[TokenizedParts], Collection[int]] | None = None
        self.warned = False

    @torch.no_grad()
    def states(
        self, layer: int, requests: Sequence[tuple[Tokens, Sequence[int]]], below: Sequence[Below | None] = ()
    ) -> Tensor:
        """Return the inputs [N, d] of a layer for rows of one or more data sets, concatenated in this order.

        `below`: for each request, what computes beside the plain base in the trunk.
        """
        entries, computes = [], dict[CachedStates, Below | None]()
        for (tokens, rows), frozen in zip(requests, below or [None] * len(requests), strict=True):
            entries.append((self._entry(tokens, layer, None if frozen is None else frozen.key), rows))
            computes[entries[-1][0]] = frozen
        uncached: dict[tuple[CachedStates, int], Tensor] = {}
        for entry, rows in entries:
            for chunk in np.unique(entry.chunk_of[np.asarray(rows)]).tolist():
                if not entry.has(chunk) and not self._compute_and_store(entry, chunk, computes[entry]):
                    uncached |= {(entry, row): torch.empty(0) for row in rows if entry.chunk_of[row] == chunk}
        self._compute_uncached(uncached, computes)
        keys = [(entry, row) for entry, rows in entries for row in rows]
        states = [uncached[key] if key in uncached else key[0].row(key[1]) for key in keys]
        return torch.cat(states).to(self.encoder.device)

    def expect(self, parts: Sequence[TokenizedParts], layers: Collection[int]) -> None:
        """Declare the data sets and layers of future requests; all other entries may be evicted."""
        self.expected = parts, layers

    def close(self) -> None:
        """Delete all entries, in memory and on disk."""
        for entry in self.entries.values():
            entry.drop()
        self.entries.clear()

    def _entry(self, tokens: Tokens, layer: int, below: Hashable) -> CachedStates:
        key = id(tokens), layer, below
        if key not in self.entries:  # the entry keeps a reference to the tokens, so no other object can get the same id
            self.entries[key] = CachedStates(tokens, layer, self.encoder, self.folder, below)
        return self.entries[key]

    def _compute_and_store(self, entry: CachedStates, chunk: int, below: Below | None) -> bool:
        """Compute a chunk and store it in memory or on disk; return False if neither budget has room."""
        size = entry.bytes(chunk)
        if self._make_room(size, "memory"):
            entry.memory[chunk] = self._compute(entry, entry.chunks[chunk], below)
            entry.memory_bytes += size
            return True
        if self.folder is not None and self._make_room(size, "disk"):
            try:
                entry.write(chunk, self._compute(entry, entry.chunks[chunk], below))
                return True
            except OSError:  # the disk is full or not writable
                self.disk_budget = 0
        self._warn_once()
        return False

    def _make_room(self, size: int, where: str) -> bool:
        """Return whether `size` more bytes fit the budget; evict entries without expected requests if necessary."""
        if where == "memory":
            self.memory_budget = budget = _budget(self.memory_budget, free_memory)
        else:
            self.disk_budget = budget = _budget(self.disk_budget, lambda: free_disk(self.folder))
        if size > budget:
            return False
        while sum(entry.used(where) for entry in self.entries.values()) + size > budget:
            evicted = next(
                (k for k, entry in self.entries.items() if entry.used(where) and self._evictable(entry)), None
            )
            if evicted is None:
                return False
            self.entries.pop(evicted).drop()
        return True

    def _evictable(self, entry: CachedStates) -> bool:
        if self.expected is None:
            return False
        parts, layers = self.expected
        expected_tokens = (tokens for part in parts for tokens in part.tokenized.values())
        return entry.layer not in layers or not any(entry.tokens is tokens for tokens in expected_tokens)

    def _compute(self, entry: CachedStates, rows: Sequence[int], below: Below | None) -> Tensor:
        batch = pack([entry.tokens.segments[row] for row in rows], self.encoder.device)
        groups = [] if below is None else [below.group(0, len(rows))]
        return self.encoder.states_below(batch, entry.layer, groups).cpu().contiguous()

    def _compute_uncached(
        self, uncached: dict[tuple[CachedStates, int], Tensor], computes: Mapping[CachedStates, Below | None]
    ) -> None:
        """Replace each placeholder in `uncached` by the states of its row."""
        for entry in {entry for entry, _ in uncached}:
            rows = [row for other, row in uncached if other is entry]
            lengths = entry.tokens.lengths[rows].tolist()
            for part in by_token_budget(lengths, CHUNK.get(self.encoder.device.type, 1024)):
                states = self._compute(entry, [rows[i] for i in part], computes[entry])
                for i, row_states in zip(part, states.split([lengths[i] for i in part]), strict=True):
                    uncached[entry, rows[i]] = row_states

    def _warn_once(self) -> None:
        if not self.warned:
            self.warned = True
            warnings.warn(
                f"the trunk cache is full ({_gib(self.memory_budget)} of memory and {_gib(self.disk_budget)} of disk): "
                "the other states of the lower layers are computed at each use. Results stay the same, but training is "
                "slower.",
                stacklevel=4,
            )


class CachedStates:
    """The cached states of one part of a data set at one layer."""

    def __init__(
        self, tokens: Tokens, layer: int, encoder: Encoder, folder: Path | None, below: Hashable = None
    ) -> None:
        """`below`: the key of what frozen inlays compute in the trunk."""
        self.tokens, self.layer = tokens, layer
        self.width, self.dtype = encoder.shape.width, encoder.dtype
        size = CHUNK.get(encoder.device.type, 1024)
        self.chunks = by_token_budget(tokens.lengths.tolist(), size)
        self.chunk_of = np.empty(len(tokens.lengths), np.int64)
        self.start_of = np.empty(len(tokens.lengths), np.int64)  # a row's first token in its chunk
        for chunk, rows in enumerate(self.chunks):
            lengths = tokens.lengths[rows]
            self.chunk_of[rows], self.start_of[rows] = chunk, np.cumsum(lengths) - lengths
        self.memory: dict[int, Tensor] = {}
        self.memory_bytes = 0  # size of `memory`
        self.file: ChunkFile | None = None
        self.path: Path | None = None
        if folder is not None:
            which = str(layer) if below is None else f"{layer} {below}"
            self.path = folder / f"trunk-{states_key(encoder, which, tokens)}.states"
            if self.path.is_file():  # a killed run left it
                self._open()

    def has(self, chunk: int) -> bool:
        """Return whether a chunk is in memory or on disk."""
        return chunk in self.memory or (self.file is not None and self.file.has(chunk))

    def row(self, row: int) -> Tensor:
        """Return the states of a row, [tokens of the row, d]."""
        chunk, start = int(self.chunk_of[row]), int(self.start_of[row])
        end = start + int(self.tokens.lengths[row])
        if chunk in self.memory:
            return self.memory[chunk][start:end]
        assert self.file is not None
        token_bytes = self.width * self.dtype.itemsize
        content = torch.from_numpy(self.file.read(chunk, start * token_bytes, end * token_bytes))
        return content.view(self.dtype).view(-1, self.width)

    def write(self, chunk: int, states: Tensor) -> None:
        """Store a chunk on disk."""
        if self.file is None:
            self._open()
        assert self.file is not None
        self.file.write(chunk, states.view(torch.uint8).numpy())

    def bytes(self, chunk: int) -> int:
        """Return the size of a chunk."""
        return int(self.tokens.lengths[self.chunks[chunk]].sum()) * self.width * self.dtype.itemsize

    def used(self, where: str) -> int:
        """Return the bytes in use; `where`: memory or disk."""
        if where == "memory":
            return self.memory_bytes
        return 0 if self.file is None else self.file.used

    def drop(self) -> None:
        """Delete all states, in memory and on disk."""
        self.memory.clear()
        self.memory_bytes = 0
        if self.file is not None:
            self.file.delete()
            self.file = None

    def _open(self) -> None:
        assert self.path is not None
        self.file = ChunkFile(self.path, [self.bytes(chunk) for chunk in range(len(self.chunks))])


def states_key(encoder: Encoder, which: str, tokens: Tokens) -> str:
    """Return the key of stored states: a hash of the base, its precision and device, the tokens, and `which` states."""
    start = f"{encoder.fingerprint} {encoder.dtype} {encoder.device.type} {which} {tokens.types is None} "
    digest = hashlib.sha256(start.encode())
    for part in (tokens.lengths, tokens.ids, *(() if tokens.types is None else (tokens.types,))):
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()[:32]


def _budget(given: int | None, free: Callable[[], int]) -> int:
    return free() // FREE_PER_BUDGET if given is None else given


def free_memory() -> int:
    """Return the bytes of memory that are free on the machine, or in the container if its limit is lower."""
    limits = []
    with suppress(OSError, ValueError):
        fields = dict(line.split()[:2] for line in Path("/proc/meminfo").read_text().splitlines())
        limits.append(int(fields["MemAvailable:"]) * 1024)
    with suppress(OSError, ValueError, KeyError):  # there is no cgroup, or its limit is "max"
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        fields = dict(line.split()[:2] for line in (group / "memory.stat").read_text().splitlines())
        limits.append(limit - int((group / "memory.current").read_text()) + int(fields["inactive_file"]))
    return max(0, min(limits, default=4 << 30))


def free_disk(folder: Path | None) -> int:
    """Return the free bytes of the disk that holds the folder, which need not exist yet; None: 0."""
    while folder is not None and not folder.exists():
        folder = folder.parent
    return 0 if folder is None else shutil.disk_usage(folder).free


def _gib(size: int | None) -> str:
    return f"{(size or 0) / 2**30:.1f} GiB"
