"""The worker for Intarsia: it answers the same requests as the peers' workers, with `Run` and `Predictor`."""

import argparse
import platform
import time

import torch
import transformers
from worker import LEARNING_RATE, MAX_TOKENS, Answer, repeat, repeat_fresh, serve

import intarsia
from intarsia import Bottleneck, Encoder, Example, LoRA, Settings, TaskData
from intarsia.encoder.packed import Segment, pack
from intarsia.encoder.slots import start
from intarsia.methods import Method
from intarsia.serve.limits import Limits
from intarsia.serve.predictor import Predictor
from intarsia.serve.served import Served
from intarsia.tasks.heads import Head
from intarsia.tasks.learned import Interface, Learned
from intarsia.tasks.task_kind import TaskKind
from intarsia.train.job import Job
from intarsia.train.run import Run
from intarsia.train.step import step_together

SPREAD = 0.05  # the standard deviation of the noise on the weights of a randomised task


METHODS = {
    "houlsby": (Bottleneck, "attention and feed-forward outputs, and every LayerNorm"),
    "lora": (LoRA, "query, value"),
}


class Worker:
    def __init__(self, method: str) -> None:
        """`method`: a key of METHODS, for training and for serving."""
        self.method = method
        self.encoder = Encoder.load("minilm")
        self.run: Run | None = None
        self.batches: list[list[int]] = []
        self.grown: Predictor | None = None
        self.resident: list[Served] = []

    def versions(self) -> Answer:
        return {
            "system": "intarsia",
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "intarsia": intarsia.__version__,
            "transformers": transformers.__version__,
        }

    def setup_train(
        self,
        method: str,
        size: int,
        labels: int,
        texts: list[list[str]],
        targets: list[list[int]],
        threads: int = 2,
        seed: int = 0,
    ) -> Answer:
        if method != self.method:
            raise ValueError(f"this worker was started for {self.method!r}, not for {method!r}")
        torch.set_num_threads(threads)
        examples = [
            Example(text, None, str(target))
            for batch, row in zip(texts, targets, strict=True)
            for text, target in zip(batch, row, strict=True)
        ]
        data = TaskData("label", tuple(str(i) for i in range(labels)), examples, examples[:32], [], {})
        settings = Settings(learning_rate=LEARNING_RATE, max_length=MAX_TOKENS, seed=seed, epochs=1000)
        self.run = Run(Job("bench", data, self._method(size), settings=settings), self.encoder)
        at = 0
        self.batches = []
        for batch in texts:
            self.batches.append(list(range(at, at + len(batch))))
            at += len(batch)
        real = [int(self.run.tokens["train"].lengths[batch].sum()) for batch in self.batches]
        return {
            "trained": sum(s.size for s in self.run.slots.specs.values() if s.trained),
            "real_tokens": real,
            "padded_tokens": real,
            "placed": METHODS[self.method][1],
        }

    def train_steps(self, batches: list[int]) -> Answer:
        assert self.run is not None
        seconds, losses = [], []
        for index in batches:
            began = time.perf_counter()
            losses += step_together([(self.run, self.batches[index])])
            seconds.append(time.perf_counter() - began)
        return {"seconds": seconds, "loss": losses}

    def _method(self, size: int) -> Method:
        return METHODS[self.method][0](size)

    def _learned(self, number: int, size: int) -> Learned:
        """Return a task with random tensors that change the output, as trained tensors do."""
        method, head = self._method(size), Head(2)
        specs = {f"method.{k}": v for k, v in method.tensors(self.encoder.shape).items()}
        specs |= {f"head.{k}": v for k, v in head.tensors(self.encoder.shape).items()}
        draw = torch.Generator().manual_seed(number)
        tensors = {
            k: v + SPREAD * torch.randn(v.shape, generator=draw) for k, v in start(specs, self.encoder, number).items()
        }
        return Learned(method, head, TaskKind("label", ("0", "1")), tensors)

    def _served(self, number: int, size: int) -> Served:
        learned = self._learned(number, size)
        return Served(f"task{number}", Interface(learned.task_kind), lambda: learned)

    def setup_serve(self, tasks: int, size: int, texts: list[str], threads: int = 2, seed: int = 0) -> Answer:
        torch.set_num_threads(threads)
        self.tasks = [self._served(i, size) for i in range(tasks)]
        self.predictor = Predictor(self.encoder)
        self.segments: list[Segment] = self.encoder.tokenize(texts, max_length=MAX_TOKENS)
        real = sum(len(s.ids) for s in self.segments)
        return {"real_tokens": real, "padded_tokens": real}

    def serve(self, mode: str, repeats: int) -> Answer:
        if mode == "bare":
            batch = pack(self.segments)
            with torch.inference_mode():
                return {"seconds": repeat(lambda: self.encoder.forward(batch), repeats)}
        requests = [(self.tasks[i if mode == "mixed" else 0], s) for i, s in enumerate(self.segments)]
        self.predictor.predict(requests)
        return {"seconds": repeat(lambda: self.predictor.predict(requests), repeats)}

    def check_serve(self) -> Answer:
        mixed = self.predictor.predict([(self.tasks[i], s) for i, s in enumerate(self.segments)])
        worst = 0.0
        for i in range(len(self.segments)):
            one_task = self.predictor.predict([(self.tasks[i], s) for s in self.segments])
            worst = max(worst, float(abs(one_task[i] - mixed[i]).max()))
        return {"equal": worst < 1e-4, "largest_difference": worst}

    def _hold(self, present: int, size: int) -> Predictor:
        """Return a predictor that holds at least `present` tasks."""
        if self.grown is None:
            self.grown = Predictor(self.encoder, Limits(slots=1024))
        for i in range(len(self.resident), present):
            self.resident.append(self._served(i, size))
            self.grown.hold(self.resident[-1])
        return self.grown

    def add_task(self, present: int, repeats: int, size: int = 64, threads: int = 2) -> Answer:
        torch.set_num_threads(threads)
        predictor = self._hold(present, size)
        new = [self._served(present + i, size) for i in range(repeats)]
        return repeat_fresh(lambda i: predictor.hold(new[i]), repeats, after=lambda i: predictor.drop(new[i].key))

    def switch_task(self, present: int, repeats: int, size: int = 64, threads: int = 2) -> Answer:
        """Time the lookup of a resident task. Nothing is switched, because each request names its task."""
        torch.set_num_threads(threads)
        predictor = self._hold(present, size)
        return repeat_fresh(lambda i: predictor.hold(self.resident[i % present]), repeats)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--method", choices=METHODS, default="houlsby")
    worker = Worker(options.parse_args().method)
    names = ("versions", "setup_train", "train_steps", "setup_serve", "serve", "check_serve", "add_task", "switch_task")
    serve({name: getattr(worker, name) for name in names})
