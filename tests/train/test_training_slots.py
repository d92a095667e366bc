"""Slots of runs of one shape."""

from __future__ import annotations

import torch

from intarsia.methods import Bottleneck, Spec
from intarsia.train.optimizer import AdamSettings
from intarsia.train.training_slots import TrainingSlots
from tests.support.families import tiny_with_words


def test_a_start_is_remembered_with_all_that_makes_it() -> None:
    encoder = tiny_with_words()
    methods = [Bottleneck(4, std=std) for std in (1e-2, 1e-1, 1e-2)]
    training_slots = TrainingSlots(methods[0].tensors(encoder.shape), 3, AdamSettings(), encoder)
    rows = [training_slots.fresh(method.tensors(encoder.shape), {}, encoder, seed=0) for method in methods]
    assert rows[0] is rows[2]
    assert not torch.equal(rows[0], rows[1])


def test_what_a_run_does_not_have_stays_zero_in_its_slot() -> None:
    encoder = tiny_with_words()
    own = {"a": Spec((2, 3), "ones"), "b": Spec((2,), "ones")}
    whole = {"a": Spec((4, 3), "zeros"), "b": Spec((2,), "zeros"), "padding": Spec((5,), "zeros", trained=False)}
    training_slots = TrainingSlots(whole, 2, AdamSettings(), encoder)
    slot, index = training_slots.take(), training_slots.index(own)
    row = torch.arange(1.0, 9.0)[None]
    training_slots.write(training_slots.slots.buffer, slot, index, row)
    assert torch.equal(training_slots.read(training_slots.slots.buffer, slot, index), row)
    assert training_slots.slots.buffer[slot].tolist() == [1, 2, 3, 4, 5, 6, *[0] * 6, 7, 8, *[0] * 5]
    assert training_slots.index(whole) is None
