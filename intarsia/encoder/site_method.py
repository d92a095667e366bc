"""What the encoder asks of a method that acts at sites. `methods/` fulfils it; the encoder knows no method by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.site_view import SiteView


class SiteMethod(Protocol):
    @property
    def wants(self) -> tuple[str, ...]:
        """Further states that a `SiteView` shall carry: "sublayer_input", "layer_input"."""

    @property
    def takes_undropped(self) -> bool:
        """Whether the method applies the base's dropout at its sites itself."""

    def output(self, view: SiteView, h: Tensor) -> Tensor:
        """New values for the method's own tokens `h` [tokens, width] at an output, linear or input site."""

    def norm(self, view: SiteView, x: Tensor) -> Tensor:
        """The method's own tokens, normalised, at a norm site."""
