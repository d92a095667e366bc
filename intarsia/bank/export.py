"""Export a task as a plain `transformers` folder that works without Intarsia.

A mergeable method merges the task's tensors into a copy of the base's weights. If the family's sequence-classification
class computes the task's head, the export uses that class. Otherwise it stores the encoder, and the head separately in
`head.safetensors`. Before the folder gets its final name, the export loads it with `transformers` alone and compares
its logits with the bank's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from intarsia.bank.export_folder import explained, new_folder, size_of
from intarsia.bank.export_readme import readme
from intarsia.bank.inlay import Inlay
from intarsia.encoder.activations import activate
from intarsia.encoder.encoder import Encoder
from intarsia.errors import BankError, IntarsiaError
from intarsia.methods import METHODS, Method, from_dict
from intarsia.methods.method import Plain
from intarsia.tasks.heads import norm_eps

TOLERANCE = 1e-4  # relative to the largest logit: float32 sums in another order round differently
LONG_PROBE = 512  # tokens of the longest probe; longer limits are not tested
PROBLEMS = {
    "label": "single_label_classification",
    "labels": "multi_label_classification",
    "score": "regression",
}


@dataclass(frozen=True)
class Exported:
    """An exported folder, after the check of its logits."""

    task: str
    version: int
    folder: Path
    model: str  # class name in `transformers`; for adapters, the format
    head: str | None  # the head's own file; None if the model contains the head
    difference: float  # largest difference from the bank's logits, relative to the largest logit
    probes: int  # number of compared texts
    bytes: int
    format: str = "merged"


def mergeable(inlay: Inlay) -> Method:
    """Return the inlay's method; raise if the task cannot be exported."""
    method = from_dict(inlay.method)
    if inlay.kind not in PROBLEMS:
        raise IntarsiaError(
            f"The task {inlay.name!r} cannot be exported: its kind is {inlay.kind!r}. Expected one of: "
            f"{', '.join(PROBLEMS)}."
        )
    if not method.mergeable:
        able = ", ".join(name for name, kind in METHODS.items() if kind.mergeable)
        raise IntarsiaError(
            f"The task {inlay.name!r} cannot be exported: its method {method.name} cannot be merged into the base's "
            f"weights. Methods that can be merged: {able}."
        )
    return method


def export(
    inlay: Inlay, version: int, method: Method, encoder: Encoder, folder: Path, *, force: bool, keep: dict[str, Path]
) -> Exported:
    """Export the task to `folder` atomically, after checking the exported model's logits."""
    base = Path(encoder.name)
    keep = {**keep, "the bank's base": base} if base.is_dir() else keep
    made = _Model(inlay, method, encoder)
    with new_folder(folder, force, keep) as temporary:
        with explained(folder):
            made.write(temporary)
            text = readme(inlay, version, made.name, made.limit, made.options, norm_eps(encoder))
            (temporary / "README.md").write_text(text, encoding="utf-8")
        difference, probes = made.compare(temporary)
        if not difference <= TOLERANCE:
            raise BankError(
                f"The task {inlay.name!r} was not exported: the exported model's logits differ from the bank's by "
                f"{difference:.1e} of the largest logit (limit: {TOLERANCE:.0e}). No files were left behind."
            )
    head = None if made.classifier else "head.safetensors"
    return Exported(inlay.name, version, folder, made.name, head, difference, probes, size_of(folder))


