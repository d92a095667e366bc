"""Reading Parquet files: rows as Python values, within the limit of content.

A Parquet file of a kilobyte can hold gigabytes, because it stores a repeated text once. The reader keeps such texts as
dictionaries and makes Python values of a few rows at a time, so that the limit takes effect before the memory is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from intarsia.errors import DataError
from intarsia.tasks.content import READ_ERRORS, Budget, damaged, open_content

BATCH_ROWS = 1024
PIECE_BYTES = 64 << 20  # of rows that are made at once


def parquet_rows(path: Path, budget: Budget) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a Parquet file with their numbers, from 1."""
    import pyarrow as pa

    number = 0
    try:
        for row in _rows(path, budget):
            number += 1
            yield number, row
    # pyarrow raises many types for damaged files: invalid UTF-8, times beyond Python's range, sizes that overflow.
    except (*READ_ERRORS, pa.ArrowException, ValueError, ArithmeticError, LookupError, TypeError, MemoryError) as error:
        if isinstance(error, DataError):
            raise
        raise damaged(path, error) from error


def _rows(path: Path, budget: Budget) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    from pyarrow import parquet

    plain = path.suffix.lower() == ".parquet"
    with closing(path.open("rb") if plain else open_content(path, budget)) as stream:
        # Parquet needs to seek, and a compressed stream cannot.
        source = stream if plain else pa.BufferReader(stream.read())
        metadata = parquet.ParquetFile(source).metadata
        stated = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        if stated > budget.left:
            budget.spend(stated)
        texts = [
            column.path
            for column in (metadata.schema.column(i) for i in range(len(metadata.schema)))
            if column.physical_type == "BYTE_ARRAY"
        ]
        file = parquet.ParquetFile(source, read_dictionary=texts)
        for batch in file.iter_batches(batch_size=BATCH_ROWS):
            step = max(1, PIECE_BYTES // max(1, _longest(batch)))
            for first in range(0, batch.num_rows, step):
                rows = batch.slice(first, step).to_pylist()
                budget.spend(sum(_size(value) for row in rows for value in row.values()))
                yield from rows


def _longest(batch: Any) -> int:
    """Return a bound for the bytes of the largest row of a batch."""
    return sum(_longest_value(column) for column in batch.columns)


def _longest_value(array: Any) -> int:
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(array, pa.DictionaryArray):
        return _longest_value(array.dictionary)
    if pa.types.is_string(array.type) or pa.types.is_binary(array.type) or pa.types.is_large_string(array.type):
        return int(pc.max(pc.binary_length(array)).as_py() or 0) if len(array) else 0
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        most = int(pc.max(pc.list_value_length(array)).as_py() or 0) if len(array) else 0
        return most * (8 + _longest_value(array.values))
    if pa.types.is_struct(array.type):
        return sum(_longest_value(array.field(i)) for i in range(array.type.num_fields))
    return 16


def _size(value: Any) -> int:
    """Return about the bytes of content of a Python value."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(_size(item) for item in value.values())
    return 8 + sum(_size(item) for item in value) if isinstance(value, list | tuple) else 8
