"""The interface between the encoder and a method that acts at sites. `methods/` implements it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.compiled_site import CompiledSite
    from intarsia.encoder.shape import Shape
    from intarsia.encoder.site_view import SiteView


class SiteMethod(Protocol):
    """A method that acts at sites."""

    @property
    def wants(self) -> tuple[str, ...]:
        """The additional states that the method reads from `SiteView`: "sublayer_input", "layer_input"."""

    @property
    def position_offset(self) -> int:
        """The number added to the positions of the method's own tokens."""

    @property
    def takes_undropped(self) -> bool:
        """Whether the method itself applies the base's dropout at its sites."""

    def compiled_parts(self, shape: Shape) -> Sequence[Mapping[tuple[str, int], CompiledSite]] | None:
        """Describe what the method or each of its parts does in the layers, by sub-layer or linear site, and layer."""

    def output(self, view: SiteView, h: Tensor) -> Tensor:
        """Return new values for the method's own tokens `h` [tokens, width] at an output, linear or input site."""

    def norm(self, view: SiteView, x: Tensor) -> Tensor:
        """Return the method's own tokens, normalised, at a norm site."""
