"""bank.json: the one base that all inlays of a bank are set into."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from intarsia import files
from intarsia.bank.container import canonical
from intarsia.errors import BankError

BANK_FORMAT = 1


def read_manifest(path: Path) -> dict[str, Any] | None:
    """The base, or None where no bank.json has been written yet."""
    try:
        manifest = json.loads(path.read_bytes())
        stated, encoder = manifest["format"], dict(manifest["encoder"])
        encoder["fingerprint"] + ""
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise BankError(
            f"{path} cannot be read ({type(error).__name__}: {error}); the JSON that names its base was expected. "
            "Restore it from a copy, or delete it: it is written again when the next task is learned."
        ) from error
    if stated != BANK_FORMAT:
        raise BankError(
            f"{path} is of the format {stated!r}, and this version of Intarsia reads {BANK_FORMAT}. "
            "Update Intarsia if the bank comes from a newer version."
        )
    return encoder


def create_manifest(path: Path, encoder: dict[str, Any]) -> None:
    """Write bank.json, unless another process has done so at this moment."""
    content = [canonical({"format": BANK_FORMAT, "encoder": encoder}).encode() + b"\n"]
    with files.explained(path, content):
        files.make_folder(path.parent)
        with files.written(path.parent, content) as temporary, contextlib.suppress(FileExistsError):
            files.place(temporary, path)


def misfit(encoder: dict[str, Any], base: dict[str, Any]) -> str | None:
    """In which way an encoder is not the one that a bank is built on; both values are named."""
    if encoder.get("fingerprint") != base["fingerprint"]:
        return _differ("base", encoder, base, "fingerprint")
    # The same weights behind another tokenizer read other words. Where one side is not known, it cannot be compared.
    if encoder.get("tokenizer") and base.get("tokenizer") and encoder["tokenizer"] != base["tokenizer"]:
        return _differ("tokenizer", encoder, base, "tokenizer")
    return None


def _differ(what: str, encoder: dict[str, Any], base: dict[str, Any], key: str) -> str:
    return (
        f"made for another {what}: {encoder.get('name', 'unnamed')} with the fingerprint {encoder.get(key)}, "
        f"but the bank's is {base.get('name', 'unnamed')} with the fingerprint {base.get(key)}"
    )
