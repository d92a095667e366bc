"""Invertible adapters at the embeddings (Pfeiffer et al. 2020, MAD-X; the coupling is that of NICE, Dinh et al. 2014).

The embeddings' output x is cut into halves x1 and x2: y1 = x1 + F(x2), y2 = x2 + G(y1). The inverse is exact:
x2 = y2 - G(y1), x1 = y1 - F(x2). F and G are a linear layer to 1/`reduction` of their input, an activation, and a
linear layer back. The adapter acts on the embeddings' output, at the embeddings' width. The word head applies the
inverse between its norm and the word embeddings, so that input and output words stay in one space.

Width 768 with reduction 2 has 296,064 parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from intarsia.encoder.sites import OUTSIDE
from intarsia.encoder.spec import Spec
from intarsia.errors import IntarsiaError

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.shape import Shape
    from intarsia.encoder.site_view import SiteView
    from intarsia.methods.method import Tensors

SITE = "embedding.output"
PLACE = (SITE, OUTSIDE)
STD = 0.02  # of the matrices at the start
_F, _G = f"{OUTSIDE}.{SITE}.f", f"{OUTSIDE}.{SITE}.g"


def check(shape: Shape) -> None:
    """Raise unless the embeddings' output has the width of the word embeddings, to which the inverse leads back."""
    width, words = _width(shape), shape.words.shape[1]
    if width != words:
        raise IntarsiaError(
            f"an invertible adapter does not work on this base ({shape.family}): the embeddings' output has the width "
            f"{width}, and the word embeddings have the width {words}. Use invertible=False."
        )


def specs(shape: Shape, reduction: int) -> dict[str, Spec]:
    """Return the tensors of F and G, by name."""
    found: dict[str, Spec] = {}
    for name, inputs, hidden, outputs in _nets(shape, reduction):
        found[f"{name}.down.weight"] = Spec((hidden, inputs), "normal", STD, decay=True)
        found[f"{name}.down.bias"] = Spec((hidden,), "zeros")
        found[f"{name}.up.weight"] = Spec((outputs, hidden), "normal", STD, decay=True)
        found[f"{name}.up.bias"] = Spec((outputs,), "zeros")
    return found


def count(shape: Shape, reduction: int) -> int:
    """Return the number of parameters in closed form."""
    return sum(hidden * (inputs + 1) + outputs * (hidden + 1) for _, inputs, hidden, outputs in _nets(shape, reduction))


def forward(view: SiteView, h: Tensor, activation: str) -> Tensor:
    """Return y for the embeddings' output `h` [tokens, e]."""
    import torch

    h = view.drop(h, view.undropped)

    def net(name: str, x: Tensor) -> Tensor:
        return view.linear(view.activate(view.linear(x, f"{name}.down"), activation), f"{name}.up")

    x1, x2 = _halves(h)
    y1 = x1 + net(_F, x2)
    return torch.cat([y1, x2 + net(_G, y1)], 1)


def inverse(tensors: Tensors, y: Tensor, activation: str) -> Tensor:
    """Return the x whose forward value is `y` [rows, e], with one owner's tensors."""
    import torch

    from intarsia.encoder import rowwise
    from intarsia.encoder.activations import activate

    def net(name: str, x: Tensor) -> Tensor:
        hidden = rowwise.linear(x, tensors[f"{name}.down.weight"], tensors[f"{name}.down.bias"])
        return rowwise.linear(activate(hidden, activation), tensors[f"{name}.up.weight"], tensors[f"{name}.up.bias"])

    y1, y2 = _halves(y)
    x2 = y2 - net(_G, y1)
    return torch.cat([y1 - net(_F, x2), x2], 1)


def _width(shape: Shape) -> int:
    norm = shape.norm("embedding.norm", OUTSIDE)
    assert norm is not None
    return norm.width


def _nets(shape: Shape, reduction: int) -> list[tuple[str, int, int, int]]:
    """Return (name, inputs, hidden units, outputs) of F and G."""
    width = _width(shape)
    first = width // 2
    second = width - first
    return [
        (_F, second, max(1, second // reduction), first),
        (_G, first, max(1, first // reduction), second),
    ]


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Contiguous, because PyTorch rounds a view of columns by another code that depends on the number of rows."""
    first = x.shape[1] // 2
    return x[:, :first].contiguous(), x[:, first:].contiguous()
