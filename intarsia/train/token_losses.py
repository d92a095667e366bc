"""The heads and losses of all slots of a stack whose heads read every token: spans, and tags."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.static_shape import DeviceNoise
from intarsia.tasks.tagging import NO_TAG
from intarsia.train.device_tables import DeviceTables
from intarsia.train.head_losses import HeadLosses
from intarsia.train.training_slots import TrainingSlots

TOKEN_KINDS = ("span", "tags")


class TokenLosses(HeadLosses):
    """Rows are gathered from the stream of tokens into a block, [rows, longest, outputs]."""

    def __init__(
        self, kind: str, training_slots: TrainingSlots, encoder: Encoder, each: int, outputs: int, max_length: int
    ) -> None:
        self.kind = kind
        places = 2 if kind == "span" else max(128, 1 << (max_length - 1).bit_length())  # that a row asks about
        super().__init__(training_slots, encoder, "none", each, outputs, asked=places, nothing=NO_TAG)

    def losses(self, states: Tensor, tables: DeviceTables, noise: DeviceNoise, leaves: Mapping[str, Tensor]) -> Tensor:
        """[slots] the mean loss over each slot's rows, or words; 0 where it has none."""
        from intarsia.kernels import dropout, linear

        layout, x = tables.layout(), states.float()
        p = self.encoder.hidden_dropout
        if noise.dropout and p > 0.0:
            x = dropout.dropout(x, p, noise.site(), layout)
        weight, bias = leaves["head.output.weight"], leaves["head.output.bias"]
        logits = linear.linear(x, weight, bias, weight.detach(), layout)  # [tokens, outputs]
        rows = self.slots * self.each
        starts, lengths = tables["row_start"][:rows, None], tables["row_length"][:rows, None]
        steps = torch.arange(layout.longest, device=x.device)
        there = steps < lengths  # [rows, longest]
        index = (starts + steps).clamp_max(layout.tokens - 1)
        block = logits.index_select(0, index.view(-1)).view(rows, layout.longest, self.outputs)
        asked = self["targets"].view(rows, -1)
        losses = (self._of_spans if self.kind == "span" else self._of_tags)(block, there, asked)
        self.found.copy_(losses.detach())
        return losses

    def _of_spans(self, block: Tensor, there: Tensor, asked: Tensor) -> Tensor:
        some = there[:, 0]  # rows that there are
        held = torch.where(there[..., None], block, -torch.inf)
        held = torch.where(some[:, None, None], held, 0.0)
        at = asked.long().clamp(0, block.shape[1] - 1)  # [rows, 2]
        each = held.logsumexp(1) - held.gather(1, at[:, None])[:, 0]
        return self._mean(torch.where(some, each.mean(1), 0.0), some)

    def _of_tags(self, block: Tensor, there: Tensor, asked: Tensor) -> Tensor:
        wanted = asked[:, : block.shape[1]].long()
        tagged = there & (wanted != NO_TAG)
        each = block.logsumexp(-1) - block.gather(-1, wanted.clamp_min(0)[..., None])[..., 0]
        return self._mean(torch.where(tagged, each, 0.0), tagged)

    def _mean(self, each: Tensor, counted: Tensor) -> Tensor:
        """Over what is counted of each slot."""
        return each.view(self.slots, -1).sum(1) / counted.view(self.slots, -1).sum(1).clamp_min(1)
