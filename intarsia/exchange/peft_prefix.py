"""Prefix tuning of peft. The text's positions begin behind the prefix there, as if the prefix were tokens."""

from __future__ import annotations

from intarsia.encoder.sites import PREFIX
from intarsia.errors import ExchangeError
from intarsia.exchange.accounting import Flags
from intarsia.exchange.modules import Modules
from intarsia.exchange.peft_parts import PeftTensors, Read
from intarsia.methods import Prefix


def read_prefix(flags: Flags, tensors: PeftTensors, modules: Modules) -> Read:
    """Return prefix tuning with an offset of its size. The file has the keys and values that a projection gave."""
    flags.no_effect("encoder_hidden_size", "prefix_projection", "init_weights")
    flags.expect("num_transformer_submodules", None, 1)
    shape = modules.encoder.shape
    size = flags.whole("num_virtual_tokens", least=1, most=4096)
    for name, own in (("num_layers", shape.layers), ("token_dim", shape.width), ("num_attention_heads", shape.heads)):
        if flags.whole(name, own) != own:
            raise ExchangeError(
                f"{flags.where}: {name} is {flags.take(name)}; this base has {own}. The adapter was made for another "
                "base."
            )
    stored = tensors.weights.take("prompt_embeddings", (size, 2 * shape.layers * shape.width))
    parts = stored.view(size, shape.layers, 2, shape.width)  # k0 v0 k1 v1 …
    found = {
        f"{layer}.{PREFIX}.{kind}": parts[:, layer, which].clone()
        for layer in range(shape.layers)
        for which, kind in enumerate(("key", "value"))
    }
    return Read(Prefix(size=size, offset=size), found, longest=shape.positions - size)
