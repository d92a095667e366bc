"""Adapters that other libraries trained, imported and served in one batch with native inlays: are all answers theirs?

Each library trains on 2,000 rows of SST-2 over MiniLM, in an environment of its own (setup_peers.sh), and predicts the
official dev part. Intarsia imports the adapters, learns two tasks of its own, and predicts all of them in one call.

    python benchmarks/exchange.py --data DATA --out results/exchange.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import intarsia
from intarsia import LoRA, Pfeiffer, provenance
from intarsia.encoder.sources import embedded_folder
from intarsia.exchange.adapter import Adapter
from intarsia.exchange.modules import Modules
from intarsia.exchange.reading import format_module
from intarsia.tasks.suites import load

ROOT = Path(__file__).parents[1]
LIBRARIES = {"adapters": ".venv-adapters", "peft": ".venv-peft"}  # each has a worker benchmarks/exchange_NAME.py
ROWS, NATIVE_ROWS = 2000, 400
NATIVE = {"own-pfeiffer": Pfeiffer(24), "own-lora": LoRA(8)}


def write_rows(path: Path, rows: list[Any]) -> None:
    lines = [json.dumps({"text": row.text, "label": row.label}) for row in rows]
    path.write_text("\n".join(lines) + "\n")


def trained(library: str, work: Path) -> dict[str, Any]:
    """Train and predict with a library, in its environment."""
    python = ROOT / LIBRARIES[library] / "bin" / "python"
    script = ROOT / "benchmarks" / f"exchange_{library}.py"
    subprocess.run([python, script, str(work)], check=True)
    found: dict[str, Any] = json.loads((work / library / "found.json").read_text())
    return found


def compared(found: dict[str, Any], labels: list[str], given: list[str], own: np.ndarray) -> dict[str, Any]:
    """Return the scores of both, and how far their answers are apart."""
    logits = np.array(found.pop("logits"))
    theirs = np.exp(logits - logits.max(1, keepdims=True))
    theirs /= theirs.sum(1, keepdims=True)
    names = found.pop("labels")
    same = [names[row.argmax()] for row in theirs] == given
    right = sum(a == b for a, b in zip(given, labels, strict=True))
    return {
        **found,
        "accuracy": round(found["right"] / len(labels), 4),
        "intarsia_right": right,
        "all_labels_equal": same,
        "largest_difference_of_a_probability": float(np.abs(own - theirs).max()),
    }


def import_of_bert_base(work: Path) -> dict[str, float]:
    """Return the seconds that loading BERT-base takes (random weights), and the import of adapters over it."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    folder = work / "bert-base"
    BertModel(BertConfig()).save_pretrained(folder)
    AutoTokenizer.from_pretrained(embedded_folder()).save_pretrained(folder)
    bank = intarsia.open(work / "bert-bank", folder)
    began = time.perf_counter()
    encoder = bank.encoder
    found = {"loading_the_base_seconds": round(time.perf_counter() - began, 2)}
    for format, method in {"adapterhub": Pfeiffer(48), "peft": LoRA(8)}.items():
        adapter = work / f"bert-base-{format}"
        adapter.mkdir()
        tensors = {name: 0.01 * torch.randn(spec.shape) for name, spec in method.tensors(encoder.shape).items()}
        format_module(format).write(Adapter(method=method, tensors=tensors, name="speed"), Modules(encoder), adapter)
        began = time.perf_counter()
        bank.import_(format, adapter, base_is_the_same=True)
        found[f"import_seconds_{format}"] = round(time.perf_counter() - began, 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=LIBRARIES, action="append")
    given = parser.parse_args()
    data = load("glue/sst2", given.data)
    dev = data.test if data.source["split"] != "as given" else data.dev
    train = data.train[:ROWS]
    stored = json.loads(given.out.read_text())["libraries"] if given.out.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        write_rows(work / "train.jsonl", train)
        write_rows(work / "dev.jsonl", dev)
        write_rows(work / "native.jsonl", train[:NATIVE_ROWS])
        found = {library: trained(library, work) for library in given.only or LIBRARIES}
        bank = intarsia.open(work / "bank", "minilm")
        for name, method in NATIVE.items():
            bank.learn(name, work / "native.jsonl", method, epochs=1)
        seconds = {}
        for library in found:
            began = time.perf_counter()
            named = None if library == "adapters" else found[library]["labels"]  # peft stores none
            bank.import_(library, work / library / "adapter", labels=named, base_is_the_same=True)
            seconds[library] = round(time.perf_counter() - began, 3)
        texts, labels = [row.text for row in dev], [str(row.label) for row in dev]
        tasks = [*found, *NATIVE]
        answers = bank.predict([(task, text) for text in texts for task in tasks])  # one call, all tasks mixed
        results = {}
        for library, own in found.items():
            mine = answers[tasks.index(library) :: len(tasks)]
            columns = own["labels"]
            spread = np.array([[(answer.probabilities or {})[label] for label in columns] for answer in mine])
            results[library] = compared(own, labels, [str(answer.label) for answer in mine], spread)
            results[library]["import_seconds"] = seconds[library]
        speed = import_of_bert_base(work)
    text = {
        "what": "adapters of other libraries, trained on SST-2 over MiniLM, imported and served beside native inlays",
        "rows": {"train": len(train), "dev": len(dev), "native": NATIVE_ROWS},
        "native": {name: method.name for name, method in NATIVE.items()},
        "libraries": {**stored, **results},
        "bert_base": speed,
        "command": "python benchmarks/exchange.py --out results/exchange.json",
        "machine": provenance.machine(),
        "versions": provenance.versions(),
    }
    given.out.write_text(json.dumps(text, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
