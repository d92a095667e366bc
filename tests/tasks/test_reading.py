"""Every format and compression, and every complaint about a file."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from intarsia.errors import DataError, IntarsiaWarning
from intarsia.tasks.decoding import FileFormat
from intarsia.tasks.reading import read_rows

ROWS = [{"text": "first, with a comma", "label": "a"}, {"text": "zweite Zeile: ü 😀", "label": "b"}]


def parquet_bytes(rows: list[dict[str, str]]) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    buffer = io.BytesIO()
    parquet.write_table(
        pa.Table.from_pylist(rows, schema=pa.schema([("text", pa.string()), ("label", pa.string())])), buffer
    )
    return buffer.getvalue()


def zstd(data: bytes) -> bytes:
    import pyarrow as pa

    return bytes(pa.compress(data, codec="zstd", asbytes=True))


CONTENT: dict[str, bytes] = {
    "csv": 'text,label\n"first, with a comma",a\nzweite Zeile: ü 😀,b\n'.encode(),
    "tsv": "text\tlabel\nfirst, with a comma\ta\nzweite Zeile: ü 😀\tb\n".encode(),
    "jsonl": "".join(json.dumps(row) + "\n" for row in ROWS).encode(),
    "ndjson": "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS).encode(),
}
PACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstd}


def written(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def complaint(path: Path | str) -> str:
    with pytest.raises(DataError) as caught:
        list(read_rows(path))
    return str(caught.value)


@pytest.mark.parametrize("compression", PACK)
@pytest.mark.parametrize("name", [*CONTENT, "parquet"])
def test_every_format_with_every_compression(tmp_path: Path, name: str, compression: str) -> None:
    content = CONTENT[name] if name != "parquet" else parquet_bytes(ROWS)
    path = written(tmp_path, f"Data.{name.upper()}{compression}", PACK[compression](content))
    numbered = list(read_rows(path))
    assert [row for _, row in numbered] == ROWS
    assert [number for number, _ in numbered] == ([2, 3] if name in ("csv", "tsv") else [1, 2])


def test_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", b"\xef\xbb\xbftext , label\r\nx,1\r\n")
    assert list(read_rows(path)) == [(2, {"text": "x", "label": "1"})]


def test_csv_numbers_rows_by_the_line_where_they_begin(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", 'text,label\n"two\nlines ""quoted""",a\n\nafter,b\n')
    assert list(read_rows(path)) == [
        (2, {"text": 'two\nlines "quoted"', "label": "a"}),
        (5, {"text": "after", "label": "b"}),
    ]


def test_csv_fields_may_be_long(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "text,label\n" + "x" * 200_000 + ",a\n")
    assert len(next(read_rows(path))[1]["text"]) == 200_000