class _Model:
    """Writes a task's merged model to a folder and checks it by loading it from there."""

    def __init__(self, inlay: Inlay, method: Method, encoder: Encoder) -> None:
        self.inlay, self.encoder = inlay, encoder
        shape, pooler = encoder.shape, encoder.family.pooler
        pooling = inlay.head["pooling"]
        self.limit = min(inlay.training.get("max_length") or encoder.max_length, encoder.max_length)
        self.weights = merged(inlay, method, encoder)
        self.temperature = float(inlay.head.get("temperature", 1.0))
        scaled = ("output.weight", "output.bias")  # so that the folder's probabilities are the bank's
        learned = inlay.learned_on(encoder)
        self.head = {
            name: tensor / self.temperature if name in scaled else tensor
            for name, tensor in learned.head_tensors.items()
        }
        self.hidden = learned.head.hidden
        if pooling == "pooler":
            self.head |= {f"pooler.{kind}": self.weights[f"{pooler}.{kind}"] for kind in ("weight", "bias")}
        dense = "pooler.weight" in self.head and self.hidden is None
        self.classifier = encoder.family.classifier if dense else None
        # If the base has no pooler, `transformers` would add a random one.
        self.options = {} if self.classifier or shape.pooler or pooler is None else {"add_pooling_layer": False}
        self.name = ""

    def write(self, folder: Path) -> None:
        from transformers import AutoModel, AutoModelForSequenceClassification

        config = self._config()
        weights = self.weights
        with torch.device("meta"):  # allocate nothing: `assign=True` below takes over our tensors
            if self.classifier:
                model = AutoModelForSequenceClassification.from_config(config)
                weights = self._with_head(model.base_model_prefix)
            else:
                model = AutoModel.from_config(config, **self.options)
        self.name = type(model).__name__
        model.load_state_dict(weights, assign=True)
        with _quiet():
            model.save_pretrained(folder)
            self._tokenizer().save_pretrained(folder)
        if not self.classifier:
            save_file({k: v.contiguous() for k, v in self.head.items()}, folder / "head.safetensors")

    def _with_head(self, prefix: str) -> dict[str, Tensor]:
        assert self.classifier is not None
        own, pooler = self.classifier, self.encoder.family.pooler
        found = {f"{prefix}.{k}": v for k, v in self.weights.items() if not (pooler and k.startswith(f"{pooler}."))}
        for kind in ("weight", "bias"):
            found[f"{own.dense}.{kind}"] = self.head[f"pooler.{kind}"]
            found[f"{own.output}.{kind}"] = self.head[f"output.{kind}"]
        return found

    def _config(self) -> Any:
        own = self.encoder.model.config
        config = type(own).from_dict(own.to_dict())  # a copy without Intarsia's attention setting
        # `pipeline("text-classification")` gives an encoder without a head a random one. Without labels, that head has
        # no outputs, and the pipeline fails: it never puts the task's labels over random weights.
        labels = (self.inlay.labels or ("score",)) if self.classifier else ()
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: i for i, label in enumerate(labels)}
        config.problem_type = PROBLEMS[self.inlay.kind] if self.classifier else None
        for name, value in (self.classifier.options if self.classifier else {}).items():
            setattr(config, name, value)
        if hasattr(config, "pooler_hidden_size"):
            config.pooler_hidden_size = config.hidden_size
        return config

    def _tokenizer(self) -> Any:
        """Return a copy of the tokenizer whose default output is the exported model's input."""
        tokenizer = copy.deepcopy(self.encoder.tokenizer)
        if tokenizer is None or tokenizer.pad_token is None:
            raise IntarsiaError(
                f"The task {self.inlay.name!r} cannot be exported: its base has no tokenizer, or one without a "
                "padding token."
            )
        if not self.encoder.family.token_types:
            names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
            tokenizer.model_input_names = names
        tokenizer.padding_side = "right"
        tokenizer.model_max_length = self.limit
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None:  # reset the settings of the last call
            backend.no_truncation()
            backend.no_padding()
        return tokenizer

    @torch.no_grad()
    def compare(self, folder: Path) -> tuple[float, int]:
        """Return the largest difference from the bank's logits, relative to the largest logit, and the text count."""
        texts = self._probes()
        others = texts[::-1] if self.inlay.data.get("pairs") else None
        expected = self._bank_logits(texts, others)
        found = self._plain_logits(folder, texts, others)
        return float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-6)), len(texts)

    def _probes(self) -> list[str]:
        """Return texts of words from the whole vocabulary; one text is longer than the limit."""
        tokenizer = self.encoder.tokenizer
        lengths = (1, 4, 9, 17, min(self.limit, LONG_PROBE) + 8)
        step = max(1, len(tokenizer) // 97)
        ids = [[(i * 31 + j * step + step // 2) % len(tokenizer) for j in range(n)] for i, n in enumerate(lengths)]
        return [tokenizer.decode(row, skip_special_tokens=True) for row in ids]

    def _bank_logits(self, texts: list[str], others: list[str] | None) -> Tensor:
        from intarsia.serve.limits import Limits
        from intarsia.serve.predictor import Predictor
        from intarsia.serve.served import Served

        task = Served(self.inlay.name, self.inlay.interface, lambda: self.inlay.learned_on(self.encoder))
        segments = self.encoder.tokenize(texts, others, max_length=self.limit)
        logits = Predictor(self.encoder, Limits(slots=1)).logits([(task, segment) for segment in segments])
        return torch.stack(logits).float().cpu() / self.temperature

    def _plain_logits(self, folder: Path, texts: list[str], others: list[str] | None) -> Tensor:
        """Return the folder's logits, computed as in its README."""
        from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        inputs = tokenizer(texts, others, padding=True, truncation=True, max_length=self.limit, return_tensors="pt")
        with _quiet():
            if self.classifier:
                return AutoModelForSequenceClassification.from_pretrained(folder)(**inputs).logits
            states = AutoModel.from_pretrained(folder, **self.options)(**inputs).last_hidden_state
        head = load_file(folder / "head.safetensors")
        mask = inputs["attention_mask"][:, :, None]
        rows = (states * mask).sum(1) / mask.sum(1) if self.inlay.head["pooling"] == "mean" else states[:, 0]
        if "pooler.weight" in head:
            rows = torch.tanh(rows @ head["pooler.weight"].T + head["pooler.bias"])
        if self.hidden:
            rows = activate(rows @ head["hidden.weight"].T + head["hidden.bias"], self.hidden.activation)
            if self.hidden.norm:
                norm = head["norm.weight"], head["norm.bias"]
                rows = F.layer_norm(rows, rows.shape[-1:], *norm, norm_eps(self.encoder))
        return rows @ head["output.weight"].T + head["output.bias"]


@torch.no_grad()
def merged(inlay: Inlay, method: Method, encoder: Encoder) -> dict[str, Tensor]:
    """Return the base's weights, by their names in `transformers`, with the task's tensors merged into copies."""
    plain = Plain(encoder.shape, {k: v.detach().cpu() for k, v in encoder.weights.items()}, encoder.at_site)
    method.check(encoder.shape)
    method.merge(encoder.shape, inlay.learned_on(encoder).method_tensors, plain)
    return {**plain.base, **plain.changed}


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the progress bars of `transformers`."""
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            logging.enable_progress_bar()
