"""A task as a plain `transformers` folder, which needs no Intarsia.

Where a method's mathematics allow it, what a task learned is merged into a copy of the base's weights. Where a
sequence-classification class of the family computes the task's head, the folder is one of that class; otherwise it is
the encoder, with the head beside it in `head.safetensors`. The folder is read back with `transformers` alone, and gets
its name only if its logits are the bank's own.
"""

from __future__ import annotations

import copy
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from intarsia import files
from intarsia.bank.export_readme import readme
from intarsia.bank.inlay import Inlay
from intarsia.encoder.encoder import Encoder
from intarsia.errors import BankError, IntarsiaError
from intarsia.methods import METHODS, Method, from_dict
from intarsia.methods.method import Plain

TOLERANCE = 1e-4  # of the largest logit: float32 rounding, summed in another order
LONG_PROBE = 512  # tokens; longer limits are not tried out
PROBLEMS = {
    "label": "single_label_classification",
    "labels": "multi_label_classification",
    "score": "regression",
}


@dataclass(frozen=True)
class Classifier:
    """Where a family's sequence-classification class keeps a dense layer on the first token, whose tanh goes to a
    linear output. ELECTRA's has gelu there, DistilBERT's relu, and ModernBERT's a norm behind: these are not our head.
    """

    dense: str
    output: str
    options: Mapping[str, str] = field(default_factory=dict)  # of the configuration, that make it so


_LIKE_ROBERTA = Classifier("classifier.dense", "classifier.out_proj")
CLASSIFIERS = {
    "bert": Classifier("bert.pooler.dense", "classifier"),
    "albert": Classifier("albert.pooler", "classifier"),
    "roberta": _LIKE_ROBERTA,
    "xlm-roberta": _LIKE_ROBERTA,
    "mpnet": _LIKE_ROBERTA,
    "deberta-v2": Classifier("pooler.dense", "classifier", {"pooler_hidden_act": "tanh"}),
}


@dataclass(frozen=True)
class Exported:
    """A folder that was written, and read back."""

    task: str
    version: int
    folder: Path
    model: str  # the class in `transformers`
    head: str | None  # the file of a head beside the model; None: it is in the model
    difference: float  # largest one between its logits and the bank's, as a part of the largest logit
    probes: int  # texts that were compared
    bytes: int


def mergeable(inlay: Inlay) -> Method:
    """The inlay's method, if it can be merged."""
    method = from_dict(inlay.method)
    if inlay.kind not in PROBLEMS:
        raise IntarsiaError(f"the task {inlay.name!r} cannot be exported: its answers are {inlay.kind}, not of a text.")
    if not method.mergeable:
        able = ", ".join(name for name, kind in METHODS.items() if kind.mergeable)
        raise IntarsiaError(
            f"the task {inlay.name!r} cannot be exported: what its method {method.name} computes is no change of the "
            f"base's weights. Methods that can be merged: {able}."
        )
    return method


def check_folder(folder: Path, force: bool, spared: Mapping[str, Path]) -> None:
    """Refuse a folder that would have to be replaced, without `force` and, where it holds what is `spared`, with it."""
    if folder.exists() and not folder.is_dir():
        raise IntarsiaError(f"{folder} is a file; a folder, or the name of a new one, was expected.")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not force:
        raise IntarsiaError(f"{folder} is not empty. Name another folder, or have this one replaced: --force.")
    for what, path in spared.items():
        if path.resolve().is_relative_to(folder):
            raise IntarsiaError(f"{folder} is not replaced, even with --force: it holds {what}. Name another folder.")


