"""Write a BERT that a package ships as an ONNX file as a `transformers` folder.

    python benchmarks/onnx_base.py MODEL.onnx TOKENIZER.json FOLDER --heads 12

The experiments of docs/composition.md use it for bases that packages bring along. It reads the initializers,
dequantises int8 and uint8 tensors, and takes the matrices of the layers from the graph, in which exporters rename them.
Pooling and projections behind the last layer are left out. `--every 2` keeps the layers 0, 2, 4 and so on. It needs the
package `onnx`.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

LINEARS = (
    "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
    "intermediate.dense", "output.dense",
)  # fmt: skip


def tensors_of(path: Path) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """Return the named tensors of the file and, in the order of the graph, the matrices that multiply states."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(str(path))
    raw = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    found = dict(raw)
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and all(name in raw for name in node.input):
            axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
            found[node.output[0]] = dequantised(axis, *(raw[name] for name in node.input))
        elif node.op_type in ("Identity", "Transpose") and node.input[0] in found:
            value = found[node.input[0]]
            found[node.output[0]] = value if node.op_type == "Identity" else value.T
    seconds = [node.input[1] for node in model.graph.node if node.op_type == "MatMul"]
    matrices = [found[name] for name in seconds if name in found and found[name].ndim == 2]
    return {
        name.removeprefix("inner.").removesuffix("_DequantizeLinear_Output"): v for name, v in found.items()
    }, matrices


def dequantised(axis: int, values: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    shape = [-1 if i == axis else 1 for i in range(values.ndim)] if scale.size > 1 else [1] * values.ndim
    zero = zero.astype(np.float32).reshape(shape if zero.size > 1 else [1] * values.ndim)
    return (values.astype(np.float32) - zero) * scale.astype(np.float32).reshape(shape)


def bert(path: Path, heads: int, every: int = 1) -> Any:
    """Return the `transformers` model, with each layer or each `every`-th."""
    import torch
    from transformers import BertConfig, BertModel

    named, matrices = tensors_of(path)
    words = named["embeddings.word_embeddings.weight"]
    layers = 1 + max(int(name.split(".")[2]) for name in named if name.startswith("encoder.layer."))
    width, inner = words.shape[1], matrices[4].shape[1]
    config = BertConfig(
        vocab_size=words.shape[0], hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=inner, max_position_embeddings=named["embeddings.position_embeddings.weight"].shape[0],
    )  # fmt: skip
    model = BertModel(config, add_pooling_layer=False)
    state = {name: value for name, value in named.items() if name in model.state_dict()}
    expected = [(width, width)] * 4 + [(width, inner), (inner, width)]
    for i in range(layers):
        for linear, matrix, shape in zip(LINEARS, matrices[6 * i : 6 * i + 6], expected, strict=True):
            assert matrix.shape == shape, (i, linear, matrix.shape, shape)
            state[f"encoder.layer.{i}.{linear}.weight"] = matrix.T
    model.load_state_dict({name: torch.from_numpy(np.array(value, np.float32)) for name, value in state.items()})
    model.encoder.layer = model.encoder.layer[::every]
    config.num_hidden_layers = len(model.encoder.layer)
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    bert(options.model, options.heads, options.every).save_pretrained(options.folder)
    shutil.copy(options.tokenizer, options.folder / "tokenizer.json")
    special = {f"{n}_token": f"[{n.upper()}]" for n in ("pad", "unk", "cls", "sep", "mask")}
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, **special}
    (options.folder / "tokenizer_config.json").write_text(json.dumps(about))


if __name__ == "__main__":
    main()
