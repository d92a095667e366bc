"""Configurations of older versions of adapters and adapter-transformers, as the present version understands them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from intarsia.errors import ExchangeError
from intarsia.exchange.accounting import Flags

OLD_KEYS = {
    "LN_after": "ln_after", "LN_before": "ln_before", "MH_Adapter": "mh_adapter", "Output_Adapter": "output_adapter",
}  # fmt: skip
OLD_ACTIVATIONS = {"gelu": "gelu_new", "gelu_orig": "gelu"}  # of files without a version


@dataclass(frozen=True)
class Version:
    """The library that wrote a file, as far as it says. `old`: before adapter-transformers 3, which has no version."""

    text: str
    numbers: tuple[int, ...]
    old: bool

    @property
    def unscaled_lora(self) -> bool:
        """Whether LoRA had no scaling: in adapters before 1.1."""
        return self.text.startswith("adapters ") and self.numbers < (1, 1)


def version_of(flags: Flags) -> Version:
    stated = flags.take("version", None)
    if stated is None:
        return Version("adapter-transformers", (), True)
    if not isinstance(stated, str) or len(stated) > 100:
        raise ExchangeError(f"{flags.where}: version is {stated!r:.60}; expected text such as 'adapters.1.3.0'.")
    library, number = ("adapters", stated[9:]) if stated.startswith("adapters.") else ("adapter-transformers", stated)
    digits = [part for part in number.split(".")[:3] if part.isdecimal()]
    return Version(f"{library} {number}", tuple(int(part) for part in digits), False)


def current_config(config: Any, version: Version, where: str) -> dict[str, Any]:
    """Return the configuration with the keys and values of the present version."""
    if not isinstance(config, dict):
        raise ExchangeError(f"{where}: config is {config!r:.80}; expected an object.")
    found: dict[str, Any] = {OLD_KEYS.get(str(key), str(key)): value for key, value in config.items()}
    if len(found) < len(config):
        raise ExchangeError(f"{where}: config has a flag under its old and its new name.")
    nested = found.pop("invertible_adapter", None)
    if nested is not None:
        if not isinstance(nested, dict) or set(nested) - {"block_type", "non_linearity", "reduction_factor"}:
            raise ExchangeError(f"{where}: invertible_adapter is {nested!r:.120}, which is not known.")
        found |= {
            "inv_adapter": nested.get("block_type"),
            "inv_adapter_reduction_factor": nested.get("reduction_factor"),
        }
    activation = found.get("non_linearity")
    if version.old and isinstance(activation, str):
        found["non_linearity"] = OLD_ACTIVATIONS.get(activation, activation)
    if version.unscaled_lora and found.get("architecture") == "lora":
        found["alpha"] = found.get("r")
    return found
