"""Atomic file writes, and what the user reads when the operating system refuses one.

A file is either complete or absent: every write goes to a temporary file, is flushed to disk, and only then gets its
final name. A killed process or a full disk leaves at most a hidden `.tmp` file behind.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from intarsia.errors import StorageError

Chunk = bytes | memoryview

DISK_FULL = {errno.ENOSPC, errno.EDQUOT} if hasattr(errno, "EDQUOT") else {errno.ENOSPC}
NO_HARD_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}
NO_FOLDER_SYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP}
OPEN_FILES = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")
STALE_SECONDS = 24 * 3600  # no write takes longer

UNCHANGED = "It was not changed."
CHECK_DISK = "Check the disk and its connection"
ADVICE = {
    errno.EACCES: "Choose a place that this user may use, or change the permissions",
    errno.EPERM: "Choose a place that this user may use, or change the permissions",
    errno.EROFS: "Choose a place that can be written to",
    errno.ENOENT: "Check the path",
    errno.ENOTDIR: "A part of the path is a file: choose another path",
    errno.EISDIR: "It is a folder: choose the name of a file",
    errno.ENAMETOOLONG: "Choose a shorter path",
    errno.ELOOP: "Its links form a loop: choose another path",
    errno.EMFILE: "Close other files of this process, or raise the limit (`ulimit -n`)",
    errno.ENFILE: "Close other programs: the system has no free file handles",
    errno.EIO: CHECK_DISK,
}


def replace(path: Path, parts: Sequence[Chunk]) -> None:
    """Write `parts` to `path`, replacing an existing file. Of a link, the file that it names is replaced; a device or
    FIFO is written to."""
    if writes_through(path):
        with explained(path, parts):
            write_through(path, parts)
        return
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    with explained(path, parts), written(path.parent, parts) as temporary:
        temporary.replace(path)
    with explained(path, outcome="It holds the new content, but a power failure may undo that."):
        sync_folder(path.parent)


def cache_folder() -> Path:
    """Return the user's folder for what can be made again. Raises RuntimeError if the user has no home folder."""
    given = os.environ.get("INTARSIA_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "intarsia"


def writes_through(path: Path) -> bool:
    """Return whether `path` is a device, a FIFO or a socket, also behind a link, or an open file such as /dev/stdout.
    Replacing it by a plain file would destroy it."""
    if path.absolute().as_posix().startswith(OPEN_FILES):
        return True
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def write_through(path: Path, parts: Sequence[Chunk]) -> None:
    """Write `parts` to an existing device or FIFO, or behind what an open file holds."""
    with open(os.open(path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOCTTY", 0)), "wb") as file:
        for part in parts:
            file.write(part)


def replace_checked(path: Path, value: Any) -> None:
    """Write JSON with a checksum, which `read_checked` compares."""
    content = json.dumps(value, sort_keys=True)
    parts = ['{"checksum":"', _checksum(content), '","content":', content, "}\n"]
    replace(path, ["".join(parts).encode()])


def read_checked(path: Path) -> Any:
    """Return the JSON value of a file; raise `ValueError` if it was altered.

    A file that holds the value alone, as versions before 0.2 wrote it, is returned as it is.
    """
    with open_regular(path) as file:
        content = file.read()
    try:
        stored = json.loads(content)
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None
    if not isinstance(stored, dict) or not stored.keys() & {"checksum", "content"}:
        return stored
    if stored.get("checksum") != _checksum(json.dumps(stored.get("content"), sort_keys=True)):
        raise ValueError(f"{path} does not match its checksum")
    return stored["content"]


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


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
    except OSError as error:
        try:
            target.unlink(missing_ok=True)
        except OSError:
            stays = "It is complete and stays, but a power failure may remove it."
            raise storage_error(error, target, outcome=stays) from error
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
        with contextlib.suppress(OSError):  # `sweep` removes what stays; an error here must not hide that all went well
            temporary.unlink()


def remove_folder(folder: Path) -> None:
    """Remove a folder and what it holds, as far as that is possible."""
    with contextlib.suppress(
        OSError
    ):  # rmtree closes a folder twice if closing it fails, and the second error is not ignored
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def explained(
    target: Path, parts: Sequence[Chunk] = (), *, doing: str = "write", outcome: str = UNCHANGED
) -> Iterator[None]:
    """Turn an `OSError` into a `StorageError` that names the path, the cause, the outcome and what to do.

    `outcome` must be true for every error of the block: it says what the block left behind. Without `parts`, the error
    may concern another path than `target`, and then the message names that path.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        place = target if parts or not isinstance(error.filename, str) else Path(error.filename)
        raise storage_error(error, place, parts, doing=doing, outcome=outcome) from error


def storage_error(
    error: OSError, target: Path, parts: Sequence[Chunk] = (), *, doing: str = "write", outcome: str = UNCHANGED
) -> StorageError:
    """Return the error that the user reads for an `OSError` at `target`."""
    if error.errno in DISK_FULL:
        needed = f"writing {target} needs {sum(len(part) for part in parts)} bytes" if parts else f"writing {target}"
        message = (
            f"The disk is full: {needed}, {_free_bytes(target)} are free. {outcome} Free some space and try again."
        )
    else:
        advice = ADVICE.get(error.errno or 0, "Try again, or choose another place")
        message = f"Cannot {doing} {target}: {error.strerror or error}. {f'{outcome} ' if outcome else ''}{advice}."
    explained = StorageError(message)
    explained.errno = error.errno
    return explained


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raises `OSError` for a FIFO, a device or a socket, also behind a link, without
    reading from it: some of them never end."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a FIFO, a device or a socket, not a regular file", str(path))
        return open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def make_folder(folder: Path) -> None:
    """Create `folder` and its missing parents, and flush their directory entries to disk.

    Other processes may create or remove the same folders meanwhile.
    """
    if folder.is_dir():
        return
    with explained(folder, doing="create the folder", outcome="It does not exist."):
        for last in (False, False, False, True):
            make_folder(folder.parent)
            try:
                folder.mkdir()
                break
            except FileExistsError:
                if folder.is_dir():
                    return
                if folder.exists():
                    error = NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
                    raise storage_error(error, folder, doing="create the folder", outcome="") from None
                if last:  # a link to nothing
                    raise
            except FileNotFoundError:
                if last:
                    raise
    with explained(folder, doing="create the folder", outcome="It exists, but a power failure may remove it."):
        sync_folder(folder.parent)


def check_writable(folder: Path) -> None:
    """Raise unless this user may create files in `folder`, or create `folder` where it does not exist yet."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    reason = None
    if not place.is_dir():
        reason = errno.ENOTDIR
    elif not os.access(place, os.W_OK | os.X_OK):
        reason = errno.EROFS if _read_only(place) else errno.EACCES
    if reason is not None:
        raise storage_error(OSError(reason, os.strerror(reason)), place, doing="write to", outcome="")


def _read_only(folder: Path) -> bool:
    with contextlib.suppress(OSError, AttributeError):
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    return False


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
    with contextlib.suppress(OSError):
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
