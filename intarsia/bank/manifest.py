"""bank.json: the description of the one base that all inlays of a bank share."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from intarsia import files
from intarsia.bank.container import canonical
from intarsia.bank.schema import manifest_fault, parse_json
from intarsia.errors import BankError

BANK_FORMAT = 1
LONGEST = 1_000_000  # bytes


def read_manifest(path: Path) -> dict[str, Any] | None:
    """Return the description of the base, or None if bank.json does not exist yet."""
    try:
        with files.open_regular(path) as file:
            content = file.read(LONGEST + 1)
        if len(content) > LONGEST:
            raise ValueError(f"more than {LONGEST} bytes")
        manifest = parse_json(content)
        stated, encoder = manifest["format"], dict(manifest["encoder"])
        fault = manifest_fault(manifest) if stated == BANK_FORMAT else None
        if fault is not None:
            raise ValueError(fault)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise BankError(
            f"{path} cannot be read ({type(error).__name__}: {error}); expected JSON that describes the base. "
            "Restore it from a backup, or delete it: learning the next task writes it again."
        ) from error
    if stated != BANK_FORMAT:
        raise BankError(
            f"{path} has the format {stated!r}, but this version of Intarsia reads {BANK_FORMAT}. "
            "Update Intarsia if a newer version wrote the bank."
        )
    return encoder


def create_manifest(path: Path, encoder: dict[str, Any]) -> None:
    """Write bank.json, unless another process has just written it."""
    content = [canonical({"format": BANK_FORMAT, "encoder": encoder}).encode() + b"\n"]
    with files.explained(path, content):
        files.make_folder(path.parent)
        with files.written(path.parent, content) as temporary, contextlib.suppress(FileExistsError):
            files.place(temporary, path)


def misfit(encoder: dict[str, Any], base: dict[str, Any]) -> str | None:
    """Return how an encoder differs from a bank's base, with both values; None if it is the same."""
    if encoder.get("fingerprint") != base["fingerprint"]:
        return _differ("base", encoder, base, "fingerprint")
    # Another tokenizer gives the same weights other inputs. A missing fingerprint cannot be compared.
    if encoder.get("tokenizer") and base.get("tokenizer") and encoder["tokenizer"] != base["tokenizer"]:
        return _differ("tokenizer", encoder, base, "tokenizer")
    return None


def _differ(part: str, encoder: dict[str, Any], base: dict[str, Any], key: str) -> str:
    return (
        f"made for another {part}: {encoder.get('name', 'unnamed')} with the fingerprint {encoder.get(key)}, "
        f"but the bank's is {base.get('name', 'unnamed')} with the fingerprint {base.get(key)}"
    )
