"""A folder that an export writes: complete and synced before it gets its name."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from intarsia import files
from intarsia.errors import IntarsiaError


@contextmanager
def new_folder(folder: Path, force: bool, keep: Mapping[str, Path]) -> Iterator[Path]:
    """Yield a temporary folder. At the end of the `with` block it becomes `folder`; after an error it is deleted."""
    check_folder(folder, force, keep)
    temporary = folder.parent / f".{uuid.uuid4().hex}.tmp"
    try:
        with explained(folder):
            files.make_folder(folder.parent)
            temporary.mkdir()
        yield temporary
        with explained(folder):
            _sync(temporary)
            check_folder(folder, force, keep)
            _place(temporary, folder)
    finally:
        files.remove_folder(temporary)


def size_of(folder: Path) -> int:
    """Return the total bytes of a folder's files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def check_folder(folder: Path, force: bool, keep: Mapping[str, Path]) -> None:
    """Raise if `folder` is not empty, unless `force` is set and the folder contains none of the paths to `keep`."""
    if folder.exists() and not folder.is_dir():
        raise IntarsiaError(f"{folder} is a file; expected a folder or the name of a new folder.")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not force:
        raise IntarsiaError(f"{folder} is not empty. Choose another folder, or replace this one with --force.")
    for description, path in keep.items():
        if path.resolve().is_relative_to(folder):
            raise IntarsiaError(f"{folder} holds {description}: --force does not replace it. Choose another folder.")


def _sync(folder: Path) -> None:
    """Sync a folder's files to disk with the permissions of the user's umask."""
    mode = (folder / "README.md").stat().st_mode  # follows the umask; safetensors makes its files private to the user
    for path in (found for found in folder.rglob("*") if found.is_file()):
        path.chmod(mode)
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    files.sync_folder(folder)


def _place(temporary: Path, folder: Path) -> None:
    """Rename `temporary` to `folder`. A folder of that name is deleted only after the rename has succeeded."""
    old = folder.parent / f".{uuid.uuid4().hex}.tmp" if folder.exists() else None
    if old:
        folder.rename(old)
    try:
        temporary.rename(folder)
    except OSError as error:
        if old:
            try:
                old.rename(folder)
            except OSError:
                raise files.storage_error(error, folder, outcome=f"Its old content is now in {old}.") from error
        raise
    if old:
        files.remove_folder(old)
    with files.explained(folder, outcome="It is complete, but a power failure may remove it."):
        files.sync_folder(folder.parent)


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn a failed write into a message for the user."""
    with files.explained(folder, outcome="Nothing was exported, and no files were left behind."):
        try:
            yield
        except SafetensorError as error:
            raise OSError(str(error)) from error
