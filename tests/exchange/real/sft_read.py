"""Apply exported differences as composable-sft does. Runs in peft's environment, which has transformers: WORK."""

from __future__ import annotations

import sys
from pathlib import Path

from safetensors.torch import save_file

from tests.exchange.real.peft_write import CLASSES
from tests.exchange.real.protocol import outputs_of, quiet, read_case
from tests.exchange.real.sft_format import apply

TASKS = {"none": "SEQ_CLS", "label": "SEQ_CLS", "score": "SEQ_CLS", "tags": "TOKEN_CLS", "span": "QUESTION_ANS"}


def main() -> None:
    work = Path(sys.argv[1])
    for folder in sorted((work / "sft" / "write").iterdir()):
        case, batch, expected = read_case(folder)
        outputs = expected["logits"].shape[-1] if "logits" in expected else 2
        own = CLASSES[TASKS[case["kind"]]].from_pretrained(work / f"base-{case['family']}", num_labels=outputs)
        apply(own, folder / "adapter")
        save_file(outputs_of(own, getattr(own, own.base_model_prefix), batch), folder / "found.safetensors")


if __name__ == "__main__":
    quiet()
    main()
