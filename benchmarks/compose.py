"""Compositions on a CPU: stacks against single inlays, several answers to one text, and fusion against `adapters`.

python benchmarks/compose.py --adapters PYTHON --output results/compose-cpu.json

`PYTHON` is the interpreter of an environment with `adapters` (`benchmarks/setup_peers.sh`); without it the fusion is
measured alone. The variants of a comparison take turns, and each figure is the shortest of its passes, in wall time and
in the process's own CPU time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peers import Worker

from intarsia import provenance
from intarsia.encoder.encoder import Encoder
from intarsia.encoder.packed import Segment, pack
from intarsia.encoder.routed import Group
from intarsia.encoder.slots import start
from intarsia.encoder.sources import embedded_folder
from intarsia.methods import Fuse, Method, Parent, Pfeiffer, Stack
from intarsia.methods.held import Held, parts_of
from intarsia.serve.predictor import Predictor
from intarsia.serve.served import Served
from intarsia.tasks.heads import Head
from intarsia.tasks.learned import HEAD, METHOD, Interface, Learned
from intarsia.tasks.task_kind import TaskKind

SIZE, PARTS, TURNS = 48, 8, 3
Times = dict[str, dict[str, float]]


class Tasks:
    """Tasks with random tensors, and frozen inlays on which they are built."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.parents: dict[str, Learned] = {}

    def parent(self, name: str, method: Method) -> Parent:
        digest = hashlib.sha256(name.encode()).hexdigest()
        self.parents[digest] = self._learned(name, method)
        return Parent(digest, name, 1, method)

    def served(self, name: str, method: Method) -> Served:
        learned = self._learned(name, method)
        return Served(name, Interface(learned.task_kind), lambda: learned, name, 1)

    def _learned(self, name: str, method: Method) -> Learned:
        shape, head = self.encoder.shape, Head(2, "mean")
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
        tensors = {METHOD + k: t for k, t in start(method.stored(shape), self.encoder, seed).items()}
        for key, spec in head.tensors(shape).items():
            tensors[HEAD + key] = torch.full(spec.shape, 0.01)
        return Learned(method, head, TaskKind("label", ("no", "yes")), tensors, self.parents)


def alternating(variants: dict[str, Callable[[], object]], seconds: float) -> Times:
    """Return the shortest time of each variant, in milliseconds."""
    found: Times = {name: {"wall_ms": 1e9, "cpu_ms": 1e9} for name in variants}
    for run in variants.values():
        run()
    for _ in range(TURNS):
        for name, run in variants.items():
            end = time.perf_counter() + seconds
            while True:
                wall, cpu = time.perf_counter(), time.process_time()
                run()
                now, times = time.perf_counter(), found[name]
                times["wall_ms"] = min(times["wall_ms"], 1000 * (now - wall))
                times["cpu_ms"] = min(times["cpu_ms"], 1000 * (time.process_time() - cpu))
                if now > end:
                    break
    return found


def texts(rows: int, tokens: int, seed: int = 0) -> list[Segment]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1000, 20000, (rows, tokens), generator=generator).tolist()
    return [Segment(row, [0] * tokens) for row in ids]


def mixed(encoder: Encoder, tokens: int, seconds: float) -> dict[str, Any]:
    """16 tasks with 4 rows each: single inlays, stacks over one frozen inlay, over four, and with copies of it."""
    tasks, predictor = Tasks(encoder), Predictor(encoder)
    languages = [tasks.parent(f"language-{i}", Pfeiffer(SIZE)) for i in range(4)]
    wide = tasks.parent("wide", Pfeiffer(reduction=2))
    kinds: dict[str, Callable[[int], Method]] = {
        "single": lambda i: Pfeiffer(SIZE),
        "stack": lambda i: Stack(languages[0], Pfeiffer(SIZE)),
        "stack over four": lambda i: Stack(languages[i % 4], Pfeiffer(SIZE)),
        "stack with copies": lambda i: Stack(Pfeiffer(SIZE), Pfeiffer(SIZE)),
        "stack over reduction 2": lambda i: Stack(wide, Pfeiffer(SIZE)),
        "half stacks": lambda i: Stack(languages[0], Pfeiffer(SIZE)) if i % 2 else Pfeiffer(SIZE),
    }
    rows = texts(64, tokens)
    variants: dict[str, Callable[[], object]] = {"plain base": lambda: encoder.forward(pack(rows))}
    for name, method in kinds.items():
        served = [tasks.served(f"{name} {i}", method(i)) for i in range(16)]
        requests = [(served[i % 16], row) for i, row in enumerate(rows)]
        variants[name] = lambda requests=requests: predictor.logits(requests)  # type: ignore[misc]
    times = alternating(variants, seconds)
    ratios = {name: times[name]["cpu_ms"] / times["single"]["cpu_ms"] for name in kinds}
    held = {key[0]: slots.table.width * 4 for key, slots in predictor.shapes.items()}
    return {"tokens": tokens, "rows": 64, "tasks": 16, "times": times, "of_single_cpu": ratios, "bytes_a_slot": held}


