"""Answering on a GPU: an engine with 64 tasks in process, beside the plain `transformers` base in the same run.

    python benchmarks/serve_gpu.py --model all-mpnet-base-v2 --output results/serve-h200.json

Times include tokenizing. `--model` is a folder; without weights in it, the model gets random ones, which take the same
time. Every task has a Houlsby adapter of size 64 and a head of its own. The plain base has one head for all rows, pads
each batch of 256 rows to its longest, and sorts rows by length first.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import pstats
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from gpu import plain_model  # noqa: E402

from intarsia.encoder.encoder import Encoder  # noqa: E402
from intarsia.encoder.slots import start  # noqa: E402
from intarsia.memory import settle  # noqa: E402
from intarsia.methods import Bottleneck  # noqa: E402
from intarsia.provenance import machine, versions  # noqa: E402
from intarsia.serve.ask import Ask  # noqa: E402
from intarsia.serve.engine import Engine  # noqa: E402
from intarsia.serve.predictor import PassRow, Predictor, predictions  # noqa: E402
from intarsia.serve.served import Served  # noqa: E402
from intarsia.tasks.learned import Interface, Learned  # noqa: E402
from intarsia.tasks.task_kind import TaskKind  # noqa: E402

TASKS, MEAN_WORDS = 64, 21


def sentences(tokenizer: Any, count: int, seed: int = 0) -> list[str]:
    """Return sentences of common words; the lengths vary as in film reviews, 24 tokens in the mean."""
    random = np.random.default_rng(seed)
    words = sorted(w for w in tokenizer.get_vocab() if w.isascii() and w.isalpha() and 2 < len(w) < 9)
    lengths = np.clip(random.gamma(4.0, MEAN_WORDS / 4.0, count).round().astype(int), 3, 60)
    return [" ".join(random.choice(words, n)) for n in lengths]


def served_tasks(encoder: Encoder) -> dict[str, Served]:
    method, kind = Bottleneck(64), TaskKind("label", ("yes", "no"))
    head = kind.head("mean")
    specs = {f"method.{k}": v for k, v in method.tensors(encoder.shape).items()}
    specs |= {f"head.{k}": v for k, v in head.tensors(encoder.shape).items()}
    tasks = {}
    for i in range(TASKS):
        torch.manual_seed(i)
        tensors = {k: v.cpu() + 0.02 * torch.randn(v.shape) for k, v in start(specs, encoder, i).items()}
        learned = Learned(method, head, kind, tensors)
        interface = Interface(kind, max_length=128)
        tasks[f"task{i}"] = Served(f"task{i}", interface, lambda learned=learned: learned, f"task{i}", 1)  # type: ignore[misc]
    return tasks


def timed(call: Callable[[], Any], repeats: int, warm_up: int = 3) -> dict[str, float]:
    """Return the percentiles of the seconds that a call takes."""
    for _ in range(warm_up):
        call()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return {"p50": statistics.median(seconds), "p95": float(np.quantile(seconds, 0.95)), "min": min(seconds)}


def plain_answers(model: Any, tokenizer: Any, head: Any, texts: list[str], batch: int = 256) -> list[int]:
    """Return labels as a plain script computes them."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    out: list[int] = [0] * len(texts)
    parts = []
    with torch.inference_mode():
        for first in range(0, len(texts), batch):
            rows = order[first : first + batch]
            own = [texts[i] for i in rows]
            inputs = tokenizer(own, padding=True, truncation=True, max_length=128, return_tensors="pt").to("cuda")
            states = model(**inputs).last_hidden_state
            mask = inputs["attention_mask"][..., None].to(states.dtype)
            pooled = (states * mask).sum(1) / mask.sum(1)
            parts.append((rows, head(pooled).argmax(-1)))
        for rows, labels in parts:
            for i, label in zip(rows, labels.tolist(), strict=True):
                out[i] = label
    return out


