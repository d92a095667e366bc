"""Inlays with random tensors, exported for other libraries, and what these compute with them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from intarsia import (
    IA3,
    BitFit,
    Bottleneck,
    DiffPruning,
    DoRA,
    LayerNorms,
    LoRA,
    LotteryTicket,
    Pfeiffer,
    Prefix,
    Stack,
)
from intarsia.bank.importing import inlay_of_adapter
from intarsia.encoder.encoder import Encoder
from intarsia.encoder.slots import start
from intarsia.errors import IntarsiaError
from intarsia.exchange.adapter import Adapter
from intarsia.exchange.modules import Modules
from intarsia.exchange.reading import format_module
from intarsia.methods import Method
from intarsia.tasks.heads import Head, Hidden, Pooling
from tests.exchange.real.compare import Result, encoder_of, largest, outputs, wide
from tests.exchange.real.protocol import OUTPUTS, base, inputs, read_case, write_case

METHODS: dict[str, Method] = {
    "LoRA": LoRA(3, 4.0, ("query", "value", "ffn.up")),
    "LoRA, chosen layers": LoRA(2, 3.0, targets=("value", "attention.dense"), layers=(0, 2)),
    "LoRA, biases of targets": LoRA(2, 3.0, targets=("value", "ffn.down"), biases="targets"),
    "LoRA, all biases": LoRA(2, 3.0, targets=("value",), biases="all"),
    "DoRA": DoRA(3, 4.0, targets=("value", "ffn.down")),
    "(IA)³": IA3(),
    "(IA)³, other sites": IA3(sites=("value", "ffn.up", "attention.dense.input")),
    "LayerNorm tuning": LayerNorms(),
    "prefix tuning": Prefix(4),
    "prefix tuning, offset": Prefix(4, offset=4),
    "BitFit": BitFit(),
    "(IA)³, outputs": IA3(sites=("key", "value", "ffn.up")),
    "(IA)³, values": IA3(sites=("value", "ffn.up"), layers=(0, 2)),
    "prefix tuning, chosen layers": Prefix(2, layers=(0, 2)),
    "Houlsby": Bottleneck(4),
    "Pfeiffer": Pfeiffer(4),
    "Pfeiffer, invertible": Pfeiffer(3, invertible=True),
    "bottleneck": Bottleneck(4, norms=False, activation="swish"),
    "bottleneck, parallel, scaled": Bottleneck(
        3, "ffn", norms=False, parallel=True, scaling=4.0, learned_scaling="scalar", activation="relu"
    ),
    "bottleneck, norms of its own": Bottleneck(5, norms=False, norm_before=True, norm_after="sum"),
    "bottleneck, reads LN(h + x)": Bottleneck(
        5, "ffn", norms=False, base_norm_before=True, residual="sum", activation="leaky_relu"
    ),
    "bottleneck, without the base's norm": Bottleneck(
        3, "ffn", norms=False, base_norm_before=True, residual="read", base_norm_after=False
    ),
    "bottleneck, reads h + x": Bottleneck(3, "ffn", norms=False, sum_before=True, residual="sum"),
    "bottleneck, chosen layers": Bottleneck(3, norms=False, layers=(0, 2), sizes=(3, 7), scaling=0.5),
    "union": Stack(Prefix(2), Pfeiffer(3), LoRA(2, 3.0, targets=("value",))),
    "LT-SFT": LotteryTicket(entries=200),
    "LT-SFT with norms": LotteryTicket(entries=200, norms=True),
    "diff-pruning": DiffPruning(entries=200),
}
HEADS: dict[str, tuple[str, Pooling, Hidden | None]] = {
    "class head": ("label", "trained-pooler", None),
    "the base's pooler": ("label", "pooler", None),
    "mean": ("label", "mean", None),
    "score": ("score", "trained-pooler", None),
    "tags": ("tags", "none", None),
    "span": ("span", "none", None),
    "none": ("none", "mean", None),
}
OWN_HIDDEN = {"distilbert": Hidden("relu"), "electra": Hidden("gelu_exact"), "deberta-v2": Hidden("gelu_exact"),
              "modernbert": Hidden("gelu_exact", norm=True)}  # fmt: skip


def cases(family: str, format: str) -> Iterator[tuple[str, Method, str]]:
    """Yield name, method and head of each case of a family."""
    for name, method in METHODS.items():
        shared = family == "albert" and getattr(method, "layers", None)
        if not shared:
            yield name, method, "class head"
    for head in HEADS:
        method = METHODS["LT-SFT"] if format == "sft" else LoRA(2, 3.0, targets=("value",))
        yield f"head: {head}", method, head


def adapter_of(method: Method, head: str, encoder: Encoder, seed: int = 0) -> Adapter:
    """Return an adapter with random tensors."""
    torch.manual_seed(seed)
    shape, family = encoder.shape, encoder.shape.family
    kind, pooling, hidden = HEADS[head]
    if family in OWN_HIDDEN and head in ("class head", "score"):
        pooling, hidden = "mean" if family == "modernbert" else "cls", OWN_HIDDEN[family]
        if family == "modernbert":
            pooling = encoder.model.config.classifier_pooling
    if family == "modernbert" and kind in ("tags", "span"):
        hidden = OWN_HIDDEN[family]
    method.check(shape)
    tensors = {name: _random(tensor) for name, tensor in start(method.stored(shape), encoder, 0).items()}
    if "index" in tensors:
        total = sum(weight.size for weight in method.trained(shape))
        tensors["index"] = torch.randperm(total)[: len(tensors["index"])].sort().values
    if shape.shared_layers:
        tensors = _equal_in_shared_layers(tensors, encoder)
    outputs_ = {"score": 1, "span": 2, "none": 0}.get(kind, OUTPUTS)
    labels = tuple("abcdefgh"[:outputs_]) if kind in ("label", "tags") else ()
    own = Head(outputs_, pooling, hidden)
    head_tensors = {n: 0.3 * torch.randn(s.shape) for n, s in own.tensors(shape).items()} if outputs_ else {}
    if family == "modernbert":  # its classes have no such biases
        zeros = ("hidden.bias", "norm.bias")
        head_tensors |= {name: torch.zeros_like(t) for name, t in head_tensors.items() if name in zeros}
    return Adapter(
        method=method, tensors=tensors, kind=kind, labels=labels, head=own if outputs_ else None,
        head_tensors=head_tensors, pooling=pooling, base=Path(encoder.name).name, name="case",
    )  # fmt: skip


def _random(tensor: Tensor) -> Tensor:
    return tensor + 0.3 * torch.randn_like(tensor) if tensor.is_floating_point() else tensor


def _equal_in_shared_layers(tensors: dict[str, Tensor], encoder: Encoder) -> dict[str, Tensor]:
    """Return the tensors with those of the first layer in all layers that use the same module."""
    first = {}
    for parts in (*Modules(encoder).linears.values(), *Modules(encoder).norms.values()):
        first |= {str(part.layer): str(parts[0].layer) for part in parts}

    def twin(name: str) -> str:
        layer, dot, rest = name.partition(".")
        return f"{first[layer]}{dot}{rest}" if dot and layer in first else name

    return {name: tensors.get(twin(name), tensor) for name, tensor in tensors.items()}


def write_cases(library: str, format: str, work: Path, families: Sequence[str]) -> list[Result]:
    """Export every case; return the cases that Intarsia refuses."""
    refused = []
    for family in families:
        encoder = encoder_of(base(work, family))
        for name, method, head in cases(family, format):
            folder = work / library / "write" / f"{family}, {name}"
            shutil.rmtree(folder, ignore_errors=True)
            try:
                adapter = adapter_of(method, head, encoder)
                inlay = inlay_of_adapter("case", adapter, encoder, {})
            except IntarsiaError:
                continue  # the method or the head does not exist on this family
            (folder / "adapter").mkdir(parents=True)
            try:
                format_module(format).write(adapter, Modules(encoder), folder / "adapter")
            except IntarsiaError as error:
                shutil.rmtree(folder)
                refused.append(Result(library, "export", family, name, refused=str(error)))
                continue
            batch = inputs(family, encoder.model.config.pad_token_id or 0)
            if adapter.kind == "span" and library == "peft":  # its class passes no token types on
                batch.pop("token_type_ids", None)
            case = {"family": family, "method": name, "kind": adapter.kind}
            in_float64 = outputs(inlay, encoder_of(base(work, family), torch.float64), batch)
            found = outputs(inlay, encoder, batch) | {f"float64.{k}": v for k, v in in_float64.items()}
            write_case(folder, case, batch, found)
    return refused


def compare_cases(library: str, work: Path) -> list[Result]:
    """Return the differences between what the library computed with the exported adapters and what Intarsia did."""
    results = []
    for folder in sorted((work / library / "write").iterdir()):
        case, batch, expected = read_case(folder)
        at = (library, "export", case["family"], case["method"])
        if (folder / "error.txt").exists():
            print(f"{library} cannot load: {folder.name}: {(folder / 'error.txt').read_text()}")
            results.append(Result(*at, float("inf")))
        else:
            found = load_file(folder / "found.safetensors")
            more, rounding = None, 0.0
            if exact := wide(found):
                more, rounding = largest(exact, wide(expected), batch), largest(found, exact, batch)
            results.append(Result(*at, largest(found, expected, batch), in_float64=more, rounding=rounding))
    return results
