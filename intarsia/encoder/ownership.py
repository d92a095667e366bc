"""The operations that methods can use in every pass. `Owners` implements them for eager passes, `DeviceOwners` for
recorded passes. A method that uses only these operations computes the same in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from intarsia.encoder.noise import Noise
    from intarsia.encoder.parts import Part


class Ownership(Protocol):
    """Applies the tensors of each slot to the tokens that the slot owns."""

    @property
    def slots(self) -> Sequence[int]:
        """The slots that may own tokens here; a slot may occur twice."""

    @property
    def owner_of_token(self) -> Tensor:
        """[tokens] the slot that owns each token, as int64."""

    def of(self, part: Part) -> Ownership:
        """Return the owners in the slots of a part of a composition."""

    def for_each_token(self, by_slot: Tensor, dtype: torch.dtype) -> Tensor:
        """[slots, width] → [tokens, width], the owner's row for each token; or [width] if all tokens have one owner."""

    def linear(self, x: Tensor, tensors: Mapping[str, Tensor], name: str) -> Tensor:
        """x [tokens, in] → [tokens, out] with each owner's `name.weight` and, if it exists, `name.bias`."""

    def linear_transposed(self, x: Tensor, tensors: Mapping[str, Tensor], name: str) -> Tensor:
        """x [tokens, out] → [tokens, in] with the transpose of each owner's `name.weight` [out, in]."""

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
        """Return h + W_up act(W_down x + b_down) + b_up. If `p` > 0, x must be h, and dropout is applied to h first."""

    def layer_norm(self, x: Tensor, gain: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """Return LayerNorm of x with each owner's gain and bias, both [slots, width]."""

    def batch_norm(
        self, x: Tensor, tensors: Mapping[str, Tensor], name: str, training: bool, eps: float, momentum: float
    ) -> Tensor:
        """Return BatchNorm over the tokens of each owner. Eager passes only: methods that use it are not recordable."""
