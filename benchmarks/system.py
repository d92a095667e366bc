"""The requests of the worker protocol, implemented on the few operations in which the peer systems differ.

    do            arguments (= default)                                    answer
    versions                                                               system, python, torch, threads, libraries
    setup_train   method, size, labels, texts, targets, threads=2,         trained, real_tokens, padded_tokens (a list
                  seed=0, fused=true (AdamW's fused kernel)                each, by batch), placed
    train_steps   batches (indices)                                        seconds, loss (lists, by step)
    setup_serve   tasks, size, texts (one per task), threads=2, seed=0     real_tokens, padded_tokens
    serve         mode (bare, one, mixed), repeats                         seconds
    check_serve                                                            equal, largest_difference,
                                                                           least_difference_between_tasks
    add_task      present, repeats, source=fresh (or file), size=64,       seconds, cpu_seconds
                  threads=2
    switch_task   present, repeats, size=64, threads=2                     seconds, cpu_seconds

`method` is houlsby (size: the bottleneck) or lora (size: the rank). Tokenising, building a model, activating a mode and
adding tasks up to `present` are never timed. add_task and switch_task use their own model, not setup_serve's.
"""

import platform
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from worker import Answer, Batch, Training, encode, repeat, repeat_fresh, serve


class TaskModel(ABC):
    """A frozen base in evaluation mode that holds any number of tasks, each an adapter with its two-way head."""

    def __init__(self) -> None:
        self.tasks: list[str] = []

    @abstractmethod
    def add(self, task: str) -> None:
        """Add a task with the library's initial weights."""

    @abstractmethod
    def randomise(self, task: str) -> None:
        """Give a task random weights that change the output, as trained weights would."""

    @abstractmethod
    def remove(self, task: str) -> None: ...

    @abstractmethod
    def save(self, task: str, folder: Path) -> Path:
        """Write a task to a folder and return the path to load it from."""

    @abstractmethod
    def load(self, task: str, path: Path) -> None:
        """Add a task from a path that `save` returned."""

    @abstractmethod
    def activate(self, task: str) -> None:
        """Use this task for every row of the next forward pass."""

    @abstractmethod
    def activate_rows(self, tasks: list[str]) -> None:
        """Use tasks[i] for row i of the next `rows_logits`."""

    @abstractmethod
    def logits(self, batch: Batch) -> Tensor: ...

    @abstractmethod
    def rows_logits(self, batch: Batch) -> Tensor: ...

    def hold(self, count: int) -> None:
        """Add or remove tasks until there are `count`."""
        while len(self.tasks) > count:
            self.remove(self.tasks.pop())
        while len(self.tasks) < count:
            task = f"task{len(self.tasks)}"
            self.add(task)
            self.randomise(task)
            self.tasks.append(task)


