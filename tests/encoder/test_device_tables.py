"""The tables of a pass of fixed shape: every share where its slot says, whatever the other shares are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from intarsia.encoder.device_tables import DeviceTables, Share, aligned
from intarsia.encoder.packed import Segment
from intarsia.encoder.segment_arrays import SegmentArrays

SIZE, SLOTS, ROWS, SLOT_ROWS, ALIGN = 2048, 6, 48, 8, 32


def arrays(draw: np.random.Generator) -> SegmentArrays:
    """Segments of 1 to 40 tokens, with token types or without."""
    ids = [draw.integers(1, 1000, draw.integers(1, 40)).tolist() for _ in range(20)]
    return SegmentArrays([Segment(row, [i % 2 for i in row] if draw.random() < 0.5 else None) for row in ids])


@pytest.mark.parametrize("slot_rows", [None, SLOT_ROWS])
@pytest.mark.parametrize("built_on", [(), (3, 2)])
def test_each_share_is_laid_out_as_it_would_be_alone(slot_rows: int | None, built_on: tuple[int, ...]) -> None:
    draw = np.random.default_rng(0)
    data = [arrays(draw) for _ in range(3)]
    tables = DeviceTables(SIZE, SLOTS, ROWS, slot_rows, ALIGN, 64, torch.device("cpu"), built_on)
    for count in (1, 2, SLOTS):
        frozen = tuple(int(draw.integers(n)) for n in built_on)
        shares = [
            Share(
                int(slot), data[int(draw.integers(3))], draw.permutation(20)[: draw.integers(1, SLOT_ROWS)], 7, frozen
            )
            for slot in draw.permutation(SLOTS)[:count]
        ]
        row_starts = iter(tables.fill(shares).tolist())
        t = {name: tables[name].tolist() for name in tables.ranges}
        start = row = 0
        for share in shares:
            first = row if slot_rows is None else share.slot * slot_rows
            at = start
            for number, segment in enumerate(share.tokens.segments[i] for i in share.rows):
                place = slice(at, at + len(segment.ids))
                assert next(row_starts) == t["row_start"][first + number] == at
                assert t["row_length"][first + number] == len(segment.ids)
                assert t["ids"][place] == segment.ids
                assert t["types"][place] == (segment.types or [0] * len(segment.ids))
                assert t["positions"][place] == list(range(len(segment.ids)))
                at = place.stop
            end = start + aligned(at - start, ALIGN)
            assert t["ids"][at:end] == t["types"][at:end] == t["positions"][at:end] == [0] * (end - at)
            assert (t["row_start"][ROWS + share.slot], t["row_length"][ROWS + share.slot]) == (at, end - at)
            assert (t["slot_start"][share.slot], t["slot_end"][share.slot]) == (start, end)
            assert (t["seeds"][share.slot], t["active"][share.slot]) == (7, 1)
            assert set(t["tile_slot"][start // ALIGN : end // ALIGN]) == {share.slot}
            for i, slot in enumerate(frozen):
                assert set(t[f"built_on.{i}"][start // ALIGN : end // ALIGN]) == {slot}
            start, row = end, row + len(share.rows)
        assert sum(t["active"]) == count and sum(t["row_length"]) == SIZE, "every token belongs to one segment"
