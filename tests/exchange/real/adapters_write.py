"""Write adapters with the real adapters library: every method for every family. Runs in its environment:
WORK [FAMILY …]."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import adapters
import adapters.composition as ac
import torch
import transformers
from adapters import (
    BnConfig,
    CompacterConfig,
    CompacterPlusPlusConfig,
    ConfigUnion,
    DoRAConfig,
    DoubleSeqBnConfig,
    DoubleSeqBnInvConfig,
    IA3Config,
    LoRAConfig,
    LoReftConfig,
    MAMConfig,
    ParBnConfig,
    PrefixTuningConfig,
    PromptTuningConfig,
    SeqBnConfig,
    SeqBnInvConfig,
    UniPELTConfig,
)

from tests.exchange.real.adapters_faults import loading, repaired
from tests.exchange.real.protocol import OUTPUTS, base, enlivened, inputs, outputs_of, quiet, trained, write_case

FAMILY_NAMES = ("bert", "roberta", "xlm-roberta", "electra", "deberta-v2", "distilbert", "albert", "modernbert")
LABELS = {0: "negative", 1: "neutral", 2: "positive"}


def bottlenecks() -> dict[str, Any]:
    """Return the bottleneck configurations: the presets, and each flag."""
    seq, double, par = SeqBnConfig, DoubleSeqBnConfig, ParBnConfig
    return {
        "seq_bn (Pfeiffer)": seq(reduction_factor=8),
        "double_seq_bn (Houlsby)": double(reduction_factor=8),
        "par_bn": par(reduction_factor=8),
        "scaled_par_bn": par(reduction_factor=8, scaling="learned"),
        "channel scaling": double(reduction_factor=8, scaling="channel"),
        "fixed scaling": seq(reduction_factor=8, scaling=0.7),
        "ln_before": double(reduction_factor=8, ln_before=True),
        "ln_after": double(reduction_factor=8, ln_after=True),
        "ln_after, residual before it": double(reduction_factor=8, ln_after=True, adapter_residual_before_ln=True),
        "ln_after, parallel": par(reduction_factor=8, ln_after=True, ln_before=True),
        "original_ln_before at both places": double(reduction_factor=8, original_ln_before=True),
        "residual_before_ln=False": seq(reduction_factor=8, residual_before_ln=False),
        "residual_before_ln=post_add": seq(reduction_factor=8, residual_before_ln="post_add", ln_after=True),
        "original_ln_after=False": double(
            reduction_factor=8, original_ln_after=False, original_ln_before=True, residual_before_ln=False),
        "AdapterPlus": adapters.AdapterPlusConfig(reduction_factor=8, stochastic_depth=0.0),
        "a size for each layer, layers left out": double(reduction_factor={"0": 4, "default": 0.5}, leave_out=[1]),
        **{f"activation {name}": double(reduction_factor=8, non_linearity=name)
           for name in ("gelu", "gelu_new", "leakyrelu", "tanh", "sigmoid", "mish", "relu6", "quick_gelu")},
        "Compacter": CompacterConfig(reduction_factor=4, phm_dim=2),
        "Compacter++": CompacterPlusPlusConfig(reduction_factor=4, phm_dim=2, phm_rank=2),
        "Compacter, shared matrices": CompacterConfig(reduction_factor=4, phm_dim=2, shared_W_phm=True),
        "Compacter, factored rules of its own": CompacterConfig(
            reduction_factor=4, phm_dim=2, shared_phm_rule=False, factorized_phm_rule=True, factorized_phm_W=False),
        "seq_bn_inv": SeqBnInvConfig(reduction_factor=8),
        "double_seq_bn_inv": DoubleSeqBnInvConfig(reduction_factor=8),
        "glow": SeqBnConfig(reduction_factor=8, inv_adapter="glow", inv_adapter_reduction_factor=2),
        "gating": seq(reduction_factor=8, use_gating=True),
    }  # fmt: skip


def others() -> dict[str, Any]:
    flat = PrefixTuningConfig(flat=True, prefix_length=3)
    lora = LoRAConfig(r=3, alpha=5)
    every = {"attn_matrices": ["q", "k", "v"], "intermediate_lora": True, "output_lora": True}
    return {
        "LoRA": lora,
        "LoRA on values": LoRAConfig(r=2, alpha=2, attn_matrices=["v"], intermediate_lora=True),
        "LoRA everywhere": LoRAConfig(r=2, alpha=4, **every, leave_out=[0]),
        "DoRA": DoRAConfig(r=2, alpha=4, attn_matrices=["v"]),
        "DoRA, feed-forward": DoRAConfig(r=2, alpha=2, selfattn_lora=False, intermediate_lora=True, output_lora=True),
        "VeRA": adapters.VeraConfig(r=4, alpha=2, attn_matrices=["v"]),
        "(IA)³": IA3Config(),
        "(IA)³ everywhere": IA3Config(**every),
        "(IA)³ without keys": IA3Config(attn_matrices=["v"]),
        "LoRA, gating": LoRAConfig(r=2, use_gating=True),
        "prefix, flat": flat,
        "prefix, with its network": PrefixTuningConfig(prefix_length=3, bottleneck_size=6, leave_out=[0]),
        "prompt tuning": PromptTuningConfig(prompt_length=3),
        "ReFT": LoReftConfig(),
        "MAM": MAMConfig(PrefixTuningConfig(prefix_length=3, bottleneck_size=6), ParBnConfig(reduction_factor=8)),
        "UniPELT without gates": ConfigUnion(flat, SeqBnConfig(reduction_factor=8), LoRAConfig(r=2, alpha=2,
                                                                                             attn_matrices=["v"])),
        "UniPELT": UniPELTConfig(),
        "union of two bottlenecks": ConfigUnion(
            BnConfig(mh_adapter=True, output_adapter=False, reduction_factor=8, non_linearity="relu"),
            BnConfig(mh_adapter=False, output_adapter=True, reduction_factor=4, non_linearity="swish",
                     is_parallel=True)),
    }  # fmt: skip


def heads(family: str) -> dict[str, Any]:
    """Return functions that add a flexible head to a model."""
    names = {"num_labels": OUTPUTS, "id2label": LABELS}
    found = {
        "head of two layers": lambda m: m.add_classification_head("a", **names),
        "head of one layer": lambda m: m.add_classification_head("a", layers=1, **names),
        "head with another activation": lambda m: m.add_classification_head("a", activation_function="gelu", **names),
        "head without activation or bias": lambda m: m.add_classification_head(
            "a", activation_function=None, bias=False, **names
        ),
        "head without labels": lambda m: m.add_classification_head("a", num_labels=5),
        "head of three layers": lambda m: m.add_classification_head("a", layers=3, **names),
        "score": lambda m: m.add_classification_head("a", num_labels=1),
        "several labels": lambda m: m.add_classification_head("a", multilabel=True, **names),
        "tags": lambda m: m.add_tagging_head("a", **names),
        "tags, two layers": lambda m: m.add_tagging_head("a", layers=2, **names),
        "spans": lambda m: m.add_qa_head("a"),
        "masked words": lambda m: m.add_masked_lm_head("a"),
        "multiple choice": lambda m: m.add_multiple_choice_head("a"),
    }
    if family in ("bert", "albert", "roberta"):
        found["head on the pooler"] = lambda m: m.add_classification_head("a", use_pooler=True, layers=1, **names)
        found["two layers on the pooler"] = lambda m: m.add_classification_head("a", use_pooler=True, **names)
    return found


def setups(family: str) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return compositions, each with the configurations of its adapters."""
    pfeiffer, double = SeqBnConfig(reduction_factor=8), DoubleSeqBnConfig(reduction_factor=8)
    two, three = {"a": pfeiffer, "b": pfeiffer}, {"a": pfeiffer, "b": pfeiffer, "c": pfeiffer}
    language = SeqBnInvConfig(reduction_factor=4)
    return {
        "Fuse": (ac.Fuse("a", "b", "c"), three),
        "Fuse, static": (ac.Fuse("a", "b"), two),
        "Fuse over both places": (ac.Fuse("a", "b"), {"a": double, "b": double}),
        "Stack": (ac.Stack("a", "b"), two),
        "Stack over a language": (ac.Stack("a", "b"), {"a": language, "b": pfeiffer}),
        "Stack under Fuse": (ac.Stack("a", ac.Fuse("b", "c")), {**three, "a": language}),
        "Stack of LoRA and an adapter": (
            ac.Stack("a", "b"),
            {"a": LoRAConfig(r=2, attn_matrices=["v"]), "b": pfeiffer},
        ),
        "Fuse of stacks": (ac.Fuse(ac.Stack("a", "b"), "c"), three),
        "Fuse of parallel adapters": (ac.Fuse("a", "b"), dict.fromkeys("ab", ParBnConfig(reduction_factor=8))),
        "Average": (ac.Average("a", "b"), two),
        "one adapter": (ac.Stack("a"), {"a": pfeiffer}),
    }


