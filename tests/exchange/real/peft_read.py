"""Load adapters that Intarsia exported with the real peft. Runs in peft's environment: WORK."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import peft
import torch
from safetensors.torch import save_file

from tests.exchange.real.peft_write import CLASSES
from tests.exchange.real.protocol import outputs_of, quiet, read_all, read_case


def read(work: Path, folder: Path) -> None:
    case, batch, expected = read_case(folder)
    task = json.loads((folder / "adapter" / "adapter_config.json").read_text())["task_type"]
    outputs = expected["logits"].shape[-1] if "logits" in expected else 2
    options = {} if task == "FEATURE_EXTRACTION" else {"num_labels": outputs}
    torch.manual_seed(1)
    own = CLASSES[task].from_pretrained(work / f"base-{case['family']}", **options)
    model = peft.PeftModel.from_pretrained(own, folder / "adapter")
    body = own if task == "FEATURE_EXTRACTION" else getattr(own, own.base_model_prefix)
    save_file(outputs_of(model, body, batch), folder / "found.safetensors")


def main() -> None:
    read_all(Path(sys.argv[1]), "peft", read)


if __name__ == "__main__":
    quiet()
    main()
