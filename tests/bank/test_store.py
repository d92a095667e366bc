"""The bank's folder: nothing is lost, nothing damaged goes unnoticed, nothing disturbs its neighbours."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from intarsia.bank.catalog import Catalog
from intarsia.bank.store import Store
from intarsia.errors import BankError, UnknownTask
from tests.support.inlays import BASE, OTHER_BASE, assert_same_tensors, flip, make_inlay, write_inlay


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "bank")


def hidden(store: Store) -> list[Path]:
    return [path for path in store.folder.rglob(".*") if path.name != ".lock"]


def test_nothing_is_created_until_something_is_written(store: Store) -> None:
    assert (store.entries(), store.encoder, store.verify()) == ([], None, [])
    with pytest.raises(BankError, match="no tasks yet"):
        store.load("x")
    assert not store.folder.exists()


def test_add_load_and_versions(store: Store) -> None:
    first, second = store.add(make_inlay(value=1.0)), store.add(make_inlay(value=2.0))
    store.add(make_inlay("topic"))
    assert (first.version, second.version) == (1, 2)
    assert second.path == store.folder / "inlays" / "sentiment" / "0002.safetensors"
    assert [(entry.name, entry.version) for entry in store.entries()] == [("sentiment", 2), ("topic", 1)]
    assert [entry.version for entry in store.versions("sentiment")] == [1, 2]
    assert_same_tensors(store.load("sentiment").tensors, make_inlay(value=2.0).tensors)
    assert_same_tensors(store.load("sentiment", 1).tensors, make_inlay(value=1.0).tensors)
    entry = Store(store.folder).entry("sentiment")
    assert entry == second and entry.header.labels == ("bad", "gut ✓")
    assert entry.bytes == entry.header.bytes == second.path.stat().st_size
    assert json.loads((store.folder / "bank.json").read_text()) == {
        "format": 1,
        "encoder": {**BASE, "parameters": 1000},
    }
    assert store.verify() == [] and hidden(store) == []


def test_a_version_that_is_held_back_is_kept_and_not_served(store: Store) -> None:
    store.add(make_inlay(value=1.0))
    held = store.add(make_inlay(value=2.0), serve=False)
    assert (held.version, held.held) == (2, True)
    for view in (store, Store(store.folder)):
        assert [entry.held for entry in view.versions("sentiment")] == [False, True]
        assert view.entry("sentiment").version == view.entries()[0].version == 1
        assert_same_tensors(view.load("sentiment").tensors, make_inlay(value=1.0).tensors)
        assert_same_tensors(view.load("sentiment", 2).tensors, make_inlay(value=2.0).tensors)
    content = held.path.read_bytes()
    held.path.write_bytes(content[:-1])
    assert store.entry("sentiment").version == 1, "damage does not make it the served version"
    held.path.write_bytes(content)
    assert store.restore("sentiment", 2).version == store.entry("sentiment").version == 3
    assert store.add(make_inlay(value=4.0), serve=False).version == 4
    assert store.add(make_inlay(value=5.0)).version == store.entry("sentiment").version == 5
    assert store.verify(rebuild=True) == [] and store.entry("sentiment").version == 5


def test_marks_leave_with_their_versions(store: Store) -> None:
    store.add(make_inlay(value=1.0))
    store.add(make_inlay(value=2.0), serve=False)
    store.remove("sentiment", 2)
    assert store.add(make_inlay(value=3.0)).version == store.entry("sentiment").version == 2, "the number is free again"
    store.add(make_inlay(value=4.0), serve=False)
    store.remove("sentiment", 1)
    store.remove("sentiment", 2)
    assert store.entry("sentiment").version == 3, "the only version is served, held back or not"
    store.remove("sentiment")
    assert not (store.folder / "inlays" / "sentiment").exists()


def test_a_held_version_whose_number_was_taken_marks_only_itself(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add(make_inlay(value=1.0))
    store.add(make_inlay(value=2.0))
    with monkeypatch.context() as patch:
        patch.setattr(store._catalog, "versions", lambda name: [1])  # as if version 2 had come in meanwhile
        assert store.add(make_inlay(value=3.0), serve=False).version == 3
    assert [entry.held for entry in store.versions("sentiment")] == [False, False, True]
    assert len(list((store.folder / "inlays" / "sentiment").glob("*.held"))) == 1


def test_unknown_names_and_versions_are_answered_helpfully(store: Store) -> None:
    for name in ("sentiment", "topic"):
        store.add(make_inlay(name))
    with pytest.raises(BankError, match=r"no task 'sentimet'\. Did you mean 'sentiment'\?$"):
        store.load("sentimet")
    with pytest.raises(BankError, match=r"no task '\.\./topic'"):
        store.entry("../topic")
    with pytest.raises(BankError, match=r"no version 3\. Its versions are: 1"):
        store.entry("topic", 3)
    (store.folder / "inlays" / "removed").mkdir()  # what a killed removal leaves
    with pytest.raises(BankError, match=r"no task 'removed'\. It has: sentiment, topic\.$"):
        store.entry("removed")


def test_unknown_names_cost_the_same_in_banks_of_any_size(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add(make_inlay("sentiment"))
    for number in range(1000):
        (store.folder / "inlays" / f"task-{number:04d}").mkdir()
    looked: list[str | None] = []
    listings: list[None] = []
    look, names = Catalog.look, Catalog.names
    monkeypatch.setattr(Catalog, "look", lambda self, name=None, **k: (looked.append(name), look(self, name, **k))[1])
    monkeypatch.setattr(Catalog, "names", lambda self: (listings.append(None), names(self))[1])
    for _ in range(3):
        with pytest.raises(UnknownTask, match="Did you mean 'task-05"):
            store.entry("task-050")
    with pytest.raises(UnknownTask, match="1001 in total") as raised:
        store.entry("x" * 1_000_000)
    assert len(str(raised.value)) < 1000 and None not in looked and len(listings) == 1


@pytest.mark.parametrize("name", ["", ".x", "..", "a/b", "a b", "ä", "x" * 65, "a\n", "a\\b"])
def test_bad_names_are_refused(store: Store, name: str) -> None:
    with pytest.raises(BankError, match="1 to 64"):
        store.check_name(name)
    with pytest.raises(BankError, match="1 to 64"):
        store.add(make_inlay(name))
    assert not store.folder.exists()


def test_names_that_some_disks_confuse_are_refused(store: Store) -> None:
    for name in ("SST-2", "a", "_x", "x" * 64, "2.0"):
        store.add(make_inlay(name))
    with pytest.raises(BankError, match="already has the task 'SST-2'"):
        store.add(make_inlay("sst-2"))


def test_another_base_is_refused_with_both_fingerprints(store: Store) -> None:
    store.bind({**BASE, "parameters": 1000})
    store.bind({**BASE, "name": "the same under another name"})
    store.add(make_inlay())
    both = rf"{OTHER_BASE['fingerprint']}.*{BASE['fingerprint']}"
    with pytest.raises(BankError, match=both):
        store.bind(OTHER_BASE)
    with pytest.raises(BankError, match=both):
        store.add(make_inlay(encoder=OTHER_BASE))
    with pytest.raises(BankError, match=r"another tokenizer.*eeee.*bbbb"):
        store.add(make_inlay(encoder={**BASE, "tokenizer": "ee" * 32}))
    with pytest.raises(BankError, match="fingerprint"):
        store.bind({"name": "x"})
    assert [entry.version for entry in store.versions("sentiment")] == [1]


def test_a_foreign_file_is_flagged_and_not_loaded(store: Store) -> None:
    store.add(make_inlay("a"))
    store.add(make_inlay("b"))
    write_inlay(make_inlay("a", encoder=OTHER_BASE), store.folder / "inlays/a/0002.safetensors")
    write_inlay(make_inlay("a"), store.folder / "inlays/b/0002.safetensors")
    assert [(entry.version, entry.state) for entry in store.entries()] == [(2, "misplaced")] * 2
    both = rf"0002\.safetensors.*{OTHER_BASE['fingerprint']}.*{BASE['fingerprint']}"
    with pytest.raises(BankError, match=both):
        store.load("a")
    with pytest.raises(BankError, match="holds the task 'a', but is in the folder of 'b'"):
        store.load("b")
    assert [(problem.name, problem.version) for problem in store.verify()] == [("a", 2), ("b", 2)]
    assert store.load("a", 1).name == "a"


def test_a_lost_or_garbled_bank_json(store: Store) -> None:
    store.add(make_inlay())
    manifest = store.folder / "bank.json"
    manifest.unlink()
    assert [problem.path for problem in store.verify()] == [manifest]
    with pytest.raises(BankError, match=rf"{OTHER_BASE['fingerprint']}.*{BASE['fingerprint']}"):
        store.bind(OTHER_BASE)
    assert store.load("sentiment").name == "sentiment"
    for content in (b"", b"[]", b"\xff", b'{"format": 1, "encoder": {"fingerprint": 3}}'):
        manifest.write_bytes(content)
        assert [problem.path for problem in store.verify()] == [manifest]
        with pytest.raises(BankError, match=r"bank\.json cannot be read"):
            store.load("sentiment")
    manifest.write_text('{"format": 2, "encoder": {"fingerprint": "x"}}')
    with pytest.raises(BankError, match="Update Intarsia"):
        _ = store.encoder
    manifest.unlink()
    store.add(make_inlay())
    assert store.verify() == []


def test_only_banks_and_empty_folders_are_opened(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(BankError, match=r"is not a bank.*holds notes\.txt"):
        Store(tmp_path)
    with pytest.raises(BankError, match="is a file"):
        Store(tmp_path / "notes.txt")
    (tmp_path / "new" / "work").mkdir(parents=True)
    Store(tmp_path / "new")


def test_a_damaged_file_disturbs_nobody_else(store: Store) -> None:
    for name, value in [("a", 1.0), ("b", 1.0), ("b", 2.0), ("c", 1.0)]:
        store.add(make_inlay(name, value))
    flip(store.entry("b").path, 100)
    flip(store.entry("c").path, 3)
    for view in (store, Store(store.folder)):
        assert [(entry.name, entry.version, entry.state) for entry in view.entries()] == [
            ("a", 1, "ok"),
            ("b", 2, "damaged"),
            ("c", 1, "damaged"),
        ]
        assert view.load("a").name == "a"
        with pytest.raises(BankError, match=r"b/0002\.safetensors.*Version 1 of 'b' is intact and can be restored"):
            view.load("b")
        with pytest.raises(BankError, match=r"c/0001\.safetensors.*No other version of 'c' is intact"):
            view.load("c")
        with pytest.raises(BankError, match=r"b/0002"):
            _ = view.entry("b").header
        assert [(problem.name, problem.version) for problem in view.verify()] == [("b", 2), ("c", 1)]
        assert "0002.safetensors" in str(view.verify()[0])
    assert store.restore("b", 1).version == 3
    assert_same_tensors(store.load("b").tensors, make_inlay(value=1.0).tensors)
    with pytest.raises(BankError, match="c/0001"):
        store.restore("c", 1)
    assert store.add(make_inlay("c")).version == 2


def test_damage_that_leaves_size_and_time_unchanged(store: Store) -> None:
    """As a failing disk does it: the listing looks the same, so loading and verifying must notice."""
    path = store.add(make_inlay()).path
    status = path.stat()
    flip(path, -1)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert store.entry("sentiment").state == "ok"
    with pytest.raises(BankError, match="does not match its digest"):
        store.load("sentiment")
    assert store.entry("sentiment").state == Store(store.folder).entry("sentiment").state == "damaged"
    flip(path, -1)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert store.load("sentiment").name == "sentiment"
    assert store.entry("sentiment").state == "ok"


def test_restore_is_bit_for_bit(store: Store) -> None:
    for value in (1.0, 2.0, 3.0):
        store.add(make_inlay(value=value))
    restored = store.restore("sentiment", 1)
    first = store.entry("sentiment", 1)
    assert restored.version == 4 == store.entries()[0].version
    assert restored.path.read_bytes() == first.path.read_bytes()
    assert restored.header == first.header


def test_remove(store: Store) -> None:
    for name in ("a", "b", "b", "b"):
        store.add(make_inlay(name))
    other = Store(store.folder)
    assert len(other.entries()) == 2
    store.remove("b", 2)
    assert [entry.version for entry in other.versions("b")] == [1, 3]
    store.remove("b")
    assert not (store.folder / "inlays" / "b").exists()
    assert [entry.name for entry in other.entries()] == ["a"]
    with pytest.raises(BankError, match="no task 'b'"):
        store.remove("b")
    assert store.verify() == []


def test_the_index_is_rebuilt_from_the_files_alone(store: Store) -> None:
    for name in ("a", "b", "b"):
        store.add(make_inlay(name))
    before = [(entry.name, entry.version, entry.header) for entry in store.entries()]
    moved = store.folder.with_name("copy")
    shutil.copytree(store.folder / "inlays", moved / "inlays")
    shutil.copy(store.folder / "bank.json", moved)
    copy = Store(moved)
    assert copy.verify(rebuild=True) == []
    assert [(entry.name, entry.version, entry.header) for entry in copy.entries()] == before


def test_stray_files_are_ignored_and_old_leftovers_swept(store: Store) -> None:
    store.add(make_inlay())
    inlays = store.folder / "inlays"
    strays = ["note.txt", ".hidden/0001.safetensors", "sentiment/1.safetensors", "sentiment/00002.safetensors", "e/x"]
    for stray in strays:
        (inlays / stray).parent.mkdir(exist_ok=True)
        (inlays / stray).touch()
    old, young = inlays / ".old.tmp", inlays / ".young.tmp"
    old.touch()
    young.touch()
    os.utime(old, (0, 0))
    assert store.add(make_inlay()).version == 2
    assert [entry.name for entry in store.entries()] == ["sentiment"]
    assert not old.exists() and young.exists()
