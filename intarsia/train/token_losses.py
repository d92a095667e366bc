"""The heads and losses of all training slots for task kinds that read every token: spans and tags."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from intarsia.encoder.device_tables import DeviceTables
from intarsia.encoder.encoder import Encoder
from intarsia.encoder.static_shape import DeviceNoise
from intarsia.tasks.tagging import NO_TAG
from intarsia.train.head_losses import HeadLosses
from intarsia.train.training_slots import TrainingSlots

TOKEN_KINDS = ("span", "tags")


class TokenLosses(HeadLosses):
    """The losses of heads that read tokens, computed on rows gathered into a block [rows, longest, outputs]."""

    def __init__(
        self, kind: str, training_slots: TrainingSlots, encoder: Encoder, slot_rows: int, outputs: int, max_length: int
    ) -> None:
        self.kind = kind
        # A span has two targets, its first and last token. Tags have one target per token.
        targets = 2 if kind == "span" else max(128, 1 << (max_length - 1).bit_length())
        super().__init__(training_slots, encoder, "none", slot_rows, outputs, row_targets=targets, no_target=NO_TAG)

    def losses(self, states: Tensor, tables: DeviceTables, noise: DeviceNoise, leaves: Mapping[str, Tensor]) -> Tensor:
        """Return the mean loss [slots] over each slot's rows (spans) or tagged words (tags); 0 if there are none."""
        from intarsia.kernels import dropout, linear

        layout, x = tables.layout(), states.float()
        p = self.encoder.hidden_dropout
        if noise.dropout and p > 0.0:
            x = dropout.dropout(x, p, noise.site(), layout)
        weight, bias = leaves["head.output.weight"], leaves["head.output.bias"]
        logits = linear.linear(x, weight, bias, weight.detach(), layout)  # [tokens, outputs]
        rows = self.slots * self.slot_rows
        starts, lengths = tables["row_start"][:rows, None], tables["row_length"][:rows, None]
        positions = torch.arange(layout.longest, device=x.device)
        present = positions < lengths  # [rows, longest]
        index = (starts + positions).clamp_max(layout.tokens - 1)
        block = logits.index_select(0, index.view(-1)).view(rows, layout.longest, self.outputs)
        targets = self["targets"].view(rows, -1)
        losses = (self._span_losses if self.kind == "span" else self._tag_losses)(block, present, targets)
        self.last_losses.copy_(losses.detach())
        return losses

    def _span_losses(self, block: Tensor, present: Tensor, targets: Tensor) -> Tensor:
        present_rows = present[:, 0]
        masked = torch.where(present[..., None], block, -torch.inf)
        masked = torch.where(present_rows[:, None, None], masked, 0.0)
        ends = targets.long().clamp(0, block.shape[1] - 1)  # [rows, 2]: the first and last token
        losses = masked.logsumexp(1) - masked.gather(1, ends[:, None])[:, 0]
        return self._slot_means(torch.where(present_rows, losses.mean(1), 0.0), present_rows)

    def _tag_losses(self, block: Tensor, present: Tensor, targets: Tensor) -> Tensor:
        tags = targets[:, : block.shape[1]].long()
        tagged = present & (tags != NO_TAG)
        losses = block.logsumexp(-1) - block.gather(-1, tags.clamp_min(0)[..., None])[..., 0]
        return self._slot_means(torch.where(tagged, losses, 0.0), tagged)

    def _slot_means(self, losses: Tensor, counted: Tensor) -> Tensor:
        """Return the mean loss [slots] over the counted places of each slot."""
        return losses.view(self.slots, -1).sum(1) / counted.view(self.slots, -1).sum(1).clamp_min(1)
