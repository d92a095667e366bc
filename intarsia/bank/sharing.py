"""Tasks as small banks: a folder with one task, the inlays on which it is built, and a card, as the hub keeps them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from intarsia.bank import succession
from intarsia.bank.catalog import COMPOSED
from intarsia.bank.copying import copy_family
from intarsia.bank.entry import Entry
from intarsia.bank.export import Exported
from intarsia.bank.export_card import inlay_card
from intarsia.bank.export_folder import explained, new_folder, size_of
from intarsia.bank.manifest import misfit
from intarsia.bank.store import Store
from intarsia.encoder.encoder import Encoder
from intarsia.errors import ExchangeError
from intarsia.exchange.binding import short_base

OWN = ("index.sqlite*", f"inlays/{COMPOSED}")  # files of one place: a copy of the bank makes its own


def write_bank(
    store: Store,
    name: str,
    version: int | None,
    folder: Path,
    *,
    licence: str | None,
    force: bool,
    keep: dict[str, Path],
) -> Exported:
    """Write a version of a task, with the inlays on which it is built, as a bank of its own."""
    entry = store.entry(name, version)
    with new_folder(folder, force, keep) as temporary, explained(folder):
        *_, copied = copy_family(store, Store(temporary), name, entry.version)
        _remove_own_files(temporary)
        base = short_base(str(entry.header.encoder["name"]))
        text = inlay_card(store.load(name, entry.version), entry.version, base, licence, str(copied.path.name))
        (temporary / "README.md").write_text(text, encoding="utf-8")
    return Exported(name, entry.version, folder, "inlay", None, 0.0, 0, size_of(folder), format="inlay")


def push(store: Store, name: str, repo: str, version: int | None, *, licence: str | None, private: bool) -> str:
    """Upload a version of a task to a repository of the hub, and return the address of the commit."""
    from intarsia.exchange.hub import check_name, upload

    check_name(repo)
    entry = store.entry(name, version)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "bank"
        write_bank(store, name, entry.version, folder, licence=licence, force=False, keep={})
        return upload(folder, repo, private=private, message=f"{name} version {entry.version}")


def pull(store: Store, name: str, repo: str, revision: str | None, encoder: Callable[[], Encoder]) -> Entry:
    """Download the task of a repository, with the inlays on which it is built, and store it under a name."""
    from intarsia.exchange.hub import download

    found, _ = download(repo, revision)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "bank"
        shutil.copytree(found, folder)  # the hub's cache holds links, and a bank writes an index beside its files
        _remove_own_files(folder)
        return read_bank(store, name, folder, repo, encoder)


def _remove_own_files(folder: Path) -> None:
    for pattern in OWN:
        for file in folder.glob(pattern):
            file.unlink()


def read_bank(store: Store, name: str, folder: Path, source: str, encoder: Callable[[], Encoder]) -> Entry:
    """Copy the one task of a bank's folder that no other is built on, under a name."""
    if not (folder / "bank.json").is_file():
        raise ExchangeError(
            f"{source} is not a task of Intarsia: it has no bank.json. An adapter of another library is imported with "
            f"`intarsia import {name} {source} --hub`."
        )
    other = Store(folder)
    if problems := other.verify():
        raise ExchangeError(f"{source} is damaged: {problems[0].reason}")
    entries = other.entries()
    parents = {digest for entry in entries for digest in entry.header.parents}
    own = [entry for entry in entries if entry.header.digest not in parents]
    if len(own) != 1:
        names = ", ".join(entry.name for entry in own[:8]) or "no task"
        raise ExchangeError(f"{source} must hold one task; it holds {names}.")
    (entry,) = own
    difference = misfit(dict(entry.header.encoder), encoder().description)
    if difference is not None:
        raise ExchangeError(f"{source} cannot be used in this bank: it was {difference}. Use a bank over its own base.")
    succession.warn_of_changes(store, name, other.load(entry.name, entry.version))
    if entry.name == name:
        return copy_family(other, store, name, entry.version)[-1]
    for digest in reversed(entry.header.parents):
        parent = other.find(digest)
        if parent is not None:
            copy_family(other, store, parent.name, parent.version)
    return store.add(replace(other.load(entry.name, entry.version), name=name), encoder=encoder())
