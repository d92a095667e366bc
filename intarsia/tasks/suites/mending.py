"""Repairing the garbled non-ASCII characters of the CrowdFlower releases.

Their UTF-8 was read as Windows-1252 and saved as Mac Roman: `won’t` became `wonâ€™t`. Five bytes have no character in
Windows-1252 and appear as their Mac Roman characters. A run of non-ASCII characters is repaired if its bytes are valid
UTF-8. Otherwise it stays unchanged, because some of its bytes are lost.
"""

from __future__ import annotations

import re

BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")
ENCODINGS = ("utf-8-sig", "mac_roman")  # of the files; Mac Roman decodes any byte
UNDEFINED = {bytes([byte]).decode("mac_roman"): byte for byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}


def mend(text: str) -> str:
    """The text with its garbled characters repaired."""
    return BEYOND_ASCII.sub(_mend_run, text)


def _mend_run(match: re.Match[str]) -> str:
    """A run of non-ASCII characters, repaired if possible."""
    run = match[0]
    for odd in ({}, UNDEFINED):
        try:
            return b"".join(bytes([odd[c]]) if c in odd else c.encode("cp1252") for c in run).decode("utf-8")
        except UnicodeError:
            continue
    return run
