"""Binding a foreign adapter to the bank's base.

A foreign file names its base, but has no fingerprint of it. Shapes and layers are checked with every tensor. The name
is compared here; where names differ, only the user can know whether the weights are the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.errors import ExchangeError
from intarsia.exchange.source import Source

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder

ALIASES = {"minilm": "all-minilm-l6-v2"}  # the embedded base, and its name on the hub
EMBEDDED_ON_HUB = "sentence-transformers/all-MiniLM-L6-v2"


def public_name(encoder: Encoder) -> str:
    """Return the base's name for a file that leaves this machine: a folder's own name in place of its path."""
    return short_base(encoder.name)


def short_base(name: str) -> str:
    """Return the name of a base without the path of a folder on this machine."""
    if name == "minilm":
        return EMBEDDED_ON_HUB
    return Path(name).name if Path(name).is_absolute() else name


def check_base(stated: str, encoder: Encoder, same: bool) -> None:
    """Raise unless the file's base has the name of the bank's base, or the user says that it is the same."""
    if same or (stated and _short(stated) == _short(encoder.name)):
        return
    named = f"names its base {stated!r}" if stated else "does not name its base"
    raise ExchangeError(
        f"the adapter {named}; the bank's base is {encoder.name!r}. All shapes fit, but on other weights its answers "
        "would be wrong. If the weights are the same, repeat with --base-is-the-same (base_is_the_same=True)."
    )


def check_family(stated: str | None, encoder: Encoder, where: str) -> None:
    """Raise if a file states another model family than the base's."""
    if stated and stated != encoder.shape.family:
        raise ExchangeError(
            f"{where}: the adapter was made for the family {stated!r}; the bank's base is of the family "
            f"{encoder.shape.family!r}. Import it into a bank over its own base."
        )


def check_vocabulary(source: Source, encoder: Encoder) -> None:
    """Raise if the folder carries a tokenizer with another vocabulary than the base's."""
    theirs = source.vocabulary()
    if theirs is None or encoder.tokenizer is None:
        return
    ours = encoder.tokenizer.get_vocab()
    if ours != theirs:
        example = next((w for w, i in theirs.items() if ours.get(w) != i), None) or next(
            w for w in ours if w not in theirs
        )
        raise ExchangeError(
            f"{source.folder / 'tokenizer.json'} has another vocabulary than the bank's base: {len(theirs)} and "
            f"{len(ours)} entries; they differ for {example!r}. Import the adapter into a bank over its own base."
        )


def _short(name: str) -> str:
    last = name.rstrip("/").replace("\\", "/").rpartition("/")[2].lower()
    return ALIASES.get(last, last)
