"""The heads and losses of all training slots in one computation.

The slots may differ in task, task kind and number of labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder.device_tables import RING, DeviceTables
from intarsia.encoder.encoder import Encoder
from intarsia.encoder.static_shape import DeviceNoise
from intarsia.tasks.heads import Pooling
from intarsia.train.run import Run
from intarsia.train.training_slots import TrainingSlots

KINDS = {"label": 0.0, "labels": 1.0, "score": 2.0}


class HeadLosses:
    """The losses of `slot_rows` rows per slot, with heads padded to `outputs`; padding does not affect a loss."""

    def __init__(
        self,
        training_slots: TrainingSlots,
        encoder: Encoder,
        pooling: Pooling,
        slot_rows: int,
        outputs: int,
        row_targets: int | None = None,
        no_target: float = 0.0,
    ) -> None:
        """`row_targets`: target values per row (None: one per output). `no_target`: the value for a missing target."""
        self.encoder, self.pooling, self.slot_rows, self.outputs = encoder, pooling, slot_rows, outputs
        self.row_targets, self.no_target = row_targets or outputs, no_target
        slots, device = training_slots.slots.capacity, encoder.device
        self.slots = slots
        pinned = device.type == "cuda"
        lengths = {
            "rates": slots, "corrections": 2 * slots, "kinds": slots, "outputs": slots,
            "targets": slots * slot_rows * self.row_targets,
        }  # fmt: skip
        total = sum(lengths.values())
        self.on_device = torch.zeros(total, device=device)
        self.on_host = [torch.zeros(total, pin_memory=pinned) for _ in range(RING)]
        self.copied = [torch.cuda.Event() for _ in range(RING)] if pinned else []
        self.turn = 0
        self.ranges: dict[str, slice] = {}
        offset = 0
        for name, length in lengths.items():
            self.ranges[name] = slice(offset, offset + length)
            offset += length
        self.last_losses = torch.zeros(slots, device=device)
        indices = torch.arange(slots, dtype=torch.int32, device=device)
        self.row_tables = indices, indices * slot_rows  # each slot and its first row

    def __getitem__(self, name: str) -> Tensor:
        return self.on_device[self.ranges[name]]

    def fill(self, steps: Sequence[tuple[Run, np.ndarray]]) -> None:
        """Write each run's weighted targets and learning rate on the host and start their copy to the device."""
        self.turn = (self.turn + 1) % RING
        if self.copied:
            self.copied[self.turn].synchronize()
        host = self.on_host[self.turn]
        t = {name: host.numpy()[table_range] for name, table_range in self.ranges.items()}
        targets = t["targets"].reshape(self.slots, self.slot_rows, self.row_targets)
        for run, rows in steps:
            t["rates"][run.slot], t["kinds"][run.slot] = run.rate(), KINDS.get(run.task_kind.kind, 0.0)
            t["corrections"][2 * run.slot : 2 * run.slot + 2] = run.corrections()
            t["outputs"][run.slot] = run.task_kind.outputs
            slot_targets = targets[run.slot]
            slot_targets.fill(self.no_target)
            values = run.target_values[rows]
            slot_targets[: len(rows), : values.shape[1]] = values
        self.on_device.copy_(host, non_blocking=True)
        if self.copied:
            self.copied[self.turn].record()

    def losses(self, states: Tensor, tables: DeviceTables, noise: DeviceNoise, leaves: Mapping[str, Tensor]) -> Tensor:
        """Return the mean loss [slots] over each slot's rows; 0 for a slot without rows."""
        from intarsia.kernels import dropout, rows

        layout, d = tables.layout(), states.shape[1]
        x = rows.pool(states, self.slots * self.slot_rows, self.pooling == "mean", layout)  # [slots * rows, d] float32
        if self.pooling == "pooler":
            assert self.encoder.pooler is not None
            weight, bias = (w.float() for w in self.encoder.pooler)
            x = torch.tanh(F.linear(x, weight, bias))
        elif self.pooling == "trained-pooler":
            weight, bias = leaves["head.pooler.weight"], leaves["head.pooler.bias"]
            x = torch.tanh(torch.baddbmm(bias[:, None], x.view(self.slots, self.slot_rows, d), weight.transpose(1, 2)))
            x = x.view(-1, d)
        p = self.encoder.hidden_dropout
        if noise.dropout and p > 0.0:
            x = dropout.dropout_rows(x, p, noise.site(), self.slot_rows, layout, self.row_tables)
        weight, bias = leaves["head.output.weight"], leaves["head.output.bias"]
        logits = torch.baddbmm(bias[:, None], x.view(self.slots, self.slot_rows, d), weight.transpose(1, 2))
        present = tables["row_length"][: self.slots * self.slot_rows].view(self.slots, self.slot_rows) > 0
        losses = self._losses(logits, present)
        self.last_losses.copy_(losses.detach())
        return losses

    def _losses(self, logits: Tensor, present: Tensor) -> Tensor:
        """Return the mean loss [slots] over the `present` rows [slots, rows], by each slot's task kind."""
        kinds, counts = self["kinds"][:, None], self["outputs"][:, None]
        real = torch.arange(self.outputs, device=logits.device) < counts  # [slots, outputs]; False: padding
        real = real[:, None, :].expand_as(logits)
        targets = self["targets"].view(logits.shape)
        masked = torch.where(real, logits, 0.0)
        # The target of a true label is its weight in the loss, which is 1 without class weights.
        one_label = torch.where(real, logits, -torch.inf).logsumexp(-1) * targets.sum(-1) - (targets * masked).sum(-1)
        applies = (targets > 0).float()
        several_labels = F.binary_cross_entropy_with_logits(masked, applies, reduction="none")
        several_labels = several_labels * torch.where(targets > 0, targets, 1.0)
        several_labels = torch.where(real, several_labels, 0.0).sum(-1) / counts.clamp_min(1.0)
        score = (masked[..., 0] - targets[..., 0]) ** 2
        losses = torch.where(kinds == 0.0, one_label, torch.where(kinds == 1.0, several_labels, score))
        losses = torch.where(present, losses, 0.0)
        return losses.sum(1) / present.sum(1).clamp_min(1)

    def fetch(self) -> tuple[Tensor, Any]:
        """Return the losses of the last started pass, and the event that marks them as copied (None: they are)."""
        if not self.copied:
            return self.last_losses.clone(), None
        host = torch.empty(self.slots, pin_memory=True)
        host.copy_(self.last_losses, non_blocking=True)
        ready = torch.cuda.Event()
        ready.record()
        return host, ready
