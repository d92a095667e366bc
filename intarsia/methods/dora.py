"""DoRA (Liu et al. 2024): LoRA that learns the magnitude and the direction of each output separately, as in peft.

y = m / |W + s B A| * (W + s B A) x + bias, with s = alpha / r and | | the norm of each row. No gradient flows through
the norm. The inlay stores m - |W| instead of m: with m - |W| = 0 and B = 0 the method is exactly the base.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from intarsia.encoder.compiled_site import CompiledSite
from intarsia.methods.lora import LoRA
from intarsia.methods.method import Plain, Preset, Spec, Tensors

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.shape import Shape
    from intarsia.encoder.site_view import SiteView

_MIN_NORM = 1e-12  # avoids a division by 0 for rows of zeros


@dataclass(frozen=True)
class DoRA(LoRA):
    """LoRA differences of rank `rank`, and a magnitude for each output of the target linear layers."""

    name: ClassVar[str] = "dora"
    paper: ClassVar[str] = "Liu et al. 2024"
    trains: ClassVar[str] = "low-rank directions and magnitudes of query and value"
    presets: ClassVar[Mapping[str, Preset]] = {"dora": Preset("rank")}

    def compiled(self, shape: Shape) -> Mapping[tuple[str, int], CompiledSite]:
        sites = super().compiled(shape)
        return {place: replace(site, magnitude=site.difference is not None) for place, site in sites.items()}

    def tensors(self, shape: Shape) -> dict[str, Spec]:
        magnitudes = {f"{n.layer}.{n.site}.magnitude": Spec((n.outputs,), "zeros") for n in self._linears(shape)}
        return super().tensors(shape) | magnitudes

    def count(self, shape: Shape) -> int:
        return super().count(shape) + sum(n.outputs for n in self._linears(shape))

    @property
    def not_merged(self) -> str:
        return "each scale depends on the norm of the whole changed weight, so no DoRA computes the sum of two"

    def change(self, view: SiteView, h: Tensor) -> Tensor:
        return self.output(view, h) - h

    def sole(self, shape: Shape) -> tuple[frozenset[tuple[str, int]], str]:
        places = frozenset((n.site, n.layer) for n in self._linears(shape))
        return places, "DoRA scales the whole output of a linear layer, so the differences cannot be added."

    def _changed(self, view: SiteView, h: Tensor, name: str) -> Tensor:
        import torch.nn.functional as F

        assert view.input is not None
        weight = view.module.weight if view.columns is None else view.module.weight[view.columns]  # [out, in]
        x = view.drop(view.input, self.dropout)
        low = view.linear(x, f"{name}.a")  # [tokens, r]
        difference = view.linear(low, f"{name}.b") * (self.alpha / self.rank)  # [tokens, out]
        plain = h if view.module.bias is None else h - view.base_bias()
        if x is not view.input:  # as in peft, the scaled term reads the input after dropout
            plain = F.linear(x, weight)
        # h already holds the base's output. In bf16 a gain near 0 keeps its precision; a scale near 1 would lose it.
        return h + difference + view.for_each_token(self._gains(view, name, weight)) * (plain + difference)

    def merge(self, shape: Shape, tensors: Tensors, plain: Plain) -> None:
        for n in self._linears(shape):
            a, b, magnitude = (tensors[f"{n.layer}.{n.site}.{part}"] for part in ("a.weight", "b.weight", "magnitude"))
            weight = plain.at(n.site, n.layer, "weight")
            gain = self._gain(weight, a[None], b[None], magnitude[None])[0]
            weight.add_((self.alpha / self.rank) * (b @ a)).mul_(1 + gain[:, None])
        self._merge_biases(shape, tensors, plain)

    def _gains(self, view: SiteView, name: str, weight: Tensor) -> Tensor:
        """Return [slots, out]: the scale of each output minus 1; 0 for slots that own no tokens here."""
        import torch

        a, b, magnitude = (view.tensors[f"{name}.{part}"] for part in ("a.weight", "b.weight", "magnitude"))
        present = sorted(set(view.owners.slots))
        if len(present) == len(magnitude):
            return self._gain(weight, a, b, magnitude)
        where = torch.tensor(present, device=magnitude.device)
        gain = self._gain(weight, *(tensor.index_select(0, where) for tensor in (a, b, magnitude)))
        return torch.zeros_like(magnitude).index_copy(0, where, gain)

    def _gain(self, weight: Tensor, a: Tensor, b: Tensor, magnitude: Tensor) -> Tensor:
        """Return (|W| + magnitude) / |W + s B A| - 1 [slots, out], for a [slots, r, in] and b [slots, out, r]."""
        a, b, weight = a.detach(), b.detach() * (self.alpha / self.rank), weight.detach().to(a.dtype)
        # |w + b A|² = |w|² + 2 b (A w) + b (A A') b' needs no matrix [out, in] for each slot
        across = b @ (a @ a.mT) + 2 * (a @ weight.mT).mT  # [slots, out, r]
        plain = weight.square().sum(1)  # [out]
        norm = (plain + (across * b).sum(2)).clamp_min(_MIN_NORM**2).sqrt()
        return (plain.sqrt() - norm + magnitude) / norm