class System(ABC):
    """One measured system: the state of a worker, and a method for each request."""

    name: str

    def __init__(self, tokenizer: Callable[..., Any]) -> None:
        self.tokenizer = tokenizer
        self.training: Training | None = None
        self.served: TaskModel | None = None
        self.grown: TaskModel | None = None
        self.grown_size = 0

    @abstractmethod
    def library_versions(self) -> dict[str, str]: ...

    @abstractmethod
    def train_model(
        self, method: str, size: int, labels: int
    ) -> tuple[torch.nn.Module, Callable[[Batch], Tensor], Answer]:
        """Return a model in training mode, its logits function, and further fields of the answer."""

    @abstractmethod
    def task_model(self, size: int) -> TaskModel: ...

    @abstractmethod
    def bare_model(self) -> torch.nn.Module:
        """Return the plain base from transformers, without changes by the measured library."""

    def versions(self) -> Answer:
        return {
            "system": self.name,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            **self.library_versions(),
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
        fused: bool = True,
    ) -> Answer:
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        model, logits, notes = self.train_model(method, size, labels)
        batches = [encode(self.tokenizer, batch) for batch in texts]
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.training = Training(logits, trainable, batches, targets, fused=fused)
        return {**self.training.describe(), **notes}

    def train_steps(self, batches: list[int]) -> Answer:
        if self.training is None:
            raise RuntimeError("train_steps needs a setup_train request first")
        return self.training.steps(batches)

    def setup_serve(self, tasks: int, size: int, texts: list[str], threads: int = 2, seed: int = 0) -> Answer:
        if tasks != len(texts):
            raise ValueError(f"{tasks} tasks but {len(texts)} texts: the mixed batch needs one text per task")
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        self.served = self.task_model(size)
        self.served.hold(tasks)
        self.bare = self.bare_model().eval()
        self.batch = encode(self.tokenizer, texts)
        mask = self.batch["attention_mask"]
        return {"real_tokens": int(mask.sum()), "padded_tokens": mask.numel()}

    @torch.inference_mode()
    def serve(self, mode: str, repeats: int) -> Answer:
        model = self._served()
        if mode == "bare":
            return {"seconds": repeat(lambda: self.bare(**self.batch), repeats)}
        if mode == "one":
            model.activate(model.tasks[0])
            return {"seconds": repeat(lambda: model.logits(self.batch), repeats)}
        if mode == "mixed":
            model.activate_rows(model.tasks)
            return {"seconds": repeat(lambda: model.rows_logits(self.batch), repeats)}
        raise ValueError(f"unknown mode {mode!r}: expected bare, one or mixed")

    @torch.inference_mode()
    def check_serve(self) -> Answer:
        """Compare each row of the mixed batch with the same row of a batch that uses that row's task throughout."""
        model = self._served()
        model.activate_rows(model.tasks)
        mixed = model.rows_logits(self.batch).clone()
        single = []
        for task in model.tasks:
            model.activate(task)
            single.append(model.logits(self.batch).clone())
        whole = torch.stack(single)  # task, row, label
        rows = torch.arange(len(model.tasks))
        between = (whole[1:] - whole[:-1]).abs().amax(dim=(1, 2))
        return {
            "equal": torch.allclose(mixed, whole[rows, rows], atol=1e-5),
            "largest_difference": float((mixed - whole[rows, rows]).abs().max()),
            "least_difference_between_tasks": float(between.min()),
        }

    def add_task(self, present: int, repeats: int, source: str = "fresh", size: int = 64, threads: int = 2) -> Answer:
        """Time the addition of one task to `present` tasks, fresh or from a file. Its removal is not timed."""
        if present < 1:
            raise ValueError(
                "add_task needs at least one present task: libraries differ in when they build the first one"
            )
        model = self._grown(present, size, threads)
        add: Callable[[str], None]
        with tempfile.TemporaryDirectory() as folder:
            if source == "file":
                path = model.save(model.tasks[0], Path(folder))
                add = partial(model.load, path=path)
            elif source == "fresh":
                add = model.add
            else:
                raise ValueError(f"unknown source {source!r}: expected fresh or file")
            return repeat_fresh(
                lambda number: add(f"new{number}"), repeats, lambda number: model.remove(f"new{number}")
            )

    def switch_task(self, present: int, repeats: int, size: int = 64, threads: int = 2) -> Answer:
        """Time the activation of another resident task. The forward pass after it is not timed."""
        if present < 2:
            raise ValueError("switch_task needs at least two present tasks")
        model = self._grown(present, size, threads)
        model.activate(model.tasks[-1])
        return repeat_fresh(lambda number: model.activate(model.tasks[number % present]), repeats)

    def run(self) -> None:
        names = (
            "versions",
            "setup_train",
            "train_steps",
            "setup_serve",
            "serve",
            "check_serve",
            "add_task",
            "switch_task",
        )
        serve({name: getattr(self, name) for name in names})

    def _served(self) -> TaskModel:
        if self.served is None:
            raise RuntimeError("serve and check_serve need a setup_serve request first")
        return self.served

    def _grown(self, present: int, size: int, threads: int) -> TaskModel:
        torch.set_num_threads(threads)
        if self.grown is None or self.grown_size != size:
            self.grown, self.grown_size = self.task_model(size), size
        self.grown.hold(present)
        return self.grown
