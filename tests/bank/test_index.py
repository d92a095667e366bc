"""The index is a cache: whatever happens to it, nothing is lost and nobody notices."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from intarsia.bank import catalog
from intarsia.bank.index import BUSY_MILLISECONDS, SCHEMA_VERSION, Index, IndexRow
from intarsia.bank.store import Store
from tests.support.inlays import flip, make_inlay

ROW = IndexRow("a", 1, "inlays/a/0001.safetensors", 10, 20, "d", "f", "{}", "ok", "")


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    store = Store(tmp_path / "bank")
    for name in ("a", "b", "b"):
        store.add(make_inlay(name))
    return store.folder


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The files whose header or whole content is read."""
    files: list[str] = []
    for name in ("read_header", "check_file"):
        original = getattr(catalog, name)
        monkeypatch.setattr(
            catalog,
            name,
            lambda path, name=name, original=original, **options: (
                files.append(f"{name} {path.name}"),
                original(path, **options),
            )[1],
        )
    yield files


def listed(folder: Path) -> list[tuple[str, int]]:
    return [(entry.name, entry.version) for entry in Store(folder).entries()]


def broken(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("index.sqlite.broken-*"))


def test_rows_outlive_the_process(tmp_path: Path) -> None:
    Index(tmp_path / "index.sqlite").update([ROW, ROW._replace(version=2)], [])
    index = Index(tmp_path / "index.sqlite")
    assert index.rows == {("a", 1): ROW, ("a", 2): ROW._replace(version=2)}
    index.update([ROW._replace(state="damaged", reason="why")], [("a", 2)])
    assert list(Index(tmp_path / "index.sqlite").rows.values()) == [ROW._replace(state="damaged", reason="why")]
    index.clear()
    assert Index(tmp_path / "index.sqlite").rows == {}


