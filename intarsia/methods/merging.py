"""Merging inlays in their weights: the tensors of one inlay from those of several, without training.

The differences of the inlays from what they started with (task vectors) are combined:

    linear       the weighted mean; the weights sum to 1
    arithmetic   scale * sum of w_i tau_i, also with negative weights (Ilharco et al. 2022)
    ties         trim, elect signs, and the mean of those that agree (Yadav et al. 2023)
    dare         drop entries at random and rescale, then add (Yu et al. 2023)
    svd          LoRA: the sum of w_i s_i B_i A_i, reduced to a rank
    concat       LoRA: the same sum exactly, with the sum of the ranks

For LoRA all of them combine the products s B A, never A and B alone; all but concat then reduce the result to a rank.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from intarsia.errors import IntarsiaError, check_choice
from intarsia.methods.compose import parents
from intarsia.methods.method import Method, running_key, to_dict

if TYPE_CHECKING:
    from intarsia.encoder.shape import Shape
    from intarsia.methods.lora import LoRA

HOW = ("linear", "arithmetic", "ties", "dare", "concat", "svd")
TOLERANCE = 1e-6

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Merge:
    """How differences are combined."""

    weights: tuple[float, ...]
    how: str = "linear"
    scale: float = 1.0  # of the sum (lambda)
    density: float = 0.2  # ties: the share of entries that each inlay keeps
    drop: float = 0.9  # dare: the probability that an entry is dropped
    seed: int = 0  # dare
    rank: int | None = None  # LoRA: of the result; None: the largest rank of the inlays

    def __post_init__(self) -> None:
        check_choice("how", self.how, HOW)
        if not self.weights or not all(map(math.isfinite, (*self.weights, self.scale))) or not any(self.weights):
            raise IntarsiaError(f"the weights {list(self.weights)} and the scale must be numbers, not all of them 0.")
        if self.how == "linear" and not abs(math.fsum(self.weights) - 1) <= TOLERANCE:
            raise IntarsiaError(
                f"the weights of a linear merge sum to {math.fsum(self.weights):.6g}; expected 1, so that a merge of "
                "equal inlays is that inlay. Divide each by the sum, or use arithmetic."
            )
        if not 0 < self.density <= 1 or not 0 <= self.drop < 1:
            raise IntarsiaError(
                f"density {self.density} must be above 0 and at most 1; drop {self.drop} at least 0 and below 1."
            )
        if self.rank is not None and self.rank < 1:
            raise IntarsiaError(f"rank {self.rank} is too small: at least 1 was expected.")

    def __call__(self, differences: Sequence[Tensor]) -> Tensor:
        """Combine the differences of the inlays, each [entries]."""
        if self.how == "ties":
            return self.scale * ties(differences, self.weights, self.density)
        if self.how == "dare":
            differences = dare(differences, self.drop, self.seed)
        return self.scale * weighted(differences, self.weights)

    def of_sums(self) -> Merge:
        """Return what is done to tensors that are not products, where products are added exactly."""
        return dataclasses.replace(self, how="arithmetic") if self.how in ("concat", "svd") else self


def weighted(differences: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return the sum of w_i tau_i."""
    total = weights[0] * differences[0]
    for weight, difference in zip(weights[1:], differences[1:], strict=True):
        total = total + weight * difference
    return total


def trimmed(difference: Tensor, density: float) -> Tensor:
    """Return the difference with only this share of its entries, those of the largest magnitude; at least one."""
    flat = difference.reshape(-1)
    kept = flat.abs().topk(max(1, int(density * flat.numel()))).indices
    return torch.zeros_like(flat).index_copy(0, kept, flat[kept]).view(difference.shape)


def ties(differences: Sequence[Tensor], weights: Sequence[float], density: float) -> Tensor:
    """Return the mean, weighted by |w_i|, of the trimmed entries that have the elected sign: that of their sum."""
    stacked = torch.stack([w * trimmed(d, density) for w, d in zip(weights, differences, strict=True)])
    agree = (stacked.sign() == stacked.sum(0).sign()) & (stacked != 0)
    shares = torch.tensor([abs(w) for w in weights]).view(-1, *[1] * (stacked.ndim - 1)) * agree
    total: Tensor = (stacked * agree).sum(0) / shares.sum(0).clamp_min(torch.finfo(stacked.dtype).tiny)
    return total