def write_setup(work: Path, family: str, name: str, setup: Any, configs: dict[str, Any]) -> None:
    folder = work / "adapters" / "read" / f"{family}, {name}"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "adapter").mkdir(parents=True)
    model = flexible(work, family)
    for adapter, config in configs.items():
        model.add_adapter(adapter, config=config)
    head = None
    if family != "modernbert":
        head = "head" if name != "one adapter" else "a"
        model.add_classification_head(head, num_labels=OUTPUTS, id2label=LABELS)
    for block in (setup, *setup):
        if isinstance(block, ac.Fuse):
            model.add_adapter_fusion(block, "static" if name == "Fuse, static" else "dynamic")
    model.set_active_adapters(setup)
    own = (".adapters.", ".adapter_fusion_layer.", ".loras.", ".invertible_adapters.", "heads.", "head.", "classifier.")
    for parameter, p in model.named_parameters():
        p.requires_grad_(any(part in f".{parameter}" for part in own))
    enlivened(model, seed=2)
    with torch.no_grad():
        for parameter, p in model.named_parameters():
            if ".query." in parameter and "fusion_layer" in parameter:
                p.mul_(0.1)  # with sharp attention, rounding grows beyond what is compared
    batch = inputs(family, model.config.pad_token_id or 0)
    found = outputs_of(model, model.base_model, batch)
    model.save_adapter_setup(str(folder / "adapter"), setup, head_setup=head or True)
    case = {"family": family, "method": name, "trained": False, "adapters": adapters.__version__,
            "transformers": transformers.__version__}  # fmt: skip
    write_case(folder, case, batch, found)


