"""Atomic file writes: a file is either complete or absent.

Every write goes to a temporary file, is flushed to disk, and only then gets its final name. A killed process or a full
disk leaves at most a hidden `.tmp` file behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from intarsia.errors import BankError

Chunk = bytes | memoryview

DISK_FULL = {errno.ENOSPC, errno.EDQUOT} if hasattr(errno, "EDQUOT") else {errno.ENOSPC}
NO_HARD_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}
NO_FOLDER_SYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP}
STALE_SECONDS = 24 * 3600  # no write takes longer


def replace(path: Path, parts: Sequence[Chunk]) -> None:
    """Write `parts` to `path`, replacing an existing file."""
    with explained(path, parts), written(path.parent, parts) as temporary:
        temporary.replace(path)
        sync_folder(path.parent)


def place(temporary: Path, target: Path) -> None:
    """Move a written file to `target`. Raises `FileExistsError` if `target` exists, also when two processes race."""
    try:
        os.link(temporary, target)
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        # Some file systems (FAT, some network ones) have no hard links. The lock makes check-then-rename atomic.
        from filelock import FileLock

        with FileLock(temporary.parent / ".lock"):
            if target.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
            temporary.replace(target)
    try:
        sync_folder(target.parent)
    except OSError:
        target.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def written(folder: Path, parts: Sequence[Chunk]) -> Iterator[Path]:
    """Yield a temporary file in `folder` with `parts`, flushed to disk. The file is removed at exit, also on errors."""
    temporary = folder / f".{uuid.uuid4().hex}.tmp"
    try:
        # Unlike `tempfile`, a plain open follows the user's umask. Users may share a bank.
        with temporary.open("xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def explained(target: Path, parts: Sequence[Chunk]) -> Iterator[None]:
    """Turn an `OSError` of a write into a `BankError` whose message says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            needed = sum(len(part) for part in parts)
            raise BankError(
                f"The disk is full: writing {target} needs {needed} bytes, {_free_bytes(target)} are free. "
                "Nothing was changed; free some space and try again."
            ) from error
        reason = error.strerror or str(error)
        raise BankError(
            f"Cannot write {target}: {reason}. Nothing was changed; choose a folder that this user may write to."
        ) from error


def check_writable(folder: Path) -> None:
    """Raise a `BankError` unless files can be written into a folder, or into the nearest one that exists."""
    nearest = next((parent for parent in (folder, *folder.absolute().parents) if parent.exists()), folder)
    with explained(folder, ()):
        probe = nearest / f".{uuid.uuid4().hex}.tmp"
        try:
            probe.touch(exist_ok=False)
        finally:
            with contextlib.suppress(OSError):
                probe.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Create `folder` and its missing parents, and flush their directory entries to disk."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
        sync_folder(folder.parent)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk. Without it a power cut may lose the name of a file whose content was saved."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows cannot open a folder, and does not need this
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise
    finally:
        os.close(handle)


def sweep(folder: Path) -> None:
    """Remove temporary files that killed processes left behind: those older than `STALE_SECONDS`."""
    for temporary in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - temporary.stat().st_mtime > STALE_SECONDS:
                temporary.unlink()


def _free_bytes(target: Path) -> str:
    """The free bytes of the nearest existing folder, as text for a message."""
    for folder in target.parents:
        with contextlib.suppress(OSError):
            return str(shutil.disk_usage(folder).free)
    return "an unknown number"
