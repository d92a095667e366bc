"""Writing a file so that it is either wholly there or not there at all.

Every write goes to a temporary file, reaches the disk, and only then gets its name. A process that is killed, or a disk
that runs full, leaves at most a hidden `.tmp` file behind.
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

Part = bytes | memoryview

DISK_FULL = {errno.ENOSPC, errno.EDQUOT} if hasattr(errno, "EDQUOT") else {errno.ENOSPC}
NO_HARD_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}
NO_FOLDER_SYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP}
STALE_SECONDS = 24 * 3600


def replace(path: Path, parts: Sequence[Part]) -> None:
    """Write `parts` to `path`, over whatever was there."""
    with explained(path, parts), written(path.parent, parts) as temporary:
        temporary.replace(path)
        sync_folder(path.parent)


def place(temporary: Path, target: Path) -> None:
    """Give a written file its name; `FileExistsError` where the name is taken, also when two processes race for it."""
    try:
        os.link(temporary, target)
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        # Some file systems (FAT, a few network ones) have no hard links: a lock makes look-then-rename one step.
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
def written(folder: Path, parts: Sequence[Part]) -> Iterator[Path]:
    """A temporary file in `folder` that holds `parts` and has reached the disk; gone afterwards, whatever happens."""
    temporary = folder / f".{uuid.uuid4().hex}.tmp"
    try:
        # A plain open, unlike `tempfile`, leaves the permissions to the user's umask: banks are shared between users.
        with temporary.open("xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def explained(target: Path, parts: Sequence[Part]) -> Iterator[None]:
    """Turn what the operating system says about a failed write into a message that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            needed = sum(len(part) for part in parts)
            raise BankError(
                f"The disk is full: writing {target} needs {needed} bytes, {_free(target)} are free. "
                "Nothing was changed; free some space and try again."
            ) from error
        reason = error.strerror or str(error)
        raise BankError(
            f"Cannot write {target}: {reason}. Nothing was changed; a folder that this user may write to was expected."
        ) from error


def make_folder(folder: Path) -> None:
    """Make `folder` and the folders above it, and see that their names reach the disk."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
        sync_folder(folder.parent)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def sync_folder(folder: Path) -> None:
    """A file's name lives in its folder: without this, a power cut may lose the name of a file that was saved."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows cannot open a folder, and keeps names by itself
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
    """Remove what killed processes left behind: temporary files so old that nobody can still be writing them."""
    for temporary in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - temporary.stat().st_mtime > STALE_SECONDS:
                temporary.unlink()


def _free(target: Path) -> str:
    for folder in target.parents:
        with contextlib.suppress(OSError):
            return str(shutil.disk_usage(folder).free)
    return "an unknown number"
