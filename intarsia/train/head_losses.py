"""The heads and losses of all slots of a stack at once: other tasks, kinds and numbers of labels side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.static_shape import DeviceNoise
from intarsia.tasks.heads import Pooling
from intarsia.train.device_tables import RING, DeviceTables
from intarsia.train.run import Run
from intarsia.train.training_slots import TrainingSlots

KINDS = {"label": 0.0, "labels": 1.0, "score": 2.0}


class HeadLosses:
    """`each` rows a slot, heads padded to `outputs`: what is not a slot's own takes no part in its loss."""

    def __init__(
        self,
        training_slots: TrainingSlots,
        encoder: Encoder,
        pooling: Pooling,
        each: int,
        outputs: int,
        asked: int | None = None,
        nothing: float = 0.0,
    ) -> None:
        """`asked`: numbers that a row asks for (None: one for each output); `nothing` stands for one that is not."""
        self.encoder, self.pooling, self.each, self.outputs = encoder, pooling, each, outputs
        self.asked, self.nothing = asked or outputs, nothing
        slots, device = training_slots.slots.capacity, encoder.device
        self.slots = slots
        pinned = device.type == "cuda"
        lengths = {
            "rates": slots, "corrections": 2 * slots, "kinds": slots, "outputs": slots,
            "targets": slots * each * self.asked,
        }  # fmt: skip
        total = sum(lengths.values())
        self.on_device = torch.zeros(total, device=device)
        self.on_host = [torch.zeros(total, pin_memory=pinned) for _ in range(RING)]
        self.copied = [torch.cuda.Event() for _ in range(RING)] if pinned else []
        self.turn = 0
        self.places: dict[str, slice] = {}
        at = 0
        for name, length in lengths.items():
            self.places[name] = slice(at, at + length)
            at += length
        self.found = torch.zeros(slots, device=device)
        steps = torch.arange(slots, dtype=torch.int32, device=device)
        self.row_tables = steps, steps * each  # every slot has its rows

    def __getitem__(self, name: str) -> Tensor:
        return self.on_device[self.places[name]]

    def fill(self, steps: Sequence[tuple[Run, np.ndarray]]) -> None:
        """What each run's rows ask for, and its learning rate."""
        self.turn = (self.turn + 1) % RING
        if self.copied:
            self.copied[self.turn].synchronize()
        host = self.on_host[self.turn]
        t = {name: host.numpy()[place] for name, place in self.places.items()}
        targets = t["targets"].reshape(self.slots, self.each, self.asked)
        for run, rows in steps:
            t["rates"][run.slot], t["kinds"][run.slot] = run.rate(), KINDS.get(run.task_kind.kind, 0.0)
            t["corrections"][2 * run.slot : 2 * run.slot + 2] = run.corrections()
            t["outputs"][run.slot] = run.task_kind.outputs
            own = targets[run.slot]
            own.fill(self.nothing)
            wanted = run.wanted[rows]
            own[: len(rows), : wanted.shape[1]] = wanted
        self.on_device.copy_(host, non_blocking=True)
        if self.copied:
            self.copied[self.turn].record()

    def losses(self, states: Tensor, tables: DeviceTables, noise: DeviceNoise, leaves: Mapping[str, Tensor]) -> Tensor:
        """[slots] the mean loss over each slot's rows; 0 where it has none."""
        from intarsia.kernels import dropout, rows

        layout, d = tables.layout(), states.shape[1]
        x = rows.pool(states, self.slots * self.each, self.pooling == "mean", layout)  # [slots * each, d] float32
        if self.pooling == "pooler":
            assert self.encoder.pooler is not None
            weight, bias = (w.float() for w in self.encoder.pooler)
            x = torch.tanh(F.linear(x, weight, bias))
        elif self.pooling == "trained-pooler":
            weight, bias = leaves["head.pooler.weight"], leaves["head.pooler.bias"]
            x = torch.tanh(torch.baddbmm(bias[:, None], x.view(self.slots, self.each, d), weight.transpose(1, 2)))
            x = x.view(-1, d)
        p = self.encoder.hidden_dropout
        if noise.dropout and p > 0.0:
            x = dropout.dropout_rows(x, p, noise.site(), self.each, layout, self.row_tables)
        weight, bias = leaves["head.output.weight"], leaves["head.output.bias"]
        logits = torch.baddbmm(bias[:, None], x.view(self.slots, self.each, d), weight.transpose(1, 2))
        there = tables["row_length"][: self.slots * self.each].view(self.slots, self.each) > 0
        losses = self._losses(logits, there)
        self.found.copy_(losses.detach())
        return losses

    def _losses(self, logits: Tensor, there: Tensor) -> Tensor:
        kinds, counts = self["kinds"][:, None], self["outputs"][:, None]
        own = torch.arange(self.outputs, device=logits.device) < counts  # [slots, outputs]
        own = own[:, None, :].expand_as(logits)
        targets = self["targets"].view(logits.shape)
        held = torch.where(own, logits, 0.0)
        one = torch.where(own, logits, -torch.inf).logsumexp(-1) - (targets * held).sum(-1)  # of n labels
        several = F.binary_cross_entropy_with_logits(held, targets, reduction="none")
        several = torch.where(own, several, 0.0).sum(-1) / counts.clamp_min(1.0)
        number = (held[..., 0] - targets[..., 0]) ** 2
        each = torch.where(kinds == 0.0, one, torch.where(kinds == 1.0, several, number))
        each = torch.where(there, each, 0.0)
        return each.sum(1) / there.sum(1).clamp_min(1)

    def fetch(self) -> tuple[Tensor, Any]:
        """The losses of the pass just started, and the event after which they are there."""
        if not self.copied:
            return self.found.clone(), None
        host = torch.empty(self.slots, pin_memory=True)
        host.copy_(self.found, non_blocking=True)
        ready = torch.cuda.Event()
        ready.record()
        return host, ready