def test_tsv_takes_quotes_as_they_stand(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", 'text\tlabel\n"Well," he said\ta\r\n\n"quoted"\tb\n5" disk\tc\n')
    assert list(read_rows(path)) == [
        (2, {"text": '"Well," he said', "label": "a"}),
        (4, {"text": '"quoted"', "label": "b"}),
        (5, {"text": '5" disk', "label": "c"}),
    ]


def test_tsv_with_a_quoted_header_is_quoted(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", '"text"\t"label"\n"a ""b""\nc"\t"x"\nplain\ty\n')
    assert list(read_rows(path)) == [(2, {"text": 'a "b"\nc', "label": "x"}), (4, {"text": "plain", "label": "y"})]


def test_json_lines_break_at_newlines_only(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", '{"text": "a\u2028b\x85c"}\n\n{"text": "d"}')
    assert list(read_rows(path)) == [(1, {"text": "a\u2028b\x85c"}), (3, {"text": "d"})]


def test_wrong_paths_are_reported_before_reading(tmp_path: Path) -> None:
    written(tmp_path, "train.jsonl.zst", b"")
    with pytest.raises(DataError, match=r"Did you mean train\.jsonl\.zst\?"):
        read_rows(tmp_path / "train")
    with pytest.raises(DataError, match=r"Did you mean train\.jsonl\.zst\?"):
        read_rows(tmp_path / "trian.jsonl.zst")
    written(tmp_path, "score.csv", "")
    with pytest.raises(DataError, match=r"nothere\.csv does not exist\. Check the path"):  # only its ending is alike
        read_rows(tmp_path / "nothere.csv")
    with pytest.raises(DataError, match=r"zzz\.csv does not exist\. Check the path"):
        read_rows(tmp_path / "zzz.csv")
    with pytest.raises(DataError, match="neither does the folder"):
        read_rows(tmp_path / "no" / "a.csv")
    with pytest.raises(DataError, match=r"is a folder\. Give one of the files"):
        read_rows(tmp_path)


@pytest.mark.parametrize("name", ["notes.doc", "data.xls", "none", "data.csv.bz2"])
def test_unknown_ending_lists_the_known_ones(tmp_path: Path, name: str) -> None:
    message = complaint(written(tmp_path, name, "x"))
    assert name in message
    assert all(ending in message for ending in (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".gz", ".zst"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b""),
        ("a.csv", b"text,label\n"),
        ("a.tsv", b"text\tlabel\n"),
        ("a.jsonl", b"\n\n"),
        ("a.jsonl.gz", gzip.compress(b"", mtime=0)),
        ("a.jsonl.zst", b""),
        ("a.parquet", parquet_bytes([])),
    ],
)
def test_empty_file(tmp_path: Path, name: str, content: bytes) -> None:
    assert "is empty" in complaint(written(tmp_path, name, content))


def test_not_utf8_names_the_line(tmp_path: Path) -> None:
    message = complaint(written(tmp_path, "a.csv", "text,label\nschön,a\n".encode() + b"na\xefve,b\n"))
    assert "a.csv, line 3: not valid UTF-8 (byte 0xef at position 3" in message
    message = complaint(written(tmp_path, "a.csv", b"text,label\nfine,a\n\xff\x00\x01,b\n"))
    assert "a.csv, line 3: not valid UTF-8 (byte 0xff at position 1" in message


def test_files_of_another_format_are_named(tmp_path: Path) -> None:
    begins = {
        "a PNG image": b"\x89PNG\r\n",
        "a zip archive or an Office": b"PK\x03\x04",
        "with gzip": gzip.compress(b"x"),
    }
    for said, content in begins.items():
        assert said in complaint(written(tmp_path, "a.csv", content + b"\x00\xff"))
    assert "a Parquet file. Expected text" in complaint(written(tmp_path, "a.jsonl", parquet_bytes([])))


def test_malformed_json_names_the_line(tmp_path: Path) -> None:
    assert "a.jsonl, line 2: malformed JSON" in complaint(written(tmp_path, "a.jsonl", '{"text": "a"}\n{"text": \n'))
    assert "line 1: expected a JSON object" in complaint(written(tmp_path, "b.jsonl", '[{"text": "a"}]\n'))


def test_wrong_number_of_fields_names_line_and_counts(tmp_path: Path) -> None:
    message = complaint(written(tmp_path, "a.csv", "text,label\nfine,a\nno, quotes,a\n"))
    assert "a.csv, line 3: too many fields: 3, but the header names 2 (text, label)" in message
    message = complaint(written(tmp_path, "a.tsv", "text\tlabel\nfine\ta\nshort\n"))
    assert "a.tsv, line 3: too few fields: 1, but the header names 2" in message


def test_wrong_headers(tmp_path: Path) -> None:
    assert "has the column 'text' more than once" in complaint(written(tmp_path, "a.csv", "text,text\nx,y\n"))
    path = written(tmp_path, "a.csv", "text;label\nx;y\n")
    with pytest.raises(DataError, match="',' does not separate columns in the header, which has ';'"):
        list(read_rows(path, FileFormat.of(",", None)))


@pytest.mark.parametrize(
    ("name", "content", "sep"),
    [
        ("a.csv", 'text;label\n"a; b, c";x\nd;y\n', None),
        ("a.csv", 'text\tlabel\n"a; b, c"\tx\nd\ty\n', None),
        ("a.csv", "text, or so;label\na; b, c|\nd;y\n", "semicolon"),
        ("a.tsv", 'text,label\n"a; b, c",x\nd,y\n', None),
        ("a.tsv", "text;label\nd;y\n", ";"),
        ("a.csv", "text\tlabel\nd\ty\n", "tab"),
    ],
)
def test_other_separators(tmp_path: Path, name: str, content: str, sep: str | None) -> None:
    rows = list(read_rows(written(tmp_path, name, content), FileFormat.of(sep, None)))
    if sep == "semicolon":
        assert rows == [(2, {"text, or so": "a", "label": " b, c|"}), (3, {"text, or so": "d", "label": "y"})]
    else:
        assert rows[-1][1] == {"text": "d", "label": "y"} and (len(rows) == 1 or rows[0][1]["text"] == "a; b, c")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_unicode_encodings_are_detected(tmp_path: Path, encoding: str) -> None:
    content = 'text,label\n"schön, 😀",a\nx,b\n'.encode(encoding)
    assert list(read_rows(written(tmp_path, "a.csv", content))) == [
        (2, {"text": "schön, 😀", "label": "a"}),
        (3, {"text": "x", "label": "b"}),
    ]


def test_latin_1_is_read_with_a_note(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", b"text,label\nfine,a\nna\xefve \x80,b\n")
    with pytest.warns(IntarsiaWarning, match=r"a\.csv, line 3: not valid UTF-8\. The file is read as Windows-1252"):
        assert [row["text"] for _, row in read_rows(path)] == ["fine", "naïve €"]
    assert [row["text"] for _, row in read_rows(path, FileFormat.of(None, "latin-1"))] == ["fine", "naïve \x80"]
    mixed = written(tmp_path, "b.csv", b"text,label\nna\xefve,b\n" + "schön,a\n".encode())
    with pytest.warns(IntarsiaWarning):
        assert "b.csv mixes encodings: line 2 is not valid UTF-8, line 3 is" in complaint(mixed)


def test_a_wrong_format_is_refused(tmp_path: Path) -> None:
    for sep, encoding, expected in ((";;", None, "one character"), (None, "utf8x", "utf8x"), ("", None, "one char")):
        with pytest.raises(DataError, match=expected):
            FileFormat.of(sep, encoding)
    with pytest.raises(DataError, match=r"\.csv and \.tsv files only"):
        read_rows(written(tmp_path, "a.jsonl", "{}"), FileFormat(sep=";"))
    with pytest.raises(DataError, match=r"not valid UTF-8 \(byte 0xef: invalid continuation byte\)"):
        list(read_rows(written(tmp_path, "l.csv", b"text,label\nna\xefve,b\n"), FileFormat(encoding="utf-8")))
    with pytest.raises(DataError, match=r"\.csv: not valid utf-16"):
        list(read_rows(written(tmp_path, "a.csv", "text,label\nxy,a\nb"), FileFormat(encoding="utf-16")))


def test_json_arrays_and_json_lines_in_a_json_file(tmp_path: Path) -> None:
    for content in (json.dumps(ROWS), json.dumps(ROWS, indent=2), "\n".join(json.dumps(row) for row in ROWS)):
        assert list(read_rows(written(tmp_path, "a.json", content))) == [(1, ROWS[0]), (2, ROWS[1])]
    assert list(read_rows(written(tmp_path, "a.json", json.dumps(ROWS[0]) + "\n"))) == [(1, ROWS[0])]
    assert "or, for other data, an array of objects" in complaint(written(tmp_path, "a.json", '{\n"text": "a"\n}'))
    assert "a.json, item 2: expected a JSON object" in complaint(written(tmp_path, "a.json", '[{"text": "a"}, 3]'))
    assert "a.json, line 2: malformed JSON" in complaint(written(tmp_path, "a.json", '[{"text": "a"},\n{]'))
    assert "nested too deeply" in complaint(written(tmp_path, "a.json", "[" * 200_000))
    assert "is empty" in complaint(written(tmp_path, "a.json", "[]"))


def test_workbooks(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl", reason="the extra xlsx is not installed")
    book = openpyxl.Workbook()
    book.active.title = "empty"
    sheet = book.create_sheet("rows")
    for row in ([], ["Text", "Label", None, "id"], ["a, b", 1.0, "no header", 7], [], [2024, 2, None, None]):
        sheet.append(row)
    book.create_sheet("notes").append(["left out"])
    path = tmp_path / "a.xlsx"
    book.save(path)
    with pytest.warns(IntarsiaWarning, match=r"reads the sheet 'rows'; left out: 'notes'"):
        rows = list(read_rows(path))
    assert rows == [(3, {"Text": "a, b", "Label": 1, "id": 7}), (5, {"Text": "2024", "Label": 2, "id": None})]
    assert "damaged or no .xlsx workbook" in complaint(written(tmp_path, "b.xlsx", path.read_bytes()[:-300]))
    assert "damaged or no .xlsx workbook" in complaint(written(tmp_path, "c.xlsx", b"text,label"))


def test_broken_quoting_names_the_line_where_the_row_begins(tmp_path: Path) -> None:
    message = complaint(written(tmp_path, "a.csv", 'text,label\nfine,a\n"never closed,b\nmore,c\n'))
    assert "a.csv, row beginning at line 3: broken quoting" in message


@pytest.mark.parametrize("compression", [".gz", ".zst"])
@pytest.mark.parametrize("name", ["jsonl", "parquet"])
def test_truncated_or_foreign_compressed_file(tmp_path: Path, name: str, compression: str) -> None:
    rows = [{"text": f"row {number}", "label": "a"} for number in range(1000)]
    content = parquet_bytes(rows) if name == "parquet" else "".join(json.dumps(row) + "\n" for row in rows).encode()
    packed = PACK[compression](content)
    assert "damaged or truncated" in complaint(written(tmp_path, f"a.{name}{compression}", packed[: len(packed) // 2]))
    assert "damaged or truncated" in complaint(written(tmp_path, f"b.{name}{compression}", b"not compressed at all"))


def test_damaged_parquet(tmp_path: Path) -> None:
    assert "damaged or truncated" in complaint(written(tmp_path, "a.parquet", parquet_bytes(ROWS)[:-20]))


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "a.csv", CONTENT["csv"])

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert "permission denied" in complaint(path)
