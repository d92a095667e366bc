"""A pass that is given what enters a layer computes what a whole pass does, and nothing below; for every family."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.noise import Noise
from intarsia.encoder.packed import Batch, pack
from intarsia.encoder.routed import Group
from intarsia.encoder.sites import layer_paths
from intarsia.encoder.slots import Slots, start
from intarsia.methods import PAL, Bapna, BitFit, Bottleneck, Full, LayerNorms, LoRA, LotteryTicket, Method, TopLayers
from intarsia.methods.method import lowest
from tests.support.families import FAMILY_NAMES, plain_model, tiny
from tests.support.segments import segments

LENGTHS = [3, 21, 8, 1, 33]


def batch_of_rows() -> Batch:
    return pack(segments(LENGTHS, pairs=True))


def groups(encoder: Encoder, methods: list[Method], dtype: torch.dtype = torch.float32) -> list[Group]:
    """Two rows for each method, the rest plain; lively tensors."""
    found = []
    for i, method in enumerate(methods):
        specs = method.tensors(encoder.shape)
        slots = Slots(specs, 1)
        slots.put(0, start(specs, encoder, i))
        draw = torch.Generator().manual_seed(i)
        slots.buffer.add_(0.2 * torch.randn(slots.buffer.shape, generator=draw))
        leaves = {k: v.detach().to(dtype).clone().requires_grad_() for k, v in slots.tensors.items()}
        found.append(Group(method, method.places(encoder.shape), leaves, 2 * i, (0,), (2,)))
    return found


@contextmanager
def counted(encoder: Encoder) -> Iterator[list[int]]:
    """The layers whose attention runs, in their order."""
    found: list[int] = []
    handles = []
    for path, layers in layer_paths(encoder.family, encoder.model):
        module = encoder.model.get_submodule(f"{path}.{encoder.family.attention}")

        def note(*_: Any, layers: tuple[int, ...] = layers) -> None:
            current = encoder.switchboard.current
            assert current is not None
            found.append(current.layer(layers))

        handles.append(module.register_forward_pre_hook(note))
    yield found
    for handle in handles:
        handle.remove()


@torch.no_grad()
@pytest.mark.parametrize("padded", [False, True], ids=["packed", "padded"])
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_pass_from_a_layer_on_is_the_rest_of_a_whole_pass(family: str, padded: bool) -> None:
    encoder, batch = tiny(family), batch_of_rows()
    whole = encoder.forward(batch, padded=padded)
    layers = encoder.shape.layers
    for k in range(layers):
        with counted(encoder) as below:
            states = encoder.states_below(batch, k)
        with counted(encoder) as above:
            rest = encoder.forward(batch, above=(k, states), padded=padded)
        assert states.shape == (batch.tokens, encoder.shape.width) and not states.requires_grad
        assert (rest - whole).abs().max() <= 1e-5 if padded else (rest - whole).abs().max() <= 1e-6
        assert (below, above) == (list(range(k)), list(range(k, layers)))


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_what_enters_a_layer_is_what_the_one_below_gave(family: str) -> None:
    encoder, batch = tiny(family), batch_of_rows()
    behind = encoder.layer_states(batch)
    for k in range(1, encoder.shape.layers):
        assert (encoder.states_below(batch, k) - behind[k - 1]).abs().max() <= 1e-6
    assert [s.shape for s in encoder.layer_states(batch)] == [(batch.tokens, encoder.shape.width)] * len(behind)


def changing(family: str) -> list[tuple[int, list[Method]]]:
    top = tiny(family).shape.layers - 1
    upper = tuple(range(1, top + 1))
    pal = PAL(8, 4, layers=(top,))
    return [
        (1, [Bottleneck(5, layers=upper), LoRA(3, layers=upper)]),
        (top, [Bottleneck(5, layers=(top,), parallel=True), pal]),
        (1, [pal, LayerNorms(layers=upper)]),
        (top, [Bapna(5, layers=(top,)), Bottleneck(4, layers=(top,))]),
    ]


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_methods_in_upper_layers_have_the_same_states_and_gradients(family: str) -> None:
    encoder, batch = tiny(family).to(dtype=torch.float64), batch_of_rows()
    for k, methods in changing(family):
        assert min(lowest(m, encoder.shape) for m in methods) == k
        made = groups(encoder, methods, torch.float64)
        leaves = [leaf for g in made for leaf in g.tensors.values()]
        found: list[tuple[Tensor, ...]] = []
        for above in (None, (k, encoder.states_below(batch, k))):
            states = encoder.forward(batch, made, training=True, above=above)
            gradients = torch.autograd.grad(states.sin().sum(), leaves, allow_unused=True)
            found.append((states.detach(), *(torch.zeros(()) if g is None else g for g in gradients)))
        assert not torch.allclose(found[0][0], encoder.forward(batch), atol=1e-2)
        for whole, rest in zip(*found, strict=True):
            assert (whole - rest).abs().max() <= 1e-9


@torch.no_grad()
def test_shared_layers_act_with_the_tensors_of_their_own_number() -> None:
    encoder, batch = tiny("albert", inner_group_num=2), batch_of_rows()
    assert encoder.shape.layers == 8
    for k in (1, 4, 7):
        made = groups(encoder, [Bottleneck(5, layers=tuple(range(k, 8)))])
        whole = encoder.forward(batch, made)
        assert (encoder.forward(batch, made, above=(k, encoder.states_below(batch, k))) - whole).abs().max() <= 1e-5


@torch.no_grad()
def test_a_convolution_belongs_to_what_enters_the_second_layer() -> None:
    encoder, batch = tiny("deberta-v2", conv_kernel_size=3, conv_act="gelu"), batch_of_rows()
    plain = plain_model("deberta-v2", conv_kernel_size=3, conv_act="gelu")
    calls: list[int] = []
    encoder.model.encoder.conv.inner.register_forward_pre_hook(lambda *_: calls.append(1))
    whole = encoder.forward(batch)
    states = [encoder.states_below(batch, k) for k in range(3)]
    assert len(calls) == 1 + 2
    for k in range(3):
        assert (encoder.forward(batch, above=(k, states[k])) - whole).abs().max() <= 1e-6
    assert len(calls) == 1 + 2 + 1
    alone = pack(segments([LENGTHS[0]], pairs=True))
    hidden = plain(alone.ids[None], token_type_ids=alone.types[None], output_hidden_states=True).hidden_states
    assert (encoder.states_below(alone, 1) - hidden[1][0]).abs().max() <= 1e-5


def test_dropout_is_that_of_the_computed_layers_alone() -> None:
    encoder, batch = tiny("bert"), batch_of_rows()
    states = encoder.states_below(batch, 2)

    class Counting(Noise):
        drawn = 0

        def keep(self, shape: Any, p: float) -> Tensor:
            self.drawn += 1
            return super().keep(shape, p)

    noise = [Counting([0], encoder.device) for _ in range(2)]
    encoder.forward(batch, noise=noise[0])
    first = encoder.forward(batch, noise=noise[1], above=(2, states))
    assert noise[0].drawn - 1 == 3 * noise[1].drawn  # embeddings and three layers, or the last alone
    assert torch.equal(first, encoder.forward(batch, noise=Noise([0], encoder.device), above=(2, states)))


def test_weights_of_the_top_layers_stand_for_the_base_in_such_a_pass() -> None:
    encoder, batch = tiny("roberta"), batch_of_rows()
    method = TopLayers(1)
    k = lowest(method, encoder.shape)
    own = {w.name: (encoder.weights[w.name] * 1.3).requires_grad_() for w in method.trained(encoder.shape)}
    states = encoder.states_below(batch, k)
    whole, rest = encoder.forward(batch, weights=own), encoder.forward(batch, weights=own, above=(k, states))
    assert (whole - rest).abs().max() <= 1e-6 and not torch.allclose(rest, encoder.forward(batch), atol=1e-2)
    rest.sum().backward()
    assert any(w.grad is not None for w in own.values())


def test_the_lowest_layer_of_a_method() -> None:
    bert, modern, albert = (tiny(f).shape for f in ("bert", "modernbert", "albert"))
    assert lowest(Bottleneck(4), bert) == 0
    assert lowest(Bottleneck(4, layers=(1, 2)), bert) == lowest(Bottleneck(4, layers=(1, 2)), modern) == 1
    assert lowest(Bottleneck(4, layers=(2,), embedding_norm=True), bert) == 0
    assert lowest(BitFit(), bert) == 0 and lowest(BitFit(layers=(2,)), bert) == 2
    assert lowest(LayerNorms(layers=(2,)), modern) == 2
    assert lowest(BitFit(sites=("final.norm",), layers=None), tiny("modernbert", norm_bias=True).shape) == 2
    assert [lowest(TopLayers(n), bert) for n in (1, 2, 3)] == [2, 1, 0]
    assert lowest(Full(), bert) == lowest(LotteryTicket(0.1), bert) == lowest(Full(), albert) == 0
    assert lowest(Bottleneck(4, layers=(3,)), albert) == 3  # a task's own tensors, though the base's are shared


def test_wrong_layers_and_states_are_refused() -> None:
    encoder, batch = tiny("bert"), batch_of_rows()
    with pytest.raises(ValueError, match="layers 0 to 2"):
        encoder.states_below(batch, 3)
    with pytest.raises(ValueError, match="66 tokens"):
        encoder.forward(batch, above=(1, torch.zeros(5, 32)))