def largest_difference(engine: Engine, tasks: dict[str, Served], texts: list[str]) -> float:
    """Return how far recorded passes are from eager ones: the largest difference of a probability."""
    predictor = Predictor(engine.encoder)
    names = list(tasks)
    asks = [Ask(names[i % TASKS], text) for i, text in enumerate(texts)]
    found = engine.answer(asks)
    held = {name: predictor.hold(tasks[name]) for name in names}
    segments = engine.encoder.tokenize(texts, max_length=128)
    rows = [PassRow(ask.task, segment) for ask, segment in zip(asks, segments, strict=True)]
    with torch.no_grad():
        eager = predictor._pass(rows, held, predictions)
    probabilities = [list((a.prediction.probabilities or {}).values()) for a in found if a.prediction]
    return float(np.abs(np.array(probabilities) - np.stack(eager)).max())


def print_profile(name: str, call: Callable[[], Any]) -> None:
    """Print where the time of the caller's thread goes."""
    profile, text = cProfile.Profile(), io.StringIO()
    profile.runcall(call)
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(22)
    print(name, text.getvalue()[:4500])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="all-mpnet-base-v2")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--switch-interval", type=float, help="seconds after which Python's threads take turns")
    parser.add_argument("--profile", action="store_true", help="print where the host's time goes")
    options = parser.parse_args()
    if options.switch_interval:
        sys.setswitchinterval(options.switch_interval)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    encoder = Encoder(plain_model(options.model, torch.float32, "cpu"), tokenizer, name=options.model)
    encoder.to("cuda", torch.bfloat16)
    tasks = served_tasks(encoder)
    engine = Engine(encoder, lambda name, *_: tasks[name])
    texts = sentences(tokenizer, 1024)
    names = list(tasks)
    asks = [Ask(names[i % TASKS], text) for i, text in enumerate(texts)]
    began = time.perf_counter()
    engine.answer(asks)
    cold = time.perf_counter() - began
    settle()  # as `intarsia serve` does
    tokens = sum(len(s.ids) for s in encoder.tokenize(texts))
    found: dict[str, Any] = {"mean_tokens": tokens / len(texts), "tasks": TASKS, "seconds_to_first_answers": cold}
    found["largest_difference_from_eager"] = largest_difference(engine, tasks, texts[:256])
    intarsia: dict[str, Any] = {}
    for rows, repeats in ((1, 200), (32, 50), (256, 30), (1024, 30), (8192, 8)):
        many = (asks * 8)[:rows]
        intarsia[str(rows)] = timed(lambda many=many: engine.answer(many), repeats, 10)  # type: ignore[misc]
        intarsia[str(rows)]["rows_per_second"] = rows / intarsia[str(rows)]["p50"]
    with ThreadPoolExecutor(128) as pool:
        one = [[ask] for ask in asks] * 4
        list(pool.map(engine.answer, one[:1024]))
        began = time.perf_counter()
        list(pool.map(engine.answer, one))
        intarsia["1 row from each of 128 threads"] = {"rows_per_second": len(one) / (time.perf_counter() - began)}
    found["intarsia"] = intarsia
    found["tokenize"] = timed(lambda: encoder.tokenize(texts, max_length=128), 20)
    if options.profile:
        print_profile("one row, 100 times", lambda: [engine.answer(asks[:1]) for _ in range(100)])
        print_profile("1,024 rows", lambda: engine.answer(asks))
    model = plain_model(options.model, torch.bfloat16)
    head = torch.nn.Linear(encoder.shape.width, 2, device="cuda", dtype=torch.bfloat16)
    plain: dict[str, Any] = {}
    for rows in (1, 1024):
        own = texts[:rows]
        plain[str(rows)] = timed(lambda own=own: plain_answers(model, tokenizer, head, own), 100 if rows == 1 else 20)  # type: ignore[misc]
        plain[str(rows)]["rows_per_second"] = rows / plain[str(rows)]["p50"]
    found["plain transformers base in bf16, one head"] = plain
    found["ratio_1024"] = intarsia["1024"]["rows_per_second"] / plain["1024"]["rows_per_second"]
    about = {"machine": machine("cuda"), "versions": versions(), "command": " ".join(["python", *sys.argv])}
    print(json.dumps(found, indent=1))
    if options.output:
        options.output.write_text(json.dumps(about | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
