"""`adapters` or `peft` behind FastAPI: mixed batches over many tasks. Runs in the environment of its system.

The libraries route the rows of one batch to their adapters themselves (`BatchSplit`, `adapter_names`). The service
prints `ready` when all tasks are in memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from serve_batching import Batcher, Row
from worker import encode


class Ask(BaseModel):
    task: str
    text: str


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("system", choices=("adapters", "peft"))
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--tasks", type=int, required=True)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--size", type=int, default=64)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    system: Any
    if given.system == "adapters":
        from worker_adapters import AdaptersSystem

        system = AdaptersSystem("sdpa")
    else:
        from worker_peft import PeftSystem

        system = PeftSystem("sdpa", ["query", "value"])
    model = system.task_model(given.size)
    model.hold(given.tasks)

    @torch.inference_mode()
    def answer(rows: Sequence[Row]) -> list[Any]:
        tasks, batch = [task for task, _ in rows], encode(system.tokenizer, [text for _, text in rows])
        if len(set(tasks)) == 1:  # the libraries' own way for one task, and the only one for one row
            model.activate(tasks[0])
            logits = model.logits(batch)
        else:
            model.activate_rows(tasks)
            logits = model.rows_logits(batch)
        return torch.softmax(logits, -1).tolist()

    batcher = Batcher(answer)
    app = FastAPI()

    @app.post("/predict")
    async def predict(ask: Ask) -> dict[str, Any]:
        return {"task": ask.task, "probabilities": await batcher.ask(ask.task, ask.text)}

    print("ready", flush=True)
    uvicorn.run(app, host="127.0.0.1", port=given.port, http="httptools", loop="uvloop", log_level="error")


if __name__ == "__main__":
    main()
