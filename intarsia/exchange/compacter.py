"""The matrices of Compacter (Karimi Mahabadi et al. 2021), multiplied out: sums of Kronecker products."""

from __future__ import annotations

import torch
from torch import Tensor

from intarsia.errors import ExchangeError
from intarsia.exchange.accounting import Flags
from intarsia.exchange.adapterhub_names import HubTensors

PHM_FLAGS = (
    "phm_dim", "shared_phm_rule", "factorized_phm_rule", "learn_phm", "factorized_phm_W", "shared_W_phm", "phm_c_init",
    "phm_init_range", "hypercomplex_nonlinearity", "phm_rank", "phm_bias",
)  # fmt: skip


class Compacter:
    """A matrix is the sum over i of rule[i] ⊗ W[i], with n rules [n, n] and matrices [in / n, out / n]. Rules and
    matrices may be products of two factors, and shared by all layers."""

    def __init__(self, flags: Flags, tensors: HubTensors) -> None:
        self.tensors, self.n = tensors, flags.whole("phm_dim", 4, least=1, most=4096)
        self.rank = flags.whole("phm_rank", 1, least=1, most=4096)
        self.bias = flags.yes("phm_bias", True)
        self.shared_rule, self.factored_rule = flags.yes("shared_phm_rule", True), flags.yes("factorized_phm_rule")
        self.shared_w, self.factored_w = flags.yes("shared_W_phm"), flags.yes("factorized_phm_W", True)
        self._shared: dict[str, Tensor] = {}

    def matrix(self, path: str, position: str, inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
        """Return the weight [outputs, inputs] and the bias of a layer."""
        n, r = self.n, self.rank
        if inputs % n or outputs % n:
            raise ExchangeError(f"{path}: phm_dim {n} does not divide {inputs} and {outputs}.")
        if self.factored_rule:
            left, right = (self._part(path, "phm_rule", side, shape, self.shared_rule) for side, shape in
                           (("_left", (n, n, 1)), ("_right", (n, 1, n))))  # fmt: skip
            rule = torch.bmm(left, right)
        else:
            rule = self._part(path, "phm_rule", "", (n, n, n), self.shared_rule)
        name = f"W_{position}" if self.shared_w else "W"
        if self.factored_w:
            left = self._part(path, name, "_left", (n, inputs // n, r), self.shared_w)
            right = self._part(path, name, "_right", (n, r, outputs // n), self.shared_w)
            w = torch.bmm(left, right)
        else:
            w = self._part(path, name, "", (n, inputs // n, outputs // n), self.shared_w)
        whole = torch.einsum("iab,icd->acbd", rule.double(), w.double()).reshape(inputs, outputs)
        bias = self.tensors.weights.take(f"{path}.b", (outputs,)) if self.bias else torch.zeros(outputs)
        return whole.T.float().contiguous(), bias

    def _part(self, path: str, name: str, side: str, shape: tuple[int, ...], shared: bool) -> Tensor:
        if not shared:
            return self.tensors.weights.take(f"{path}.{name}{side}", shape)
        key = f"{name}{side}"
        if key not in self._shared:
            self._shared[key] = self.tensors.weights.take(self.tensors.shared(key), shape)
        return self._shared[key]
