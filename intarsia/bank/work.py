"""The folder that a run works in, in its bank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from intarsia.bank.entry import Unfinished
from intarsia.errors import Refused


@contextmanager
def working_folder(folder: Path) -> Iterator[Path]:
    """A run's own folder, which no other process may work in at the same time."""
    from filelock import FileLock, Timeout

    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{folder}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise Refused(f"another process is learning this very task right now ({folder}). Wait for it to end.") from None
    try:
        folder.mkdir(exist_ok=True)  # under the lock: the process before may be removing it
        yield folder
    finally:
        with suppress(OSError):
            folder.rmdir()  # nothing was begun
        if not folder.exists():
            # While the lock is held: a process that finds the file unlinked knows that it must open a new one. Unlinked
            # after the release, two processes could hold locks on two files of this name.
            Path(f"{folder}.lock").unlink(missing_ok=True)
        lock.release()


def unfinished(work: Path) -> list[Unfinished]:
    """The runs whose state lies in a folder of working folders."""
    found = []
    for folder in sorted(work.glob("*-*/")):
        with suppress(FileNotFoundError):  # the run has just ended
            files = [file.stat() for file in folder.rglob("*") if file.is_file()]
            if any(file.st_size for file in files):
                # Bytes on the disk: a file of stored states begins as one large hole.
                size = sum(min(file.st_size, 512 * getattr(file, "st_blocks", file.st_size)) for file in files)
                found.append(Unfinished(folder.name.rpartition("-")[0], folder, size))
    return found