def dare(differences: Sequence[Tensor], drop: float, seed: int) -> list[Tensor]:
    """Return the differences with entries dropped with the probability `drop`, and the others divided by 1 - drop."""
    generator = torch.Generator().manual_seed(seed)
    return [(torch.rand(d.shape, generator=generator) >= drop) * d / (1 - drop) for d in differences]


def concatenated(factors: Sequence[tuple[Tensor, Tensor]], scales: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return b, a with b @ a equal to the sum of scale_i * b_i @ a_i."""
    sizes = [math.sqrt(abs(scale)) for scale in scales]  # shared between both factors
    signed = [math.copysign(size, scale) for size, scale in zip(sizes, scales, strict=True)]
    b = torch.cat([size * b for (b, _), size in zip(factors, signed, strict=True)], 1)
    return b, torch.cat([size * a for (_, a), size in zip(factors, sizes, strict=True)])


def factors_of(product: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return b [out, rank], a [rank, in] whose product is closest to this one."""
    u, s, v = torch.linalg.svd(product, full_matrices=False)
    root = s[:rank].sqrt()
    b, a = u[:, :rank] * root, root[:, None] * v[:rank]
    missing = rank - root.shape[0]
    if missing > 0:  # the base has narrower layers than the rank
        b, a = (torch.cat([t, t.new_zeros(size)], d) for t, size, d in (
            (b, (b.shape[0], missing), 1), (a, (missing, a.shape[1]), 0)))  # fmt: skip
    return b.contiguous(), a.contiguous()


@dataclass(frozen=True)
class Merged:
    """The merged method and its tensors. `lost` is the relative error of the reduction to a rank, if there was one."""

    method: Method
    tensors: dict[str, Tensor]
    lost: float | None = None


def merge_method(
    merge: Merge, shape: Shape, methods: Sequence[Method], tensors: Sequence[Tensors], start: Tensors, *, common: bool
) -> Merged:
    """Merge the tensors of several inlays. `start` are the values that the first started with; `common`: and all
    others too. Without it only the values that are not random are common."""
    first = methods[0]
    refused = next((m.not_merged for m in methods if m.not_merged), None)
    if refused is not None:
        raise IntarsiaError(f"inlays of the method {first.name} cannot be merged: {refused}.")
    if merge.how in ("concat", "svd") and first.merged_as != "low rank":
        raise IntarsiaError(
            f"{merge.how} adds products of matrices, which {first.name} does not have. Use linear, arithmetic, ties or "
            "dare."
        )
    _check_alike(methods, shape)
    if first.merged_as == "low rank":
        return _low_rank(merge, shape, methods, tensors, start)  # type: ignore[arg-type]
    if first.merged_as == "entries":
        return _entries(merge, methods, tensors)
    return Merged(first, _tensors(merge, shape, first, tensors, start, common))


def _shown(method: Method) -> str:
    from intarsia.methods import full_name

    return full_name(to_dict(method))


def _check_alike(methods: Sequence[Method], shape: Shape) -> None:
    def form(method: Method) -> Any:
        kept = {"tensors": running_key(method), "entries": tuple(w.name for w in method.trained(shape))}
        parts = [p.digest for p in parents(method)]
        return type(method), kept.get(method.merged_as, tuple(sorted(method.places(shape)))), parts

    for other in methods[1:]:
        if form(other) != form(methods[0]):
            raise IntarsiaError(
                f"the inlays have different methods, {_shown(methods[0])} and {_shown(other)}; a merge needs one form "
                "and the same parents."
            )


def _tensors(
    merge: Merge, shape: Shape, method: Method, tensors: Sequence[Tensors], start: Tensors, common: bool
) -> dict[str, Tensor]:
    """Merge tensor by tensor; trimming looks at all of them together."""
    specs = method.stored(shape)
    if not common and merge.how != "linear" and any(spec.start == "normal" and spec.std for spec in specs.values()):
        raise IntarsiaError(
            f"{merge.how} adds differences from a common start, but these inlays started with different random values. "
            "Learn them with one seed, or use linear."
        )
    trained = [name for name, spec in specs.items() if spec.trained]
    mean = [abs(w) / math.fsum(map(abs, merge.weights)) for w in merge.weights]
    found = {name: weighted([t[name] for t in tensors], mean) for name in specs if name not in trained}
    return found | merge_named(merge, trained, tensors, start)


def merge_named(
    merge: Merge, names: Sequence[str], tensors: Sequence[Tensors], start: Tensors | None
) -> dict[str, Tensor]:
    """Merge the tensors of these names. A linear merge does not depend on the start."""
    if not names:
        return {}
    begun = _flat(start, names) if start is not None and merge.how != "linear" else 0.0
    whole = begun + merge([_flat(own, names) - begun for own in tensors])
    parts = whole.split([tensors[0][name].numel() for name in names])
    return {name: part.view(tensors[0][name].shape).clone() for name, part in zip(names, parts, strict=True)}


def _flat(tensors: Tensors, names: Sequence[str]) -> Tensor:
    return torch.cat([tensors[name].reshape(-1).float() for name in names])


def _low_rank(
    merge: Merge, shape: Shape, methods: Sequence[LoRA], tensors: Sequence[Tensors], start: Tensors
) -> Merged:
    """Merge the products s B A of LoRA inlays, and biases as differences from the base's."""
    names = [n.removesuffix(".a.weight") for n in methods[0].stored(shape) if n.endswith(".a.weight")]
    other = [n for n in methods[0].stored(shape) if not n.endswith((".a.weight", ".b.weight"))]
    found = merge_named(merge.of_sums(), other, tensors, start)
    ranks, scales = [m.rank for m in methods], [m.alpha / m.rank for m in methods]
    rank = sum(ranks) if merge.how == "concat" else merge.rank or max(ranks)
    lost = whole = 0.0
    if merge.how == "concat":
        if merge.rank not in (None, rank):
            raise IntarsiaError(f"concat gives the sum of all ranks, {rank}. Use svd for the rank {merge.rank}.")
        of_each = [merge.scale * w * s for w, s in zip(merge.weights, scales, strict=True)]
        pairs = {n: concatenated([(t[f"{n}.b.weight"], t[f"{n}.a.weight"]) for t in tensors], of_each) for n in names}
    else:
        products = [
            {n: s * (t[f"{n}.b.weight"] @ t[f"{n}.a.weight"]) for n in names}
            for t, s in zip(tensors, scales, strict=True)
        ]
        summed = merge_named(merge, names, products, None)
        pairs = {n: factors_of(product, rank) for n, product in summed.items()}
        lost = sum(float((summed[n] - b @ a).square().sum()) for n, (b, a) in pairs.items())
        whole = sum(float(product.square().sum()) for product in summed.values())
    for n, (b, a) in pairs.items():
        found |= {f"{n}.b.weight": b, f"{n}.a.weight": a}
    method = dataclasses.replace(methods[0], rank=rank, alpha=float(rank))
    return Merged(method, found, None if merge.how == "concat" else math.sqrt(lost / whole) if whole else 0.0)


def _entries(merge: Merge, methods: Sequence[Any], tensors: Sequence[Tensors]) -> Merged:
    """Merge sparse differences: over the entries that any of them has."""
    index = torch.cat([t["index"] for t in tensors]).unique()  # ascending
    spread = [
        torch.zeros(len(index)).index_copy(0, torch.searchsorted(index, t["index"]), t["values"].float())
        for t in tensors
    ]
    values = merge(spread)
    kept = values != 0
    if not bool(kept.any()):
        raise IntarsiaError("nothing is left of the differences: they cancel, or all entries were dropped.")
    found = {"index": index[kept], "values": values[kept]}
    return Merged(dataclasses.replace(methods[0], entries=int(kept.sum())), found)
