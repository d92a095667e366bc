"""The formats in which a task leaves its bank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from intarsia.bank.export import Exported, mergeable
from intarsia.bank.export import export as export_merged
from intarsia.bank.export_folder import check_folder
from intarsia.bank.sharing import write_bank
from intarsia.bank.store import Store
from intarsia.encoder.encoder import Encoder
from intarsia.errors import Refused, check_choice
from intarsia.exchange import EXPORTS


def export(
    store: Store,
    encoder: Callable[[], Encoder],
    name: str,
    folder: str | Path,
    version: int | None,
    *,
    format: str,
    licence: str | None,
    force: bool,
) -> Exported:
    """Write a version of a task to a folder; see `Bank.export`. `encoder` loads the base."""
    check_choice("format", format, EXPORTS)
    entry = store.entry(name, version)
    inlay = store.load(name, entry.version)
    folder = Path(folder).expanduser().resolve()
    keep = {"the bank": store.folder, "the current working directory": Path.cwd()}
    if inlay.parents and format != "inlay":
        raise Refused(
            f"{name!r} cannot be exported as {format}: it is built on other inlays of the bank, which this format does "
            "not hold. Use --format inlay, which writes them too."
        )
    method = mergeable(inlay) if format == "merged" else None
    check_folder(folder, force, keep)  # fail before the slow loading of the base
    if format == "inlay":
        return write_bank(store, name, entry.version, folder, licence=licence, force=force, keep=keep)
    if method is not None:
        return export_merged(inlay, entry.version, method, encoder(), folder, force=force, keep=keep)
    from intarsia.bank.export_adapter import export_adapter

    return export_adapter(inlay, entry.version, encoder(), format, folder, force=force, keep=keep, licence=licence)
