"""Plain `transformers`, our padded layout and our packed layout compute the same, for every family."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import Segment, pack
from tests.support.families import FAMILY_NAMES, plain_model, tiny
from tests.support.segments import segments


@torch.no_grad()
def plain_states(model, rows: list[Segment], token_types: bool) -> torch.Tensor:  # type: ignore[no-untyped-def]
    longest = max(len(r.ids) for r in rows)
    ids = torch.full((len(rows), longest), model.config.pad_token_id)
    mask, types = torch.zeros_like(ids), torch.zeros_like(ids)
    for i, row in enumerate(rows):
        n = len(row.ids)
        ids[i, :n], mask[i, :n], types[i, :n] = torch.tensor(row.ids), 1, torch.tensor(row.types)
    inputs = {"token_type_ids": types} if token_types else {}
    return model(input_ids=ids, attention_mask=mask, **inputs).last_hidden_state[mask.bool()]


@pytest.mark.parametrize("pairs", [False, True], ids=["single", "pairs"])
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_plain_padded_and_packed_agree(family: str, pairs: bool) -> None:
    model, encoder = plain_model(family), tiny(family)
    longest = encoder.max_length
    rows = segments([1, 2, 5, longest, 17, 9, longest - 1, 3], pairs=pairs)
    expected = plain_states(model, rows, encoder.family.token_types)
    exact = plain_states(copy.deepcopy(model).double(), rows, encoder.family.token_types)
    batch = pack(rows)
    with torch.no_grad():
        packed, padded = encoder.forward(batch), encoder.forward(batch, padded=True)
    # The plain ModernBERT's own float32 rounding is 0.8e-5 to 1.5e-5, depending on the processor.
    limit = max(1e-5, 2 * float((expected - exact).abs().max()))
    assert (packed - exact).abs().max() <= limit
    assert (padded - exact).abs().max() <= limit


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_each_row_alone_is_what_it_is_in_a_batch(family: str) -> None:
    encoder = tiny(family)
    rows = segments([4, 30, 1, 11], pairs=False, seed=1)
    with torch.no_grad():
        together = encoder.forward(pack(rows)).split([len(r.ids) for r in rows])
        for row, states in zip(rows, together, strict=True):
            assert (encoder.forward(pack([row])) - states).abs().max() <= 1e-5


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_gradients_of_packed_and_padded_agree(family: str) -> None:
    encoder = tiny(family)
    batch = pack(segments([3, 21, 8], pairs=False))
    weight = encoder.at_site("embedding.norm", -1, "weight").tensor
    found = []
    for padded in (False, True):
        weight.requires_grad_()
        weight.grad = None
        encoder.forward(batch, padded=padded).square().sum().backward()
        found.append(weight.grad)
    weight.requires_grad_(False)
    assert torch.allclose(found[0], found[1], rtol=1e-3, atol=1e-3 * float(found[0].abs().max()))


def test_deberta_with_a_convolution_does_not_mix_rows() -> None:
    changes = {"conv_kernel_size": 3, "conv_act": "gelu"}
    model, encoder = plain_model("deberta-v2", **changes), tiny("deberta-v2", **changes)
    rows = segments([5, 12, 2], pairs=False)
    with torch.no_grad():
        assert (encoder.forward(pack(rows)) - plain_states(model, rows, True)).abs().max() <= 1e-5


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_packing_loses_and_mixes_nothing(lengths: list[int]) -> None:
    rows = segments(lengths, pairs=True)
    batch = pack(rows)
    assert batch.rows == len(lengths) and batch.tokens == sum(lengths)
    assert batch.ids.tolist() == [i for r in rows for i in r.ids]
    assert batch.positions.tolist() == [p for n in lengths for p in range(n)]
    assert sum(int((~b.padding).sum()) for b in batch.buckets) == batch.tokens
    tokens = torch.arange(batch.tokens)
    for buckets, places in ((batch.buckets, batch.unbucket), ((batch.whole,), batch.unpad)):
        blocks = torch.cat([tokens[b.tokens] for b in buckets])
        assert torch.equal(blocks[places], tokens)


def test_attaching_to_a_model_that_computes_otherwise_is_refused() -> None:
    from intarsia.errors import EncoderError

    model = plain_model("bert")
    plain = model.encoder.layer[0].output.dropout.forward
    model.encoder.layer[0].output.dropout.forward = lambda x: 2 * plain(x)  # lost at attaching, as a change upstream is
    with pytest.raises(EncoderError, match="changed its outputs"):
        Encoder(model, None, name="other")


def test_a_model_in_half_precision_is_checked_in_float32_and_stays_what_it_was() -> None:
    plain = plain_model("bert").bfloat16()
    held = Encoder(plain, None, name="half")
    same = Encoder(plain_model("bert").bfloat16().float(), None, name="whole")
    assert held.dtype == torch.bfloat16
    assert held.fingerprint == same.fingerprint
    held.check_frozen()
