"""Load adapters that Intarsia exported with the real adapters library. Runs in its environment: WORK."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import adapters
import torch
import transformers
from safetensors.torch import save_file

from tests.exchange.real.adapters_faults import loading, repaired
from tests.exchange.real.protocol import outputs_of, quiet, read_all, read_case


def model_for(work: Path, family: str, folder: Path) -> Any:
    """Return the model that the folder's configuration names: with flexible heads, or a class of transformers."""
    base, options = work / f"base-{family}", loading(family)
    torch.manual_seed(1)
    if family != "modernbert":
        return adapters.AutoAdapterModel.from_pretrained(base, **options)
    head = folder / "head_config.json"
    config = json.loads((head if head.exists() else folder / "adapter_config.json").read_text())
    labels = {"num_labels": config["num_labels"]} if "num_labels" in config else {}
    model = getattr(transformers, config["model_class"]).from_pretrained(base, **labels, **options)
    adapters.init(model)
    return repaired(model)


def read(work: Path, folder: Path) -> None:
    case, batch, _ = read_case(folder)
    model = model_for(work, case["family"], folder / "adapter")
    loading_info: dict[str, Any] = {}
    name = model.load_adapter(str(folder / "adapter"), loading_info=loading_info)
    model.set_active_adapters(name)
    found = outputs_of(model, model.base_model, batch)
    if loading_info.get("missing_keys") or loading_info.get("unexpected_keys"):
        raise ValueError(f"the library does not know all tensors: {loading_info}")
    save_file(found, folder / "found.safetensors")


def main() -> None:
    read_all(Path(sys.argv[1]), "adapters", read)


if __name__ == "__main__":
    quiet()
    main()