def test_settings_of_the_database(bank: Path) -> None:
    with closing(sqlite3.connect(bank / "index.sqlite")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    assert BUSY_MILLISECONDS >= 1000


def test_unchanged_files_are_not_opened(bank: Path, opened: list[str]) -> None:
    store = Store(bank)
    store.entries()
    assert opened == []
    Store(bank).add(make_inlay("b"))
    opened.clear()
    assert [entry.version for entry in store.entries()] == [1, 3]
    assert opened == ["read_header 0003.safetensors"]


def test_changed_files_are_read_whole(bank: Path, opened: list[str]) -> None:
    store = Store(bank)
    flip(bank / "inlays/a/0001.safetensors", -1)  # the last byte: the header is untouched
    assert [entry.state for entry in store.entries()] == ["damaged", "ok"]
    assert opened == ["check_file 0001.safetensors"]
    flip(bank / "inlays/a/0001.safetensors", -1)
    assert [entry.state for entry in store.entries()] == ["ok", "ok"], "put right, it is good again"


@pytest.mark.parametrize("content", [b"garbage " * 1000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_garbage_is_set_aside_and_rebuilt(bank: Path, content: bytes) -> None:
    for number in (1, 2):
        (bank / "index.sqlite").write_bytes(content)
        assert listed(bank) == [("a", 1), ("b", 2)]
        assert broken(bank) == [f"index.sqlite.broken-{n + 1}" for n in range(number)]
        assert len(Index(bank / "index.sqlite").rows) == 3
    assert (bank / "index.sqlite.broken-1").read_bytes().startswith(content[:16])


def test_a_file_broken_while_in_use_gets_a_successor_with_everything(bank: Path) -> None:
    store = Store(bank)
    store.entries()
    (bank / "index.sqlite").write_bytes(b"garbage" * 1000)
    store.add(make_inlay("c"))
    assert sorted(Index(bank / "index.sqlite").rows) == [("a", 1), ("b", 1), ("b", 2), ("c", 1)]


@pytest.mark.parametrize("statement", ["DROP TABLE inlays", "ALTER TABLE inlays DROP COLUMN reason"])
def test_wrong_tables_are_rebuilt(bank: Path, statement: str) -> None:
    with closing(sqlite3.connect(bank / "index.sqlite")) as connection:
        connection.execute(statement)
    assert listed(bank) == [("a", 1), ("b", 2)]
    assert len(Index(bank / "index.sqlite").rows) == 3


def test_altered_values_are_not_believed(bank: Path, opened: list[str]) -> None:
    with closing(sqlite3.connect(bank / "index.sqlite")) as connection:
        connection.execute("UPDATE inlays SET header = replace(header, 'bottleneck', 'pal') WHERE name = 'a'")
        connection.commit()
    assert Store(bank).entry("a").header.method["type"] == "bottleneck"
    assert opened == ["read_header 0001.safetensors"]


def test_missing_and_older_indexes_are_made_anew(bank: Path) -> None:
    (bank / "index.sqlite").unlink()
    assert listed(bank) == [("a", 1), ("b", 2)]
    (bank / "index.sqlite").write_bytes(b"")
    assert listed(bank) == [("a", 1), ("b", 2)]
    with closing(sqlite3.connect(bank / "index.sqlite")) as connection:
        connection.execute("PRAGMA user_version = 0")
    assert listed(bank) == [("a", 1), ("b", 2)]
    assert len(Index(bank / "index.sqlite").rows) == 3
    assert broken(bank) == []


def test_a_newer_index_is_left_alone(bank: Path) -> None:
    with closing(sqlite3.connect(bank / "index.sqlite")) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    assert listed(bank) == [("a", 1), ("b", 2)]
    assert Store(bank).add(make_inlay("b")).version == 3
    assert broken(bank) == []
    with closing(sqlite3.connect(bank / "index.sqlite")) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION + 1,)


def test_a_locked_index_does_not_stop_anybody(bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intarsia.bank.index.BUSY_MILLISECONDS", 1)
    store = Store(bank)
    with closing(sqlite3.connect(bank / "index.sqlite", isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        assert store.add(make_inlay("c")).version == 1
        assert listed(bank) == [("a", 1), ("b", 2), ("c", 1)]
    assert broken(bank) == []
    assert listed(bank) == [("a", 1), ("b", 2), ("c", 1)]


def test_without_a_writable_index_all_is_read_from_the_files(bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = sqlite3.OperationalError("attempt to write a readonly database")
    error.sqlite_errorcode = sqlite3.SQLITE_READONLY

    def refuse(*_: Any, **__: Any) -> None:
        raise error

    before = (bank / "index.sqlite").read_bytes()
    monkeypatch.setattr(sqlite3, "connect", refuse)
    store = Store(bank)
    assert [entry.name for entry in store.entries()] == ["a", "b"]
    assert store.load("b").name == "b"
    assert store.verify(rebuild=True) == []
    assert (bank / "index.sqlite").read_bytes() == before
    assert broken(bank) == []


def test_an_index_that_cannot_even_be_opened(bank: Path) -> None:
    (bank / "index.sqlite").unlink()
    (bank / "index.sqlite").mkdir()
    assert listed(bank) == [("a", 1), ("b", 2)]
    assert Store(bank).add(make_inlay("b")).version == 3


def test_removing_a_task_needs_no_new_listing(bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = catalog.Catalog(bank)
    assert found.spelled_otherwise("A") == "a"
    for file in (bank / "inlays" / "a").iterdir():
        file.unlink()
    listings: list[None] = []
    names = catalog.Catalog.names
    monkeypatch.setattr(catalog.Catalog, "names", lambda self: (listings.append(None), names(self))[1])
    found.remove_folder("a")
    assert found.spelled_otherwise("A") is None and found.spelled_otherwise("B") == "b" and not listings
    (bank / "inlays" / "new").mkdir()  # another process
    assert found.spelled_otherwise("NEW") == "new" and len(listings) == 1