def parallel(encoder: Encoder, tokens: int, seconds: float, answers: int = 8) -> dict[str, Any]:
    """Eight answers to each of 8 texts by tasks that begin in the upper half, against 64 texts with one answer each."""
    tasks, predictor = Tasks(encoder), Predictor(encoder)
    half = tuple(range(encoder.shape.layers // 2, encoder.shape.layers))
    served = [tasks.served(f"upper {i}", Pfeiffer(SIZE, layers=half)) for i in range(answers)]
    shared, apart = texts(8, tokens), texts(8 * answers, tokens, 1)
    variants: dict[str, Callable[[], object]] = {
        "shared": lambda: predictor.logits([(task, row) for row in shared for task in served]),
        "rows": lambda: predictor.logits([(served[i % answers], row) for i, row in enumerate(apart)]),
        "one answer": lambda: predictor.logits([(served[0], row) for row in shared]),
    }
    times = alternating(variants, seconds)
    ratio = {kind: times["shared"][kind] / times["rows"][kind] for kind in ("wall_ms", "cpu_ms")}
    return {"tokens": tokens, "texts": 8, "answers": answers, "times": times, "of_rows": ratio}


def fusion(encoder: Encoder, base: str, tokens: int, seconds: float, python: str | None) -> dict[str, Any]:
    """A fusion of eight frozen Pfeiffer adapters on 32 rows: a forward pass, and forward and backward in training."""
    tasks = Tasks(encoder)
    parts = [tasks.parent(f"part {i}", Pfeiffer(SIZE)) for i in range(PARTS)]
    method, shape, rows = Fuse(*parts), encoder.shape, texts(32, tokens)
    inlays = {
        digest: Held(inlay.method, {k: t[None] for k, t in inlay.method_tensors.items()}, 0)
        for digest, inlay in tasks.parents.items()
    }
    tensors = {k: t[None].requires_grad_() for k, t in start(method.tensors(shape), encoder, 0).items()}
    single = inlays[parts[0].digest]
    places = method.places(shape)

    def states(training: bool) -> torch.Tensor:
        bound = parts_of([Held(method, tensors, 0, inlays)], shape)
        group = Group(method, places, tensors, 0, (0,), (len(rows),), bound)
        return encoder.forward(pack(rows), [group], training=training)

    def forward() -> None:
        with torch.no_grad():
            states(False)

    def step() -> None:
        penalty = method.penalty("train", shape, tensors, {}, encoder.weights)
        assert penalty is not None
        torch.autograd.grad(states(True).square().mean() + penalty, list(tensors.values()))

    def one() -> None:
        group = Group(single.method, places, single.tensors, 0, (0,), (len(rows),))
        with torch.no_grad():
            encoder.forward(pack(rows), [group])

    times = alternating({"one adapter": one, "fusion": forward, "training step": step}, seconds)
    found: dict[str, Any] = {"tokens": tokens, "rows": len(rows), "parts": PARTS, "intarsia": times}
    if python is not None:
        worker = Worker(python, str(Path(__file__).with_name("worker_fusion.py")))
        answer = worker.ask(do="prepare", base=base, parts=PARTS, size=SIZE, threads=torch.get_num_threads())
        ids = [list(row.ids) for row in rows]
        passes = max(3, int(TURNS * seconds / (times["training step"]["wall_ms"] / 1000)))
        theirs = {name: worker.ask(do=name, ids=ids, passes=passes) for name in ("forward", "step")}
        worker.close()
        ours = {"forward": times["fusion"], "step": times["training step"]}
        found |= {
            "adapters": {
                name: {f"{kind}_ms": 1000 * t[kind] for kind in ("wall", "cpu")} for name, t in theirs.items()
            },
            "adapters_versions": answer["versions"],
            "faster_cpu": {name: 1000 * theirs[name]["cpu"] / ours[name]["cpu_ms"] for name in theirs},
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapters", help="the interpreter of an environment with `adapters`")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 48])
    parser.add_argument("--seconds", type=float, default=1.0, help="of each turn of a variant")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("results/compose-cpu.json"))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    encoder = Encoder.load()
    runs = {
        "mixed": [mixed(encoder, tokens, given.seconds) for tokens in given.tokens],
        "parallel": [parallel(encoder, tokens, given.seconds) for tokens in given.tokens],
        "fusion": [
            fusion(encoder, str(embedded_folder()), tokens, given.seconds, given.adapters) for tokens in given.tokens
        ],
    }
    arguments = [Path(a).name if "/" in a else a for a in sys.argv[1:]]  # no paths of this machine
    content = {
        "command": " ".join(["python benchmarks/compose.py", *arguments]),
        "base": encoder.description,
        "threads": given.threads,
        "machine": provenance.machine(),
        "versions": provenance.versions(),
        "seeds": "the tensors' seeds are hashes of the tasks' names; the texts' seeds are 0 and 1",
        **runs,
    }
    given.output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for kind, found in runs.items():
        for run in found:
            summary = {k: v for k, v in run.items() if k.startswith(("of_", "faster"))}
            print(f"{kind}, {run['tokens']} tokens: {summary}")


if __name__ == "__main__":
    main()
