"""A checkpoint that was altered is found: a run never goes on from it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from intarsia.train.checkpoint import State, read, write


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    tensors = {"now": torch.randn(1, 40), "kept.mask": torch.tensor([True, False]), "empty": torch.empty(1, 0)}
    state = State(step=7, best=0.5, history=[{"epoch": 1, "loss": 0.25}])
    write(path, state, tensors)
    intact = path.read_bytes()
    stored = read(path)
    assert stored is not None and stored[0] == state and stored[1].keys() == tensors.keys()
    assert all(torch.equal(stored[1][name], tensor) for name, tensor in tensors.items())
    draw = random.Random(0)
    for position in {*range(8), *draw.sample(range(len(intact)), 200)}:
        altered = bytearray(intact)
        altered[position] ^= 1 << draw.randrange(8)
        path.write_bytes(altered)
        with pytest.warns(UserWarning, match="is damaged and is not used"):
            assert read(path) is None, position


def test_a_checkpoint_without_its_checksum_is_no_checkpoint(tmp_path: Path) -> None:
    """One flipped bit may make the name of the checksum another name."""
    path = tmp_path / "state.safetensors"
    write(path, State(), {"now": torch.zeros(1, 1)})
    path.write_bytes(path.read_bytes().replace(b'"checksum"', b'"checkrum"'))
    with pytest.warns(UserWarning, match="is damaged"):
        assert read(path) is None