def write(work: Path, family: str, name: str, model: Any, brief: bool = False) -> None:
    """Enliven the adapter `a` of a model, and save it with the outputs of the model."""
    folder = work / "adapters" / "read" / f"{family}, {name}{', trained' if brief else ''}".replace("/", "-")
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "adapter").mkdir(parents=True)
    model.train_adapter("a")
    enlivened(model, seed=2)
    batch = inputs(family, model.config.pad_token_id or 0)
    if brief:
        trained(model, batch, lambda out: out.logits)
    body = model.base_model
    found = outputs_of(model, body, batch)
    safe = "prefix" not in name and len(name) % 2 == 0  # the library cannot save a prefix as safetensors
    try:
        model.save_adapter(str(folder / "adapter"), "a", use_safetensors=safe)
    except RuntimeError:  # shared tensors
        shutil.rmtree(folder / "adapter")
        (folder / "adapter").mkdir()
        model.save_adapter(str(folder / "adapter"), "a")
    case = {"family": family, "method": name, "trained": brief, "adapters": adapters.__version__,
            "transformers": transformers.__version__}  # fmt: skip
    write_case(folder, case, batch, found)


def flexible(work: Path, family: str) -> Any:
    torch.manual_seed(1)
    if family == "modernbert":  # it has no model with flexible heads
        return plain(work, family, "ForSequenceClassification")
    return adapters.AutoAdapterModel.from_pretrained(base(work, family), **loading(family))


def plain(work: Path, family: str, kind: str) -> Any:
    torch.manual_seed(1)
    auto = getattr(transformers, "AutoModel" + kind)
    options = {} if kind in ("", "ForQuestionAnswering") else {"num_labels": OUTPUTS}
    model = auto.from_pretrained(base(work, family), **options, **loading(family))
    adapters.init(model)
    return repaired(model)


def one_family(work: Path, family: str) -> None:
    for name, config in {**bottlenecks(), **others()}.items():
        for brief in (False, True) if family == "bert" else (False,):
            with guarded(f"{family}, {name}"):
                model = flexible(work, family)
                model.add_adapter("a", config=config)
                if family != "modernbert":
                    model.add_classification_head("a", num_labels=OUTPUTS, id2label=LABELS)
                model.set_active_adapters("a")
                write(work, family, name, model, brief)
    for name, add in heads(family).items() if family != "modernbert" else ():
        with guarded(f"{family}, {name}"):
            model = flexible(work, family)
            model.add_adapter("a", config=SeqBnConfig(reduction_factor=8))
            add(model)
            model.set_active_adapters("a")
            write(work, family, name, model)
    for kind in ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", ""):
        with guarded(f"{family}, class {kind}"):
            model = plain(work, family, kind)
            model.add_adapter("a", config=SeqBnConfig(reduction_factor=8))
            model.set_active_adapters("a")
            write(work, family, f"class {kind or 'without a head'}", model)

    for name, (setup, configs) in setups(family).items():
        with guarded(f"{family}, {name}"):
            write_setup(work, family, name, setup, configs)


class guarded:
    """Report that the library cannot make an adapter, and go on."""

    def __init__(self, case: str) -> None:
        self.case = case

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if isinstance(error, Exception):
            print(f"adapters cannot write: {self.case}: {kind.__name__}: {str(error)[:200]}", flush=True)
        return isinstance(error, Exception)


def main() -> None:
    work, families = Path(sys.argv[1]), sys.argv[2:] or FAMILY_NAMES
    for family in families:
        if family in FAMILY_NAMES:
            one_family(work, family)


if __name__ == "__main__":
    quiet()
    main()
