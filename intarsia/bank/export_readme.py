"""The README of an exported folder: a description, and example code that uses torch and `transformers` alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intarsia.bank.inlay import Inlay
from intarsia.version import __version__

_ROWS = {
    "mean": (
        '    mask = inputs["attention_mask"][:, :, None]',
        "    rows = (states * mask).sum(1) / mask.sum(1)  # mean over the tokens, without padding",
    ),
    "cls": ("    rows = states[:, 0]  # the first token",),
    "pooler": (
        "    rows = states[:, 0]  # the first token",
        '    rows = torch.tanh(rows @ head["pooler.weight"].T + head["pooler.bias"])',
    ),
}
_ROWS["trained-pooler"] = _ROWS["pooler"]
_ACTIVATIONS = {
    "gelu": 'F.gelu(rows, approximate="tanh")',
    "relu": "F.relu(rows)",
    "tanh": "torch.tanh(rows)",
    "swish": "F.silu(rows)",
    "gelu_exact": "F.gelu(rows)",
    "leaky_relu": "F.leaky_relu(rows)",
    "quick_gelu": "rows * torch.sigmoid(1.702 * rows)",
    "relu6": "F.relu6(rows)",
    "mish": "F.mish(rows)",
    "sigmoid": "torch.sigmoid(rows)",
    "linear": "rows",
}
_HEADS = {
    "mean": "a linear layer on the mean of the token states",
    "cls": "a linear layer on the first token's state",
    "pooler": "the base's pooler (a dense layer on the first token's state, tanh), then a linear layer",
    "trained-pooler": "the task's own pooler (a dense layer on the first token's state, tanh), then a linear layer",
}


def readme(inlay: Inlay, version: int, model: str, limit: int, options: Mapping[str, Any], eps: float) -> str:
    """Return the README. `model` is the class name in `transformers`; `options` are its `from_pretrained` options;
    `eps` is the epsilon of its LayerNorms."""
    pairs = bool(inlay.data.get("pairs"))
    has_head = model.endswith("ForSequenceClassification")
    base = inlay.encoder.get("name", "")
    where = "in the model" if has_head else "in `head.safetensors`, separate from the model"
    lines = [
        f"# {inlay.name}",
        "",
        f"This folder holds the task `{inlay.name}`, version {version}, exported by Intarsia {__version__}. The task's "
        "parameters are merged into the weights.",
        "It needs torch, transformers and safetensors; it does not need Intarsia.",
        "",
        f"- Model: `{model}`; base `{Path(base).name if Path(base).is_absolute() else base}`, method "
        f"`{inlay.method['type']}`",
        f"- Head ({where}): {_HEADS[inlay.head['pooling']]}"
        + (", with a hidden layer in front of it" if inlay.head.get("hidden") else ""),
        f"- Output: {_output(inlay)}",
        f"- Input: {'pairs of texts' if pairs else 'single texts'}, cut to {limit} tokens, including special tokens"
        + ("; the longer text of a pair is cut first" if pairs else ""),
        "",
        "```python",
        *(_classifier(pairs, limit) if has_head else _encoder(inlay.head, pairs, limit, options, eps)),
        *_use(inlay, pairs, has_head),
        "```",
        *([] if has_head else _no_pipeline()),
    ]
    return "\n".join(lines) + "\n"


def _output(inlay: Inlay) -> str:
    if inlay.kind == "score":
        return f"a score: the logit times {_spread(inlay)!r} (spread) plus {_mean(inlay)!r} (mean)"
    count = "one label of" if inlay.kind == "label" else "any number of labels of"
    return f"{count} {json.dumps(inlay.labels, ensure_ascii=False)}, in the order of the logits"


def _function(pairs: bool, limit: int) -> list[str]:
    arguments = "texts, others" if pairs else "texts"
    return [
        "",
        "",
        f"def logits({arguments}):",
        f'    inputs = tokenizer({arguments}, padding=True, truncation=True, max_length={limit}, return_tensors="pt")',
        "    with torch.no_grad():",
    ]


def _classifier(pairs: bool, limit: int) -> list[str]:
    return [
        "import torch",
        "from transformers import AutoModelForSequenceClassification, AutoTokenizer",
        "",
        'folder = "."  # the path of this folder',
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
        "model = AutoModelForSequenceClassification.from_pretrained(folder)",
        *_function(pairs, limit),
        "        return model(**inputs).logits",
    ]


def _encoder(head: Mapping[str, Any], pairs: bool, limit: int, options: Mapping[str, Any], eps: float) -> list[str]:
    hidden = head.get("hidden")
    more = "".join(f", {name}={value!r}" for name, value in options.items())
    return [
        "import torch",
        *(["import torch.nn.functional as F"] if hidden else ()),
        "from safetensors.torch import load_file",
        "from transformers import AutoModel, AutoTokenizer",
        "",
        'folder = "."  # the path of this folder',
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
        f"model = AutoModel.from_pretrained(folder{more})",
        'head = load_file(f"{folder}/head.safetensors")',
        *_function(pairs, limit),
        "        states = model(**inputs).last_hidden_state",
        *_ROWS[head["pooling"]],
        *(_hidden(hidden, eps) if hidden else ()),
        '    return rows @ head["output.weight"].T + head["output.bias"]',
    ]


def _hidden(hidden: Mapping[str, Any], eps: float) -> list[str]:
    """Return the lines that compute the head's hidden layer."""
    norm = f'F.layer_norm(rows, rows.shape[-1:], head["norm.weight"], head["norm.bias"], {eps!r})'
    return [
        '    rows = rows @ head["hidden.weight"].T + head["hidden.bias"]',
        f"    rows = {_ACTIVATIONS[hidden['activation']]}",
        *([f"    rows = {norm}"] if hidden["norm"] else ()),
    ]


def _no_pipeline() -> list[str]:
    return [
        "",
        'No class of transformers computes this head, so `pipeline("text-classification")` cannot open this folder. '
        "For a folder that it opens, learn the task with `--pooling trained-pooler` and export it again.",
    ]


def _use(inlay: Inlay, pairs: bool, has_head: bool) -> list[str]:
    example = '["A text.", "Another text."]' + (', ["A second text.", "Another second text."]' if pairs else "")
    lines = ["", "", f"outputs = logits({example})"]
    if inlay.kind == "score":
        return [*lines, f"print((outputs[:, 0] * {_spread(inlay)!r} + {_mean(inlay)!r}).tolist())"]
    labels = "model.config.id2label" if has_head else json.dumps(list(inlay.labels), ensure_ascii=False)
    lines.append(f"label = {labels}")
    if inlay.kind == "label":
        return [*lines, "print([(label[int(p.argmax())], float(p.max())) for p in outputs.softmax(-1)])"]
    limits = [float(limit) for limit in inlay.head.get("thresholds") or [0.5] * len(inlay.labels)]
    return [
        *lines,
        f"limits = {limits!r}  # the probability from which each label applies",
        "chosen = [[label[i] for i, p in enumerate(row) if p >= limits[i]] for row in outputs.sigmoid().tolist()]",
        "print(chosen)",
    ]


def _spread(inlay: Inlay) -> float:
    return float(inlay.head.get("spread", 1.0))


def _mean(inlay: Inlay) -> float:
    return float(inlay.head.get("mean", 0.0))
