"""From the bytes of a text file to its lines: the encoding, and what is wrong with it.

Without `encoding`, a text is UTF-8, or UTF-16 if the file begins as UTF-16 does. A line that is no UTF-8 in a file
without any other UTF-8 beyond ASCII is read as Windows-1252, which includes the printable characters of Latin-1; a
warning says so.
"""

from __future__ import annotations

import codecs
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from intarsia.errors import DataError, IntarsiaWarning
from intarsia.tasks.content import READ_ERRORS, Budget, damaged, open_content, raw_lines

SEPARATORS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}  # by name
WESTERN = "cp1252"
SIGNATURES = {  # how files begin that are not text
    b"\x89PNG": "a PNG image", b"\xff\xd8\xff": "a JPEG image", b"GIF89a": "a GIF image", b"%PDF-": "a PDF document",
    b"PK\x03\x04": "a zip archive or an Office document (.xlsx, .docx)",
    b"\xd0\xcf\x11\xe0": "an old Office document (.xls, .doc)",
    b"\x1f\x8b": "compressed with gzip", b"\x28\xb5\x2f\xfd": "compressed with zstd", b"PAR1\x15": "a Parquet file",
}  # fmt: skip
BINARY = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")  # bytes that no text has


@dataclass(frozen=True)
class FileFormat:
    """What a user says about a file, if it cannot be told from its name and content."""

    sep: str | None = None  # between the columns of .csv and .tsv files
    encoding: str | None = None

    @classmethod
    def of(cls, sep: str | None, encoding: str | None) -> FileFormat:
        """Return the checked format. A separator may be given by its name (tab, semicolon)."""
        found = None if sep is None else SEPARATORS.get(sep.lower(), sep)
        if found is not None and (len(found) != 1 or found in '\r\n"'):
            raise DataError(
                f"the separator {sep!r} is not known. Expected one character, such as ';', or one of "
                f"{', '.join(name for name in SEPARATORS if name.isalpha())}."
            )
        if encoding is not None:
            try:
                "".encode(encoding)
            except LookupError:
                raise DataError(
                    f"the encoding {encoding!r} is not known. Expected a name such as utf-8, utf-16, latin-1 or cp1252."
                ) from None
        return cls(found, encoding)


def lines_of(path: Path, budget: Budget | None = None, encoding: str | None = None) -> Iterator[str]:
    """Yield decoded lines with their line ends. Only newlines end a line: U+2028 in a text does not break a row."""
    number = 0
    try:
        with closing(open_content(path, budget)) as stream:
            head = cast(io.BufferedReader, stream).peek(8)[:8]
            other = next((name for begin, name in SIGNATURES.items() if head.startswith(begin)), None)
            if other:
                raise DataError(
                    f"{path} is {other}. Expected text. Save the data as CSV, or correct the file's ending."
                )
            found = encoding or _utf16(head[:4])
            lines = _utf8_lines(path, stream) if found is None else _given_lines(path, stream, found)
            for number, line in enumerate(lines, 1):  # noqa: B007
                yield line
    except READ_ERRORS as error:
        raise damaged(path, error, number) from error


def _utf16(head: bytes) -> str | None:
    """Return the encoding of a file that begins as UTF-16 does: with its mark, or with ASCII in two bytes each."""
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    if len(head) == 4 and not head[1] and not head[3] and head[0] and head[2]:
        return "utf-16-le"
    return "utf-16-be" if len(head) == 4 and not head[0] and not head[2] and head[1] and head[3] else None


def _given_lines(path: Path, stream: BinaryIO, encoding: str) -> Iterator[str]:
    """Yield lines in an encoding other than the default."""
    if encoding.lower().replace("_", "-") in ("utf-8", "utf8"):
        encoding = "utf-8-sig"
    named = "UTF-8" if encoding == "utf-8-sig" else encoding
    with io.TextIOWrapper(stream, encoding=encoding, newline="\n") as text:
        number = 0
        try:
            for number, line in enumerate(text, 1):  # noqa: B007
                yield line
        except UnicodeError as error:
            after = f", after line {number}" if number else ""
            raise DataError(
                f"{path}{after}: not valid {named} ({_reason(error)}). Name the right encoding (--encoding)."
            ) from error


def _reason(error: UnicodeError) -> str:
    """Return the byte that does not fit; its place is that in a block of the file, which says nothing to a reader."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte 0x{error.object[error.start]:02x}: {error.reason}"
    return str(error)


def _utf8_lines(path: Path, stream: BinaryIO) -> Iterator[str]:
    """Yield lines of UTF-8 or, if that does not fit a file of otherwise plain ASCII, of Windows-1252."""
    beyond_ascii = western = 0  # the first line with UTF-8 beyond ASCII; the first that is no UTF-8
    for number, raw in enumerate(raw_lines(path, stream), 1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            beyond_ascii = beyond_ascii or (0 if raw.isascii() else number)
        except UnicodeDecodeError as error:
            not_utf8 = DataError(
                f"{path}, line {number}: not valid UTF-8 (byte 0x{raw[error.start]:02x} at position "
                f"{error.start + 1} of the line). Save the file as UTF-8, or name its encoding (--encoding)."
            )
            try:
                if beyond_ascii or BINARY.search(raw):
                    raise not_utf8 from error
                line = raw.decode(WESTERN)
            except UnicodeDecodeError:
                raise not_utf8 from error
            if not western:
                western = number
                warnings.warn(
                    f"{path}, line {number}: not valid UTF-8. The file is read as Windows-1252 (Latin-1); if texts "
                    "look wrong, name its encoding (--encoding).",
                    IntarsiaWarning,
                    stacklevel=2,
                )
        if western and beyond_ascii:
            raise DataError(
                f"{path} mixes encodings: line {western} is not valid UTF-8, line {beyond_ascii} is. Save the file as "
                "UTF-8."
            )
        yield line
