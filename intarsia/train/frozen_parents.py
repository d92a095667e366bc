"""The frozen inlays on which jobs are built: on the device once, for all jobs of a queue. No optimizer holds them."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakValueDictionary

import torch

from intarsia.encoder.encoder import Encoder
from intarsia.methods import Method
from intarsia.methods.compose import direct_parents
from intarsia.methods.held import Held
from intarsia.tasks.learned import Learned


class FrozenParents:
    """Frozen inlays by digest, as long as a run uses them."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self._held: WeakValueDictionary[str, Held] = WeakValueDictionary()

    def of(self, method: Method, parents: Mapping[str, Learned]) -> dict[str, Held]:
        """Return the frozen inlays that are parts of a method, by digest; `parents`: all on which it is built."""
        found: dict[str, Held] = {}
        for part in direct_parents(method):
            held = self._held.get(part.digest)
            if held is None:
                held = self._held[part.digest] = self._load(parents[part.digest], parents)
            found[part.digest] = held
        return found

    def _load(self, learned: Learned, parents: Mapping[str, Learned]) -> Held:
        dtype = torch.float64 if self.encoder.dtype == torch.float64 else torch.float32
        tensors = {
            name: (tensor.to(self.encoder.device, dtype) if tensor.is_floating_point() else tensor).detach()[None]
            for name, tensor in learned.method_tensors.items()
        }
        low = tensors
        if dtype != self.encoder.dtype and self.encoder.device.type == "cuda":  # for recorded passes
            low = {name: t.to(self.encoder.dtype) if t.is_floating_point() else t for name, t in tensors.items()}
        return Held(learned.method, tensors, 0, self.of(learned.method, {**parents, **learned.parents}), low)
