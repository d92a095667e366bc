"""Every file operation of the bank fails once: the error is one for the user, and what it says is true."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from intarsia.bank.store import Store
from intarsia.bank.work import clear
from intarsia.errors import BankError, IntarsiaError, StorageError, UnknownTask
from tests.support.faults import CODES, Faults, injected
from tests.support.inlays import bits, make_inlay

Versions = dict[tuple[str, int], bytes]


def restore(store: Store) -> Any:
    return store.restore("kept", 1)


OPERATIONS: dict[str, Callable[[Store], Any]] = {
    "add": lambda store: store.add(make_inlay("new", value=3.0)),
    "restore": restore,
    "remove": lambda store: store.remove("kept"),
    "entries": lambda store: store.entries(),
    "load": lambda store: store.load("kept"),
    "verify": lambda store: store.verify(rebuild=True),
}


def content(folder: Path) -> Versions:
    """What the bank holds, read without faults."""
    store = Store(folder)
    found: Versions = {}
    for entry in store.entries():
        for version in store.versions(entry.name):
            tensor = store.load(version.name, version.version).tensors["method.0.ffn.output.down"]
            found[version.name, version.version] = bits(tensor)
    return found


def check(message: str, operation: str, before: Versions, after: Versions) -> None:
    """The message says what the operation left behind."""
    assert all(after[key] == value for key, value in before.items() if key in after), "a version changed"
    added, gone = after.keys() - before.keys(), before.keys() - after.keys()
    assert not added or (operation in ("add", "restore") and "complete and stays" in message), message
    assert not gone or (operation == "remove" and "Removed before it" in message), message


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_failing_operation_is_explained(tmp_path: Path, operation: str) -> None:
    start = tmp_path / "start"
    store = Store(start)
    store.add(make_inlay("kept", value=1.0))
    store.add(make_inlay("kept", value=2.0))
    before = content(start)
    folder = tmp_path / "bank"
    draw = random.Random(0)
    at = 0
    while True:
        at += 1
        shutil.copytree(start, folder)
        faults = Faults(folder, at, draw.choice(CODES))
        message = ""
        with injected(faults):
            try:
                OPERATIONS[operation](Store(folder))
            except UnknownTask:
                assert faults.code == errno.ENOENT  # as if another process had just removed it
            except IntarsiaError as error:
                message = str(error)
                assert not isinstance(error, StorageError) or error.errno is not None
        if not faults.failed:
            break
        after = content(folder)
        if message:
            check(f"{faults.failed}: {message}", operation, before, after)
        assert Store(folder).verify() == []
        shutil.rmtree(folder)
    assert at > 5
    if operation == "add":
        assert content(folder).keys() == {*before, ("new", 1)}


@pytest.mark.parametrize("code", CODES)
def test_a_folder_that_cannot_be_listed_for_a_moment_is_not_an_unknown_task(tmp_path: Path, code: int) -> None:
    Store(tmp_path / "start").add(make_inlay("kept", value=1.0))
    at, failed = 0, True
    while failed:
        at += 1
        folder = tmp_path / str(at)
        shutil.copytree(tmp_path / "start", folder)
        faults = Faults(folder, at, code)
        with injected(faults):
            try:
                Store(folder).load("kept")
            except UnknownTask:
                assert code == errno.ENOENT  # as if another process had just removed it
            except IntarsiaError:
                pass
        failed = bool(faults.failed)
    assert at > 5


def test_tidying_up_after_a_run_raises_nothing_whatever_fails(tmp_path: Path) -> None:
    at = 0
    while True:
        at += 1
        folder = tmp_path / str(at)
        (folder / "trials").mkdir(parents=True)
        for path in (folder / "run", folder / "state", folder / "trials" / "state"):
            path.write_bytes(b"0")
        faults = Faults(folder, at, errno.EPERM)
        with injected(faults):
            clear(folder)
        if not faults.failed:
            break
    assert at > 5 and not folder.exists()


def test_an_added_version_that_cannot_be_undone_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    store.add(make_inlay())
    real = os.unlink

    def fail(path: Any, *args: Any, **kwargs: Any) -> None:
        if str(path).endswith("0002.safetensors"):
            raise OSError(errno.EIO, "Input/output error")
        real(path, *args, **kwargs)

    monkeypatch.setattr(os, "unlink", fail)
    monkeypatch.setattr(os, "fsync", failing_fsync(tmp_path / "inlays" / "sentiment"))
    with pytest.raises(StorageError, match="complete and stays"):
        store.add(make_inlay(value=2.0))
    assert [entry.version for entry in store.versions("sentiment")] == [1, 2]


def failing_fsync(folder: Path) -> Callable[[int], None]:
    real = os.fsync

    def fsync(handle: int) -> None:
        if os.path.samestat(os.fstat(handle), folder.stat()):
            raise OSError(errno.EIO, "Input/output error")
        real(handle)

    return fsync


def test_a_removal_that_fails_half_way_says_what_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    for _ in range(3):
        store.add(make_inlay())
    real = os.unlink

    def fail(path: Any, *args: Any, **kwargs: Any) -> None:
        if str(path).endswith("0003.safetensors"):
            raise PermissionError(errno.EACCES, "Permission denied")
        real(path, *args, **kwargs)

    monkeypatch.setattr(os, "unlink", fail)
    with pytest.raises(StorageError, match=r"Cannot remove .*0003.*Removed before it: version 1, 2\."):
        store.remove("sentiment")
    assert [entry.version for entry in store.versions("sentiment")] == [3]


def test_a_bank_that_appears_between_two_looks_is_a_bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bank"
    real = os.listdir

    def listdir(path: Any) -> list[str]:
        monkeypatch.setattr(os, "listdir", real)
        Store(folder).add(make_inlay())  # another process creates it at this moment
        return real(path)

    folder.mkdir()
    monkeypatch.setattr(os, "listdir", listdir)
    assert [entry.name for entry in Store(folder).entries()] == ["sentiment"]


def test_a_task_folder_that_another_process_removes_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    task = tmp_path / "inlays" / "sentiment"
    real, left = os.mkdir, [2]

    def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
        if Path(path) == task and left[0]:
            left[0] -= 1
            raise FileExistsError(errno.EEXIST, "File exists", str(path))  # created, and removed before the next look
        real(path, *args, **kwargs)

    monkeypatch.setattr(os, "mkdir", mkdir)
    assert store.add(make_inlay()).version == 1 and left == [0]


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import intarsia

    Store(tmp_path / "bank").add(make_inlay())
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode, **kw: not mode & os.W_OK and real(path, mode, **kw))
    for folder in (tmp_path / "bank", tmp_path / "new" / "bank"):
        bank = intarsia.open(folder, "no such encoder")
        with pytest.raises(StorageError, match=r"Cannot write to .*Permission denied\. Choose a place"):
            bank.learn("new", "no-such-file.csv")
        with pytest.raises(StorageError, match="Cannot write to"):
            bank.sweep({"new": "no-such-file.csv"})
    assert not (tmp_path / "new").exists()


def test_errors_name_cause_and_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BankError, match=r"part of the path is a file"):
        Store(tmp_path / "file" / "bank").add(make_inlay())
    with pytest.raises(BankError, match=r"Choose a shorter path"):
        Store(tmp_path / ("long" * 80)).add(make_inlay())