def export(
    inlay: Inlay, version: int, method: Method, encoder: Encoder, folder: Path, *, force: bool, spared: dict[str, Path]
) -> Exported:
    """Write the folder, whole or not at all."""
    base = Path(encoder.name)
    spared = {**spared, "the bank's base": base} if base.is_dir() else spared
    check_folder(folder, force, spared)
    made = _Model(inlay, method, encoder)
    temporary = folder.parent / f".{uuid.uuid4().hex}.tmp"
    try:
        with _explained(folder):
            files.make_folder(folder.parent)
            temporary.mkdir()
            made.write(temporary)
            text = readme(inlay, version, made.name, made.limit, made.options)
            (temporary / "README.md").write_text(text, encoding="utf-8")
        difference, probes = made.compare(temporary)
        if not difference <= TOLERANCE:
            raise BankError(
                f"the task {inlay.name!r} was not exported: read back, the folder's logits differ from the bank's by "
                f"{difference:.1e} of the largest; at most {TOLERANCE:.0e} was expected. Nothing was left behind."
            )
        with _explained(folder):
            size = _synced(temporary)
            check_folder(folder, force, spared)
            _place(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    head = None if made.classifier else "head.safetensors"
    return Exported(inlay.name, version, folder, made.name, head, difference, probes, size)


class _Model:
    """A task's plain model: written to a folder, and read back from there."""

    def __init__(self, inlay: Inlay, method: Method, encoder: Encoder) -> None:
        self.inlay, self.encoder = inlay, encoder
        shape, pooler = encoder.shape, encoder.family.pooler
        pooling = inlay.head["pooling"]
        self.limit = min(inlay.training.get("max_length") or encoder.max_length, encoder.max_length)
        self.weights = merged(inlay, method, encoder)
        self.head = inlay.learned.head_tensors
        if pooling == "pooler":
            self.head |= {f"pooler.{kind}": self.weights[f"{pooler}.{kind}"] for kind in ("weight", "bias")}
        self.classifier = CLASSIFIERS.get(shape.family) if "pooler.weight" in self.head else None
        # A base without a pooler: `transformers` would make up a random one.
        self.options = {} if self.classifier or shape.pooler or pooler is None else {"add_pooling_layer": False}
        self.name = ""

    def write(self, folder: Path) -> None:
        from transformers import AutoModel, AutoModelForSequenceClassification

        config = self._config()
        weights = self.weights
        with torch.device("meta"):  # no memory: it takes the tensors as they are
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
        config = type(own).from_dict(own.to_dict())  # without the attention that Intarsia put there
        labels = self.inlay.labels or ("score",)
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: i for i, label in enumerate(labels)}
        config.problem_type = PROBLEMS[self.inlay.kind]
        for name, value in (self.classifier.options if self.classifier else {}).items():
            setattr(config, name, value)
        if hasattr(config, "pooler_hidden_size"):
            config.pooler_hidden_size = config.hidden_size
        return config

    def _tokenizer(self) -> Any:
        """One that gives by itself what the model takes."""
        tokenizer = copy.deepcopy(self.encoder.tokenizer)
        if tokenizer is None or tokenizer.pad_token is None:
            raise IntarsiaError(
                f"the task {self.inlay.name!r} cannot be exported: its base has no tokenizer that can fill up a batch "
                "(with a padding token)."
            )
        if not self.encoder.family.token_types:
            names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
            tokenizer.model_input_names = names
        tokenizer.padding_side = "right"
        tokenizer.model_max_length = self.limit
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None:  # what the last call left there
            backend.no_truncation()
            backend.no_padding()
        return tokenizer

    @torch.no_grad()
    def compare(self, folder: Path) -> tuple[float, int]:
        """How far the folder's logits are from the bank's own, as a part of the largest, and on how many texts."""
        texts = self._probes()
        others = texts[::-1] if self.inlay.data.get("pairs") else None
        expected = self._bank_logits(texts, others)
        found = self._plain_logits(folder, texts, others)
        return float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-6)), len(texts)

    def _probes(self) -> list[str]:
        """Texts of words from all over the vocabulary, one longer than the limit."""
        tokenizer = self.encoder.tokenizer
        lengths = (1, 4, 9, 17, min(self.limit, LONG_PROBE) + 8)
        step = max(1, len(tokenizer) // 97)
        ids = [[(i * 31 + j * step + step // 2) % len(tokenizer) for j in range(n)] for i, n in enumerate(lengths)]
        return [tokenizer.decode(row, skip_special_tokens=True) for row in ids]

    def _bank_logits(self, texts: list[str], others: list[str] | None) -> Tensor:
        from intarsia.serve.predictor import Predictor
        from intarsia.serve.served import Served

        task = Served(self.inlay.name, self.inlay.interface, lambda: self.inlay.learned)
        segments = self.encoder.tokenize(texts, others, max_length=self.limit)
        logits = Predictor(self.encoder, slots=1).logits([(task, segment) for segment in segments])
        return torch.stack(logits).float().cpu()

    def _plain_logits(self, folder: Path, texts: list[str], others: list[str] | None) -> Tensor:
        """What the folder's README computes, too."""
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
        return rows @ head["output.weight"].T + head["output.bias"]


@torch.no_grad()
def merged(inlay: Inlay, method: Method, encoder: Encoder) -> dict[str, Tensor]:
    """The base's weights with the task's merged into copies of them, by their names in the plain model."""
    plain = Plain(encoder.shape, {k: v.detach().cpu() for k, v in encoder.weights.items()}, encoder.at_site)
    method.check(encoder.shape)
    method.merge(encoder.shape, inlay.learned.method_tensors, plain)
    return {**plain.base, **plain.changed}


def _synced(folder: Path) -> int:
    """See that all files of a folder reach the disk, and may be read by whom the user's umask allows; their bytes."""
    mode = (folder / "README.md").stat().st_mode  # of a plain open; safetensors gives its files to the user alone
    for path in folder.iterdir():
        path.chmod(mode)
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    files.sync_folder(folder)
    return sum(path.stat().st_size for path in folder.iterdir())


def _place(temporary: Path, folder: Path) -> None:
    """Give a written folder its name; what had it goes only when the new one stands."""
    old = folder.parent / f".{uuid.uuid4().hex}.tmp" if folder.exists() else None
    if old:
        folder.rename(old)
    try:
        temporary.rename(folder)
    except OSError:
        if old:
            old.rename(folder)
        raise
    files.sync_folder(folder.parent)
    if old:
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BankError(
            f"Cannot write {folder}: {reason}. Nothing was changed; a folder that this user may write to, on a disk "
            "with room for a whole model, was expected."
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bars of `transformers`."""
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            logging.enable_progress_bar()
