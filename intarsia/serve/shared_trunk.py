"""Rows of one text in a pass share the layers in which their tasks compute the same.

The answers of several tasks to one text differ only from the lowest layer in which one of the tasks acts. The pass runs
the layers below once for each text, and the layers above for each row. Inlays on which several tasks are built, as a
language below its tasks, belong to the shared layers too.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from intarsia.encoder.packed import Batch, Segment
from intarsia.encoder.shape import Shape
from intarsia.methods import Method
from intarsia.methods.below import frozen_key, lowest_trained


@dataclass(frozen=True)
class SharedTrunk:
    """The layer from which on every row is computed, and the rows that stand for the others below it."""

    layer: int
    rows: list[int]  # computed below the layer, ascending
    source: list[int]  # of every row: the place in `rows` of the row that stands for it

    def expanded(self, states: Tensor, below: Batch) -> Tensor:
        """Return the states of all rows from those of `rows` (the batch `below`)."""
        offsets, lengths = torch.tensor(below.offsets), torch.tensor([below.lengths[i] for i in self.source])
        starts = offsets[self.source].repeat_interleave(lengths)  # [N]
        ends = lengths.cumsum(0)
        steps = torch.arange(int(ends[-1])) - (ends - lengths).repeat_interleave(lengths)
        return states.index_select(0, (starts + steps).to(states.device))


def shared_trunk(
    segments: Sequence[Segment], keys: Sequence[str | None], methods: Mapping[str | None, Method | None], shape: Shape
) -> SharedTrunk | None:
    """Return what the rows of a pass can share, or None. `keys` are the rows' tasks, `methods` the method of each.

    The layer is the one that saves most: below a higher layer, fewer tasks compute the same.
    """
    if len(methods) == 1:
        return None
    texts: dict[Hashable, int] = {}
    text_of = [texts.setdefault((s.second, *s.ids, None, *(s.types or ())), row) for row, s in enumerate(segments)]
    if len(texts) == len(segments):
        return None
    own = {key: shape.layers if method is None else lowest_trained(method, shape) for key, method in methods.items()}
    # A mix of all layers sums states from its lowest layer on, which only one pass can do.
    highest = min((own[key] for key, method in methods.items() if method is not None and method.cached), default=None)
    best: tuple[int, int, list[tuple[int, Hashable]]] | None = None
    for layer in sorted({min(layer, shape.layers - 1) for layer in own.values()} - {0}):
        if highest is not None and layer > highest:
            break
        computed = {key: _below(key, method, layer, own[key], shape) for key, method in methods.items()}
        shared = [(text, computed[key]) for text, key in zip(text_of, keys, strict=True)]
        saved = layer * (sum(len(s.ids) for s in segments) - sum(len(segments[text].ids) for text, _ in set(shared)))
        if saved > (0 if best is None else best[0]):
            best = saved, layer, shared
    if best is None:
        return None
    _, layer, shared = best
    first: dict[tuple[int, Hashable], int] = {}
    for row, what in enumerate(shared):
        first.setdefault(what, row)
    place = {what: number for number, what in enumerate(first)}
    return SharedTrunk(layer, list(first.values()), [place[what] for what in shared])


def _below(key: str | None, method: Method | None, layer: int, own: int, shape: Shape) -> Hashable:
    """Return a key that is equal for tasks which compute the same below a layer."""
    if method is None:
        return None
    return ("task", key) if own < layer else frozen_key(method, layer, shape)
