"""Products by oneDNN: the same bits for any number of rows and threads; threads of a pass stay in its own thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from intarsia.encoder import onednn, pass_threads
from intarsia.encoder.owners import Owners, _grouped_linear, batched

needs_onednn = pytest.mark.skipif(not onednn.available(), reason="oneDNN lays out no weights on this machine")


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@needs_onednn
def test_a_row_has_the_same_bits_in_any_product(two_threads: None) -> None:
    draw = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*shape, generator=draw) for shape in ((600, 64), (96, 64), (96,)))
    whole = onednn.product(x, weight, bias)
    for rows in (1, 2, 7, 8, 33, 600):
        assert torch.equal(onednn.linear(x[:rows], weight, bias), whole[:rows])
        assert torch.equal(onednn.product(x[:rows], onednn.laid_out(weight), bias), whole[:rows])
        with pass_threads.of_pass(rows * 64):
            assert torch.equal(onednn.linear(x[:rows], weight, bias), whole[:rows])


@needs_onednn
def test_slices_have_the_weights_of_their_slots() -> None:
    draw = torch.Generator().manual_seed(0)
    x, weights, biases = (torch.randn(*shape, generator=draw) for shape in ((40, 16), (3, 24, 16), (3, 24)))
    slots, sizes = (2, 0, 2, 1), (1, 30, 8, 1)
    found = torch.cat(onednn.by_slices(x, weights, biases, slots, sizes))
    starts = [0, 1, 31, 39]
    for slot, size, start in zip(slots, sizes, starts, strict=True):
        rows = slice(start, start + size)
        assert torch.equal(found[rows], onednn.linear(x[rows], weights[slot], biases[slot]))
    x[39] = torch.nan  # a neighbour
    assert torch.equal(torch.cat(onednn.by_slices(x, weights, biases, slots, sizes))[:39], found[:39])


def test_a_pass_changes_the_threads_of_no_other_thread(two_threads: None) -> None:
    if pass_threads._libraries() is None:
        pytest.skip("PyTorch's OpenMP library was not found")
    seen: list[int] = []

    def look() -> None:
        seen.append(torch.get_num_threads())

    with pass_threads.of_pass(100):
        assert torch.get_num_threads() == 1
        assert pass_threads.product(1e9, torch.get_num_threads) == 2
        with pass_threads.of_pass(pass_threads.ELEMENTS):
            assert torch.get_num_threads() == 1  # one pass inside another is part of it
        other = threading.Thread(target=look)
        other.start()
        other.join()
    assert seen == [2] and torch.get_num_threads() == 2
    with pass_threads.of_pass(pass_threads.ELEMENTS):
        assert torch.get_num_threads() == 2
        assert pass_threads.product(1e3, torch.get_num_threads) == 1


def test_few_sizes_of_products() -> None:
    sizes = [onednn.size_for(rows) for rows in range(1, 4096)]
    assert all(rows <= size < rows + 64 for rows, size in enumerate(sizes, 1)) and len(set(sizes)) < 120


def test_the_batched_product_of_gpus_is_that_of_slices() -> None:
    draw = torch.Generator().manual_seed(0)
    x, weights, biases = (torch.randn(*shape, generator=draw) for shape in ((40, 16), (3, 24, 16), (3, 24)))
    owners = Owners((2, 0, 2, 1), (1, 30, 8, 1))
    for bias in (biases, None):
        expected = _grouped_linear(x, weights, bias, owners)
        assert torch.allclose(batched(x, weights, bias, owners), expected, atol=1e-5)
