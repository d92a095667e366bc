"""Undoing what the CrowdFlower releases did to characters beyond ASCII.

Their UTF-8 was read as Windows-1252 and saved in the old Mac encoding: `won’t` became `wonâ€™t`. Five bytes have no
character in Windows-1252 and came through as the Mac's. A run of such characters that reads as UTF-8 again is put back;
any other is left as it is, because a part of it is lost.
"""

from __future__ import annotations

import re

BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")
ENCODINGS = ("utf-8-sig", "mac_roman")  # of the files; the second reads anything
UNDEFINED = {bytes([byte]).decode("mac_roman"): byte for byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}


def mend(text: str) -> str:
    return BEYOND_ASCII.sub(_run, text)


def _run(match: re.Match[str]) -> str:
    run = match[0]
    for odd in ({}, UNDEFINED):
        try:
            return b"".join(bytes([odd[c]]) if c in odd else c.encode("cp1252") for c in run).decode("utf-8")
        except UnicodeError:
            continue
    return run
