"""What every kind of ownership offers to the methods of a pass: `Owners` in eager passes, `DeviceOwners` in recorded
ones. A method that keeps to these operations computes the same in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from intarsia.encoder.noise import Noise


class Ownership(Protocol):
    @property
    def slots(self) -> Sequence[int]:
        """The slots that may own tokens here; one may be named twice."""

    @property
    def owner_of_token(self) -> Tensor:
        """[tokens] the slot number of each token's owner, as int64."""

    def for_each_token(self, stacked: Tensor, dtype: torch.dtype) -> Tensor:
        """[slots, width] → [tokens, width], each token its owner's; or [width], where all tokens have one owner."""

    def linear(self, x: Tensor, tensors: Mapping[str, Tensor], name: str) -> Tensor:
        """x [tokens, in] → [tokens, out] with each owner's `name.weight` and, if there, `name.bias`."""

    def bottleneck(
        self,
        h: Tensor,
        x: Tensor,
        tensors: Mapping[str, Tensor],
        name: str,
        activation: str,
        p: float = 0.0,
        noise: Noise | None = None,
    ) -> Tensor:
        """h + W_up act(W_down x + b_down) + b_up. `p` above 0: h, which then is x, first goes through this dropout."""

    def layer_norm(self, x: Tensor, gain: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """LayerNorm with each owner's gain and bias, both [slots, width]."""

    def batch_norm(
        self, x: Tensor, tensors: Mapping[str, Tensor], name: str, training: bool, eps: float, momentum: float
    ) -> Tensor:
        """BatchNorm over each owner's own tokens. Eager passes only: a method that calls it is not recordable."""
