"""The manifest of a data folder: rows and SHA-256 of each file, in `MANIFEST.json`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intarsia.errors import DataError

NAME = "MANIFEST.json"
Entries = dict[str, dict[str, Any]]


def read_manifest(folder: Path) -> Entries:
    """The entries by relative path; empty if the folder has no manifest."""
    path = folder / NAME
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read ({error}). Correct it, or delete it: fetching writes a new one."
        ) from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: expected an object with an entry for each file. Correct it, or delete it.")
    return {name: entry for name, entry in found.items() if isinstance(entry, dict)}


def add_to_manifest(folder: Path, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Add entries, replacing those of the same files. A lock keeps the entries of processes that fetch in parallel."""
    from filelock import FileLock

    from intarsia import files

    with FileLock(folder / ".manifest.lock"):
        merged = {**read_manifest(folder), **entries}
        text = json.dumps(dict(sorted(merged.items())), indent=1, ensure_ascii=False)
        files.replace(folder / NAME, [text.encode() + b"\n"])


def file_hash(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
