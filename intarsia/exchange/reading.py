"""Reading an adapter: finding its format, and checking it against the base."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from intarsia.errors import ExchangeError, check_choice
from intarsia.exchange import FORMATS
from intarsia.exchange.adapter import Adapter
from intarsia.exchange.binding import check_base, check_vocabulary
from intarsia.exchange.modules import Modules
from intarsia.exchange.source import Source

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder


class Format(Protocol):
    """What a format's module has."""

    def recognises(self, source: Source) -> bool: ...

    def read(self, source: Source, modules: Modules) -> Adapter: ...

    def write(self, adapter: Adapter, modules: Modules, folder: Path) -> None: ...


def format_module(name: str) -> Format:
    check_choice("format", name, FORMATS)
    return cast(Format, import_module(f"intarsia.exchange.{name}"))


def detect(source: Source) -> str:
    """Return the name of a folder's format."""
    found = [name for name in FORMATS if format_module(name).recognises(source)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ExchangeError(f"{source.name} could be of the formats {' and '.join(found)}. Choose one with --format.")
    names = ", ".join(sorted(source.files)[:8]) or "no files"
    raise ExchangeError(
        f"{source.name} has no format that Intarsia knows (found: {names}). Expected adapter_config.json with weights "
        "(peft, AdapterHub), or pytorch_diff.bin (composable-sft)."
    )


def read_adapter(
    source: Source,
    encoder: Encoder,
    format: str | None = None,
    *,
    base_is_the_same: bool = False,
    headless: bool = False,
) -> tuple[str, Adapter]:
    """Return the format's name and the adapter, checked against the base. `headless` leaves out the head, whose tensors
    are still accounted for."""
    name = format or detect(source)
    modules, source.headless = Modules(encoder), headless
    adapter = format_module(name).read(source, modules)
    check_vocabulary(source, encoder)
    source.check_consumed()
    check_base(adapter.base, encoder, base_is_the_same)
    adapter.check(encoder.shape)
    return name, adapter.without_head() if headless else adapter
