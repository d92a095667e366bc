"""Comparing Intarsia with what another library computed: hidden states and logits of one batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from intarsia.bank.importing import answers, inlay_of_adapter
from intarsia.bank.inlay import Inlay
from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import Segment, pack
from intarsia.errors import IntarsiaError
from intarsia.exchange.reading import read_adapter
from intarsia.exchange.source import Source
from intarsia.tasks.learned import Learned
from tests.exchange.real.protocol import read_case

LIMIT = 2e-5
# Random weights can amplify rounding. Where the difference in float32 is more than LIMIT, it must be at most ROUNDING
# times that of the library's own float32 from its float64, and in float64 at most LIMIT. (ModernBERT's rotary factors
# are float32 in any precision.)
ROUNDING = 4.0


@dataclass(frozen=True)
class Result:
    """The result of one case: the largest difference, in float32 and perhaps in float64, or why it was refused."""

    library: str
    direction: str  # "import" or "export"
    family: str
    method: str
    difference: float | None = None
    folded: tuple[str, ...] = ()
    refused: str = ""
    in_float64: float | None = None
    rounding: float = 0.0  # the largest difference of the library's outputs in float32 from those in float64

    @property
    def failed(self) -> bool:
        if self.difference is None or self.difference <= LIMIT:
            return False
        if self.in_float64 is None or not self.in_float64 <= LIMIT:
            return True
        return not self.difference <= ROUNDING * self.rounding


@cache
def encoder_of(folder: Path, dtype: torch.dtype = torch.float32) -> Encoder:
    encoder = Encoder.load(folder)
    return encoder if dtype == encoder.dtype else encoder.to("cpu", dtype)


def import_case(library: str, format: str, folder: Path, work: Path) -> Result:
    """Import the adapter of a case and compare its outputs with the library's."""
    case, batch, expected = read_case(folder)
    at = (library, "import", case["family"], case["method"])
    encoder = encoder_of(work / f"base-{case['family']}")
    try:
        source = Source(folder / "adapter")
        _, adapter = read_adapter(source, encoder, format, base_is_the_same=True)
        inlay = inlay_of_adapter("case", adapter.with_labels(None, case.get("kind")), encoder, {})
        parts = {
            name: inlay_of_adapter("part", parent, encoder, {}).learned_on(encoder)
            for name, parent in adapter.parents.items()
        }
    except IntarsiaError as error:
        return Result(*at, refused=str(error))
    in_float32, in_float64 = expected, wide(expected)
    found = largest(outputs(inlay, encoder, batch, parts), in_float32, batch)
    if found <= LIMIT or not in_float64:
        return Result(*at, found, adapter.folded)
    exact = encoder_of(work / f"base-{case['family']}", torch.float64)
    more = largest(outputs(inlay, exact, batch, parts), in_float64, batch)
    return Result(*at, found, adapter.folded, in_float64=more, rounding=largest(expected, in_float64, batch))


def wide(found: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the outputs that were computed in float64."""
    return {k.removeprefix("float64."): v for k, v in found.items() if k.startswith("float64.")}


def outputs(
    inlay: Inlay, encoder: Encoder, batch: dict[str, torch.Tensor], parts: Mapping[str, Learned] | None = None
) -> dict[str, torch.Tensor]:
    """Return the outputs of an inlay for a padded batch, in the padded layout."""
    mask = batch["attention_mask"].bool()
    types = batch.get("token_type_ids", torch.zeros_like(batch["input_ids"]))
    segments = [
        Segment(ids[m].tolist(), kinds[m].tolist())
        for ids, kinds, m in zip(batch["input_ids"], types, mask, strict=True)
    ]
    states, logits = answers(inlay, encoder, pack(segments), parts)
    found = {"hidden": states.new_zeros(*mask.shape, states.shape[-1])}
    found["hidden"][mask] = states
    if inlay.kind != "none":
        tokenwise = inlay.kind in ("tags", "span", "words")
        found["logits"] = logits.new_zeros(*mask.shape, logits.shape[-1]) if tokenwise else logits
        if tokenwise:
            found["logits"][mask] = logits
    return found


def largest(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], batch: dict[str, Any]) -> float:
    """Return the largest difference of hidden states and logits, at tokens that are not padding."""
    mask = batch["attention_mask"].bool()
    worst = 0.0
    for name, tensor in expected.items():
        if name.startswith("float64."):
            continue
        if name not in found:
            raise ValueError(f"no {name}")
        apart = (found[name] - tensor).abs()
        apart = apart[mask] if apart.ndim == 3 else apart
        worst = max(worst, float(apart.max()) if apart.isfinite().all() else float("inf"))
    return worst
