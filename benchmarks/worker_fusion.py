"""The worker for fusions of AdapterHub's `adapters`: a forward pass, and a training step of the fusion."""

import argparse
import time
from typing import Any

import adapters
import torch
import transformers
from adapters.composition import Fuse
from worker import Answer, serve

MODEL: dict[str, Any] = {}


def prepare(base: str, parts: int, size: int, threads: int) -> Answer:
    """Load the base with Pfeiffer adapters of `size` units and a dynamic fusion over them."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = transformers.AutoModel.from_pretrained(base)
    adapters.init(model)
    names = [f"part{i}" for i in range(parts)]
    for name in names:
        model.add_adapter(name, config=adapters.SeqBnConfig(reduction_factor=model.config.hidden_size // size))
    setup = Fuse(*names)
    model.add_adapter_fusion(setup, adapters.DynamicAdapterFusionConfig())
    model.train_adapter_fusion(setup)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "adapters." in name:
                parameter.normal_(std=0.05)
    MODEL["model"] = model
    return {"versions": {"adapters": adapters.__version__, "transformers": transformers.__version__}}


def forward(ids: list[list[int]], passes: int) -> Answer:
    """Time forward passes over rows of equal length."""
    model, rows = MODEL["model"].eval(), torch.tensor(ids)
    with torch.inference_mode():
        return timed(lambda: model(input_ids=rows), passes)


def step(ids: list[list[int]], passes: int) -> Answer:
    """Time forward and backward passes of the fusion, with the penalty of its value matrices."""
    model, rows = MODEL["model"].train(), torch.tensor(ids)

    def train() -> None:
        loss = model(input_ids=rows).last_hidden_state.square().mean() + model.get_fusion_regularization_loss()
        loss.backward()
        model.zero_grad()

    return timed(train, passes)


def timed(action: Any, passes: int) -> Answer:
    """Return the shortest time of several calls, in wall time and in the process's own CPU time."""
    wall, cpu = [], []
    for _ in range(passes):
        began, began_cpu = time.perf_counter(), time.process_time()
        action()
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - began_cpu)
    return {"wall": min(wall), "cpu": min(cpu)}


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    serve({"prepare": prepare, "forward": forward, "step": step})
