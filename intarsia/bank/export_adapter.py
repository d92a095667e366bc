"""Export a task as an adapter of another library.

The folder is read back with Intarsia's own reader before it gets its name: its answers must be the bank's. That the
other library computes the same from such folders is what `make test-exchange` checks.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from intarsia.bank.export import Exported
from intarsia.bank.export_card import card
from intarsia.bank.export_folder import explained, new_folder, size_of
from intarsia.bank.importing import PROBES, answers, inlay_of_adapter
from intarsia.bank.inlay import Inlay
from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import pack
from intarsia.errors import ExchangeError
from intarsia.exchange.adapter import HEADLESS, Adapter
from intarsia.exchange.binding import public_name
from intarsia.exchange.modules import Modules
from intarsia.exchange.reading import format_module, read_adapter
from intarsia.exchange.source import Source

TOLERANCE = 1e-4  # relative to the largest value


def export_adapter(
    inlay: Inlay,
    version: int,
    encoder: Encoder,
    format: str,
    folder: Path,
    *,
    force: bool,
    keep: dict[str, Path],
    licence: str | None = None,
) -> Exported:
    """Write the task in another library's format to `folder`, atomically, after reading it back."""
    adapter, modules = adapter_of(inlay, version, encoder), Modules(encoder)
    with new_folder(folder, force, keep) as temporary:
        with explained(folder):
            format_module(format).write(adapter, modules, temporary)
            text = card(inlay, adapter, modules, version, format, licence)
            (temporary / "README.md").write_text(text, encoding="utf-8")
        difference = _compare(adapter, encoder, format, temporary)
        if not difference <= TOLERANCE:
            raise ExchangeError(
                f"the task {inlay.name!r} was not exported: the written adapter's answers differ from the bank's by "
                f"{difference:.1e} of the largest value (limit: {TOLERANCE:.0e}). No files were left behind."
            )
    return Exported(inlay.name, version, folder, format, None, difference, len(PROBES), size_of(folder), format=format)


def adapter_of(inlay: Inlay, version: int, encoder: Encoder) -> Adapter:
    """Return a task as an adapter. Its temperature is in the weights of the head, so that its probabilities are the
    bank's."""
    learned = inlay.learned_on(encoder)
    temperature = float(inlay.head.get("temperature", 1.0))
    head: dict[str, Tensor] = dict(learned.head_tensors)
    if temperature != 1.0:
        head |= {name: head[name] / temperature for name in ("output.weight", "output.bias") if name in head}
    return Adapter(
        method=learned.method,
        tensors=learned.method_tensors,
        kind=inlay.kind,
        labels=tuple(inlay.labels),
        head=None if inlay.kind == HEADLESS else learned.head,
        head_tensors=head,
        pooling=learned.head.pooling,
        pairs=bool(inlay.data.get("pairs")),
        max_length=inlay.interface.max_length,
        base=public_name(encoder),
        name=inlay.name,
        metrics=inlay.metrics,
        version=version,
    )


def _compare(adapter: Adapter, encoder: Encoder, format: str, folder: Path) -> float:
    """Return the largest difference between the answers of the written folder and of the adapter, relative to the
    largest value."""
    _, read = read_adapter(Source(folder), encoder, format, base_is_the_same=True)
    kind = adapter.kind if read.head is not None else None
    labels = adapter.labels if read.head is not None and adapter.labels else None
    found = inlay_of_adapter("read", read.with_labels(labels, kind), encoder, {})
    expected = inlay_of_adapter("written", adapter, encoder, {})
    batch = pack(encoder.tokenize(PROBES, max_length=expected.interface.max_length), encoder.device)
    worst = 0.0
    for one, other in zip(answers(found, encoder, batch), answers(expected, encoder, batch), strict=True):
        worst = max(worst, float((one - other).abs().max()) / max(1.0, float(other.abs().max())))
    return worst
