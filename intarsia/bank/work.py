"""The working folder of a training run, inside its bank."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from intarsia import files
from intarsia.bank.entry import Entry, Unfinished
from intarsia.bank.store import Store
from intarsia.errors import BankError, Refused, UnknownTask

RUN_ID = re.compile(r"[0-9a-f]{32}")
PATIENCE = 0.5  # seconds to wait for a lock; a process that has just ended may still be removing its folder


@contextmanager
def working_folder(folder: Path) -> Iterator[Path]:
    """Create and lock a run's folder; raise `Refused` if another process holds the lock."""
    from filelock import FileLock, Timeout

    files.make_folder(folder.parent)
    lock = FileLock(f"{folder}.lock")
    with files.explained(folder, doing="lock", outcome="Nothing was stored."):
        try:
            lock.acquire(timeout=PATIENCE)
        except Timeout:
            raise Refused(f"Another process runs the same training ({folder}). Wait until it ends.") from None
    try:
        files.make_folder(folder)  # under the lock: the process before may be removing it
        yield folder
    finally:
        # Tidying: the inlay may be stored by now, and an error here must not make it look lost.
        with suppress(OSError):
            folder.rmdir()  # succeeds only if the run has stored nothing
        with suppress(OSError):
            if not folder.exists():
                # While the lock is held: a process that finds the file unlinked knows that it must open a new one.
                # Unlinked after the release, two processes could hold locks on two files of this name.
                Path(f"{folder}.lock").unlink(missing_ok=True)
        with suppress(OSError):
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
            clear(run.path)
    return found


def run_id(folder: Path) -> str:
    """Return the id of the run whose working folder this is; the first call stores it.

    The inlays of the run carry the id. If the process is killed after it has stored an inlay and before it has removed
    its folder, the next process finds the inlay by the id and does not store it again.
    """
    known = _known_id(folder)
    if known is None:
        known = uuid.uuid4().hex
        files.replace(folder / "run", [known.encode()])
    return known


def stored_by_run(store: Store, name: str, folder: Path) -> Entry | None:
    """Return the version of a task that an earlier process of this run has stored, or None."""
    known = _known_id(folder)
    if known is None:
        return None
    with suppress(UnknownTask):
        for entry in reversed(store.versions(name)):
            with suppress(BankError):  # a damaged version is not the one
                if entry.header.training.get("run") == known:
                    return entry
    return None


def clear(folder: Path) -> None:
    """Remove what an ended run has left. The run's id goes last: until then, a repeated command finds its inlays."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir():
                files.remove_folder(path)
            elif path.name != "run":
                path.unlink(missing_ok=True)
    files.remove_folder(folder)


def unfinished(work: Path) -> list[Unfinished]:
    """Return the runs that have stored a checkpoint in the folder `work`."""
    found = []
    with files.explained(work, doing="read", outcome=""):
        for folder in sorted(work.glob("*-*/")):
            with suppress(FileNotFoundError):  # the run has just ended and removed its folder
                stats = [file.stat() for file in folder.rglob("*") if file.is_file()]
                if any(status.st_size for status in stats):
                    # Count allocated blocks: a file of cached states starts as a sparse file.
                    size = sum(min(one.st_size, 512 * getattr(one, "st_blocks", one.st_size)) for one in stats)
                    found.append(Unfinished(folder.name.rpartition("-")[0], folder, size))
    return found


def _known_id(folder: Path) -> str | None:
    with suppress(FileNotFoundError, UnicodeDecodeError):
        text = (folder / "run").read_text(encoding="ascii")
        return text if RUN_ID.fullmatch(text) else None
    return None
