"""The index: an SQLite cache of the headers of a bank's files, so that a bank with a thousand tasks opens fast.

The index is only a cache: it holds no information that the files do not hold, and it can be deleted at any time. If it
cannot be used (corrupt file, lock, read-only disk), the user gets no error: the rows stay in memory.
"""

from __future__ import annotations

import contextlib
import sqlite3
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

SCHEMA_VERSION = 1
BUSY_MILLISECONDS = 5000
HAS_PARENTS = '"parents": ["'  # in the header of an inlay that is built on others
BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

Key = tuple[str, int]  # task, version


class IndexRow(NamedTuple):
    """The cached header of one file. `size` and `mtime_ns` show whether the file has changed since."""

    name: str
    version: int
    file: str  # relative to the bank's folder
    size: int
    mtime_ns: int
    digest: str
    fingerprint: str  # of the inlay's base
    header: str  # JSON; empty if the file cannot be read
    state: str  # "ok" | "damaged" | "misplaced"
    reason: str  # why the file cannot be used

    @property
    def key(self) -> Key:
        return self.name, self.version


CREATE = """
CREATE TABLE inlays (
    name TEXT NOT NULL, version INTEGER NOT NULL, file TEXT NOT NULL, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
    digest TEXT NOT NULL, fingerprint TEXT NOT NULL, header TEXT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL,
    checksum INTEGER NOT NULL, PRIMARY KEY (name, version)
)
"""
COLUMNS = (*IndexRow._fields, "checksum")
SELECT = f"SELECT {', '.join(COLUMNS)} FROM inlays"
UPSERT = f"INSERT OR REPLACE INTO inlays ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
DELETE = "DELETE FROM inlays WHERE name = ? AND version = ?"


class Index:
    """The rows in memory, backed by an SQLite file if possible.

    Every operation opens its own connection, so the index works from any thread and after a fork.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # A link could lead to a foreign database, and opening a FIFO could wait forever.
        self.persistent = not path.is_symlink() and (path.is_file() or not path.exists())
        self.rows: dict[Key, IndexRow] = self._read()
        self._keys: dict[str, set[Key]] = {}  # of each task
        self._by_digest: dict[str, set[Key]] = {}
        self._composed: set[Key] = set()
        for row in self.rows.values():
            self._know(row)

    def of(self, name: str) -> dict[Key, IndexRow]:
        """Return the rows of one task, however many there are of others."""
        return {key: self.rows[key] for key in self._keys.get(name, ())}

    def with_digest(self, digest: str) -> set[Key]:
        """Return the keys of the rows with this digest, however many there are of others."""
        return set(self._by_digest.get(digest, ()))

    def built_on(self, digests: Collection[str]) -> set[Key]:
        """Return the keys of the rows that are built on one of these inlays; it reads only rows with parents."""
        return {key for key in self._composed if any(digest in self.rows[key].header for digest in digests)}

    def update(self, put: Collection[IndexRow], drop: Collection[Key] = ()) -> None:
        """Add or replace the rows `put`, and delete the rows `drop`."""
        for key in (*drop, *(row.key for row in put)):
            old = self.rows.pop(key, None)
            self._keys.get(key[0], set()).discard(key)
            self._composed.discard(key)
            if old is not None:
                self._by_digest.get(old.digest, set()).discard(key)
        for row in put:
            self.rows[row.key] = row
            self._know(row)
        if put or drop:
            self._write(put, drop)

    def clear(self) -> None:
        """Delete all rows, including rows that other processes have written to the file."""
        self.rows, self._keys, self._by_digest, self._composed = {}, {}, {}, set()
        self._write((), (), everything=True)

    def _know(self, row: IndexRow) -> None:
        self._keys.setdefault(row.name, set()).add(row.key)
        self._by_digest.setdefault(row.digest, set()).add(row.key)
        if HAS_PARENTS in row.header:
            self._composed.add(row.key)

    def _read(self) -> dict[Key, IndexRow]:
        if not self.persistent or not self.path.exists():  # reading a bank must not create files
            return {}
        try:
            with self._connection() as connection:
                found = [(IndexRow._make(values), checksum) for *values, checksum in connection.execute(SELECT)]
            return {row.key: row for row, checksum in found if _checksum(row) == checksum and _has_types(row)}
        except (sqlite3.Error, OSError) as error:
            self._give_up(error)
            return {}

    def _write(self, put: Collection[IndexRow], drop: Collection[Key], everything: bool = False) -> None:
        if not self.persistent:
            return
        for _ in range(2):  # if the file proves corrupt, the second attempt writes all rows to a new file
            try:
                with self._connection() as connection:
                    connection.execute("BEGIN IMMEDIATE")
                    if everything:
                        connection.execute("DELETE FROM inlays")
                    connection.executemany(DELETE, drop)
                    connection.executemany(UPSERT, [(*row, _checksum(row)) for row in put])
                    connection.execute("COMMIT")
                return
            except (sqlite3.Error, OSError, UnicodeError) as error:
                if not self._give_up(error):
                    return
                put = list(self.rows.values())

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        # With isolation level None, sqlite3 adds no transactions to the explicit ones.
        connection = sqlite3.connect(self.path, timeout=BUSY_MILLISECONDS / 1000, isolation_level=None)
        try:
            connection.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            self._prepare(connection)
            yield connection
        finally:
            connection.close()

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if _schema_version(connection) == SCHEMA_VERSION:
            return
        connection.execute("BEGIN IMMEDIATE")
        found = _schema_version(connection)  # read again under the lock: another process may have created the table
        if found > SCHEMA_VERSION:
            raise _NewerSchema
        if found < SCHEMA_VERSION:
            connection.execute("DROP TABLE IF EXISTS inlays")
            connection.execute(CREATE)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")

    def _give_up(self, error: Exception) -> bool:
        """Handle a failure: return True after renaming a corrupt file, else work in memory and return False."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code == sqlite3.SQLITE_BUSY:
            return False  # keep the rows in memory; the file stays usable
        # SQLITE_ERROR means, for example, "no such table": the version number is right, but the tables are wrong.
        broken = isinstance(error, sqlite3.Error) and code in BROKEN | {sqlite3.SQLITE_ERROR}
        if broken and not isinstance(error, _NewerSchema):
            with contextlib.suppress(OSError):
                set_aside(self.path)
                return True
        self.persistent = False
        return False


class _NewerSchema(sqlite3.Error):
    """A newer Intarsia wrote this index: leave the file unchanged and work in memory."""


def set_aside(path: Path) -> Path:
    """Rename a corrupt index to the first free `.broken-N`, and delete its log, which must not enter a new index."""
    number = 1
    while (aside := path.with_name(f"{path.name}.broken-{number}")).exists():
        number += 1
    path.rename(aside)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return aside


def _checksum(row: IndexRow) -> int:
    """Return a row's CRC-32. SQLite does not detect a flipped bit in a value; the checksum does."""
    return zlib.crc32(repr(tuple(row)).encode())


def _has_types(row: IndexRow) -> bool:
    """Return whether the values have the types of `IndexRow`; SQLite stores any type in any column."""
    texts = (row.name, row.file, row.digest, row.fingerprint, row.header, row.state, row.reason)
    return all(isinstance(text, str) for text in texts) and isinstance(row.version, int)


def _schema_version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version
