"""Intarsia's entry in the attention registry of `transformers`: attention for the current pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder.attention import PrefixStates, additive_bias, packed_attention, padded_attention
from intarsia.encoder.parts import leaves
from intarsia.encoder.routed import Group, Pass
from intarsia.encoder.sites import PREFIX
from intarsia.encoder.static_shape import StaticBatch, StaticPrefixStates

NAME = "intarsia"


def prefix_of(current: Pass, layer: int, heads: int, dtype: torch.dtype) -> PrefixStates | StaticPrefixStates | None:
    """Return the prefix keys and values that the methods of a pass give each row in a layer; None without any."""
    groups = [g for g in current.groups if (PREFIX, layer) in g.places]
    if not groups:
        return None
    if isinstance(current.batch, StaticBatch):
        return current.batch.owners.prefix(groups[0].tensors, f"{layer}.{PREFIX}")
    sources = [_sources(group, layer) for group in groups]
    size = max(sum(tensors[f"{layer}.{PREFIX}.key"].shape[1] for tensors, _ in of_group) for of_group in sources)
    rows = current.packed.rows
    pieces: tuple[list[Tensor], list[Tensor]] = ([], [])
    absent = torch.ones(rows, size, dtype=torch.bool)
    done = 0  # rows
    for group, of_group in zip(groups, sources, strict=True):
        for which, parts in zip(("key", "value"), pieces, strict=True):
            found = [_by_row(group, slots, tensors[f"{layer}.{PREFIX}.{which}"], dtype) for tensors, slots in of_group]
            by_row = torch.cat(found, 1) if len(found) > 1 else found[0]  # [rows, P, d]
            if group.first > done:
                parts.append(by_row.new_zeros(group.first - done, size, by_row.shape[2]))
            parts.append(F.pad(by_row, (0, 0, 0, size - by_row.shape[1])))
        done = group.first + sum(group.rows)
        absent[group.first : done, : by_row.shape[1]] = False
    for parts in pieces:
        if done < rows:
            parts.append(parts[0].new_zeros(rows - done, *parts[0].shape[1:]))
    keys, values = (torch.cat(parts).view(rows, size, heads, -1) for parts in pieces)
    return PrefixStates(keys, values, absent.to(keys.device) if absent.any() else None)


def _sources(group: Group, layer: int) -> list[tuple[Mapping[str, Tensor], tuple[int, ...]]]:
    """Return the tensors with prefixes of a layer, and the slot of each owner in them; a composition may have many."""
    if not group.parts:
        return [(group.tensors, group.slots)]
    return [(part.tensors, part.slots) for part in leaves(group.parts) if (PREFIX, layer) in part.places]


def _by_row(group: Group, slots: tuple[int, ...], by_slot: Tensor, dtype: torch.dtype) -> Tensor:
    """[slots, P, d] → [rows, P, d], the owner's prefix for each row."""
    slot_of_row = [slot for slot, count in zip(slots, group.rows, strict=True) for _ in range(count)]
    return by_slot.index_select(0, torch.tensor(slot_of_row, device=by_slot.device)).to(dtype)


def registered_attention(
    module: Any,
    query: Tensor,  # [1, H, N, D] packed, [B, H, T, D] padded
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Return the attention output for `transformers`, which calls this function through its attention registry."""
    current: Pass | None = module.intarsia_switchboard.current
    if current is None:
        raise RuntimeError("this model belongs to an intarsia.Encoder: call the encoder's forward instead of the model")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    prefix = prefix_of(current, current.layer(module.intarsia_layers), query.shape[1], query.dtype)
    if current.padded:
        whole = current.packed.whole
        bias = additive_bias(whole, query.shape[1], sliding_window, None, query)
        assert not isinstance(prefix, StaticPrefixStates), "a pass of fixed shape is never padded"
        p = dropout if current.noise is not None and current.noise.dropout else 0.0
        out = padded_attention(query, key, value, bias, whole, prefix, scale, p)
        return out.transpose(1, 2).contiguous(), None
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))  # [N, H, D]
    out = packed_attention(
        q, k, v, current.batch, scale=scale, p=dropout, noise=current.noise, window=sliding_window, prefix=prefix
    )
    return out[None], None


def register() -> None:
    """Add `registered_attention` to the attention registry of `transformers`."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, registered_attention)
