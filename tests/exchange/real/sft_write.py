"""Write differences in composable-sft's format. Runs in peft's environment, which has transformers: WORK [FAMILY …]."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch

from tests.exchange.real.peft_write import CLASSES
from tests.exchange.real.protocol import OUTPUTS, base, inputs, outputs_of, quiet, write_case
from tests.exchange.real.sft_format import save
from tests.support.tiny_models import FAMILY_NAMES

CASES = {  # name → task, whether norms change
    "difference": ("FEATURE_EXTRACTION", False),
    "difference, classes": ("SEQ_CLS", False),
    "difference with norms, classes": ("SEQ_CLS", True),
    "difference, tags": ("TOKEN_CLS", False),
    "difference, spans": ("QUESTION_ANS", False),
}


def write(work: Path, family: str, name: str) -> None:
    task, norms = CASES[name]
    folder = work / "sft" / "read" / f"{family}, {name}"
    shutil.rmtree(folder, ignore_errors=True)
    options = {} if task == "FEATURE_EXTRACTION" else {"num_labels": 2 if task == "QUESTION_ANS" else OUTPUTS}
    torch.manual_seed(1)
    own = CLASSES[task].from_pretrained(base(work, family), **options)
    body = own if task == "FEATURE_EXTRACTION" else getattr(own, own.base_model_prefix)
    prefix = f"{own.base_model_prefix}."
    before = "" if task == "FEATURE_EXTRACTION" else prefix
    diffs, whole = {}, {}
    with torch.no_grad():
        for parameter, tensor in own.named_parameters():
            if not parameter.startswith(before):
                tensor.add_(0.3 * torch.randn_like(tensor))
                whole[parameter] = tensor.clone()
            elif norms or "norm" not in parameter.lower():
                chosen = torch.rand_like(tensor) < 0.02
                chosen.view(-1)[0] = True
                difference = torch.where(chosen, 0.3 * torch.randn_like(tensor), 0.0)
                tensor.add_(difference)
                diffs[parameter if before else prefix + parameter] = difference
    batch = inputs(family, own.config.pad_token_id or 0)
    save(folder / "adapter", diffs, whole)
    kind = {"TOKEN_CLS": "tags", "QUESTION_ANS": "span"}.get(task)
    case = {"family": family, "method": name, "kind": kind}
    write_case(folder, case, batch, outputs_of(own, body, batch))


def main() -> None:
    work, families = Path(sys.argv[1]), sys.argv[2:] or FAMILY_NAMES
    for family in families:
        for name in CASES:
            write(work, family, name)


if __name__ == "__main__":
    quiet()
    main()
