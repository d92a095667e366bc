"""Split: the tokens of a pair's first and second text have methods of their own, as question and context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from intarsia.encoder.sites import PREFIX
from intarsia.errors import IntarsiaError
from intarsia.methods.compose import Composite, Part, own_method

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from intarsia.encoder.shape import Shape
    from intarsia.encoder.site_view import SiteView
    from intarsia.methods.method import Method


@dataclass(frozen=True, init=False, repr=False)
class Split(Composite):
    """The first part acts on the tokens of each segment's first text, the second part on those of its second text.

    The special tokens between the texts belong to the first, those at the end to the second. A segment of one text
    belongs to the first part. Attention still reads the whole segment.
    """

    parts: tuple[Part, ...]

    name: ClassVar[str] = "split"
    trains: ClassVar[str] = "what its parts train"

    def __init__(self, *parts: Part) -> None:
        if len(parts) != 2:
            raise IntarsiaError(
                f"Split has {len(parts)} parts; expected two: one for the first text of a pair, one for the second."
            )
        self._init(parts)

    def check(self, shape: Shape) -> None:
        for method in map(own_method, self.methods):
            if method.changes_base or any(site == PREFIX for site, _ in method.places(shape)):
                what = "weights of the base" if method.changes_base else "the attention of the whole text"
                raise IntarsiaError(
                    f"Split cannot have the part {method.name}: it changes {what}, so it cannot act on some of the "
                    "tokens only. Use adapters or LoRA."
                )
            if method.inverts_words:
                raise IntarsiaError(
                    f"Split cannot have the part {method.name} with an invertible adapter: the word head does not know "
                    "to which of the texts a word belongs. Use Stack."
                )
        super().check(shape)

    def recordable(self, shape: Shape) -> bool:
        return False  # a recorded pass does not know which tokens belong to the second text

    def _check_sole(self, shape: Shape) -> None:
        """The parts act on different tokens, so each acts alone."""

    def output(self, view: SiteView, h: Tensor) -> Tensor:
        return self._chosen(view, lambda method, part: method.output(part, h), h)

    def norm(self, view: SiteView, x: Tensor) -> Tensor:
        plain = None if all(view.acts(number) for number in (0, 1)) else view.module(x)
        return self._chosen(view, lambda method, part: method.norm(part, x), plain)

    def reads(self, view: SiteView, h: Tensor) -> Tensor:
        return self._chosen(view, lambda method, part: method.reads(part, h), h)

    def _chosen(
        self, view: SiteView, computed: Callable[[Method, SiteView], Tensor], otherwise: Tensor | None
    ) -> Tensor:
        """Return, for each token, what its part computes; `otherwise`, where this part does not act."""
        import torch

        found = {number: computed(method, part) for number, method, part in self.acting(view)}
        first, second = (found.get(number, otherwise) for number in (0, 1))
        assert first is not None and second is not None
        return torch.where(view.in_second_text(), second, first)
