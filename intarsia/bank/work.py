"""The working folder of a training run, inside its bank."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from intarsia.bank.entry import Unfinished
from intarsia.errors import Refused


@contextmanager
def working_folder(folder: Path) -> Iterator[Path]:
    """Create and lock a run's folder; raise `Refused` if another process holds the lock."""
    from filelock import FileLock, Timeout

    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{folder}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise Refused(f"Another process runs the same training ({folder}). Wait until it ends.") from None
    try:
        folder.mkdir(exist_ok=True)  # under the lock: the process before may be removing it
        yield folder
    finally:
        with suppress(OSError):
            folder.rmdir()  # succeeds only if the run has stored nothing
        if not folder.exists():
            # While the lock is held: a process that finds the file unlinked knows that it must open a new one. Unlinked
            # after the release, two processes could hold locks on two files of this name.
            Path(f"{folder}.lock").unlink(missing_ok=True)
        lock.release()


def discard(work: Path, name: str) -> list[Unfinished]:
    """Delete the checkpoints of a task's runs; raise if there is none, or if a run is going on."""
    found = [run for run in unfinished(work) if run.name == name]
    if not found:
        names = sorted({run.name for run in unfinished(work)})
        have = f"Unfinished are runs of: {', '.join(names)}." if names else "There is no unfinished run."
        raise Refused(f"The bank has no unfinished training run of {name!r}. {have}")
    for run in found:
        with working_folder(run.path):
            shutil.rmtree(run.path)
    return found


def unfinished(work: Path) -> list[Unfinished]:
    """Return the runs that have stored a checkpoint in the folder `work`."""
    found = []
    for folder in sorted(work.glob("*-*/")):
        with suppress(FileNotFoundError):  # the run has just ended and removed its folder
            files = [file.stat() for file in folder.rglob("*") if file.is_file()]
            if any(file.st_size for file in files):
                # Count allocated blocks: a file of cached states starts as a sparse file.
                size = sum(min(file.st_size, 512 * getattr(file, "st_blocks", file.st_size)) for file in files)
                found.append(Unfinished(folder.name.rpartition("-")[0], folder, size))
    return found
