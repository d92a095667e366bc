"""Write adapters with the real peft: every method for every family. Runs in peft's environment: WORK [FAMILY …]."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from transformers import AutoModel, AutoModelForQuestionAnswering, AutoModelForSequenceClassification
from transformers import AutoModelForTokenClassification as ForTokens

from tests.exchange.real.protocol import OUTPUTS, base, enlivened, inputs, outputs_of, quiet, trained, write_case
from tests.support.tiny_models import FAMILY_NAMES

QUERY_VALUE = {
    "distilbert": ["q_lin", "v_lin"],
    "deberta-v2": ["value_proj", "attention.output.dense"],
    "mpnet": ["attn.q", "attn.v"],
    "modernbert": ["Wqkv"],
}
FEED_FORWARD = {
    "distilbert": ["lin1", "lin2"],
    "albert": ["ffn", "ffn_output"],
    "modernbert": ["mlp.Wi", "mlp.Wo"],
}
NORMS = {
    "distilbert": ["sa_layer_norm", "output_layer_norm"],
    "albert": ["attention.LayerNorm", "full_layer_layer_norm"],
    "modernbert": ["mlp_norm", "final_norm"],
    "deberta-v2": ["output.LayerNorm", "embeddings.LayerNorm"],
}
CLASSES: dict[str, Any] = {
    "SEQ_CLS": AutoModelForSequenceClassification,
    "TOKEN_CLS": ForTokens,
    "QUESTION_ANS": AutoModelForQuestionAnswering,
    "FEATURE_EXTRACTION": AutoModel,
}
HEADS = ["classifier", "score", "qa_outputs", "pre_classifier", "pooler", "head"]


def configurations(family: str) -> dict[str, tuple[str, Any]]:
    """Return the task type and configuration of each case of a family."""
    qv = QUERY_VALUE.get(family, ["query", "value"])
    up, down = FEED_FORWARD.get(family, ["intermediate.dense", "output.dense"])
    norms = NORMS.get(family, ["LayerNorm"])
    lora = peft.LoraConfig
    saved = _saved(family)  # peft extends the lists that it is given
    plain = {"r": 3, "lora_alpha": 5, "target_modules": qv}
    found: dict[str, tuple[str, Any]] = {
        "LoRA": ("FEATURE_EXTRACTION", lora(**plain)),
        "LoRA, classes": ("SEQ_CLS", lora(**plain, modules_to_save=[*saved])),
        "LoRA, tags": ("TOKEN_CLS", lora(**plain, modules_to_save=[*saved])),
        "LoRA, spans": (
            "QUESTION_ANS",
            lora(**plain, modules_to_save=[*saved] if family == "modernbert" else ["qa_outputs"]),
        ),
        "LoRA, rsLoRA, rank and alpha patterns": (
            "FEATURE_EXTRACTION",
            lora(**plain, use_rslora=True, rank_pattern={f"{_layer(family, 1)}.*": 2}, alpha_pattern={qv[-1]: 7}),
        ),
        "LoRA, regular expression": (
            "FEATURE_EXTRACTION",
            lora(r=2, lora_alpha=4, target_modules=rf".*{_layer(family, 0)}.*({qv[0]}|{up})"),
        ),
        "LoRA, chosen layers": ("FEATURE_EXTRACTION", lora(**plain, layers_to_transform=[0], exclude_modules=[qv[-1]]))
        if len(qv) > 1
        else ("SEQ_CLS", lora(**plain, layers_to_transform=[0, 2], modules_to_save=[*saved])),
        "LoRA, feed-forward": ("FEATURE_EXTRACTION", lora(r=2, lora_alpha=4, target_modules=[up, down])),
        "LoRA, all linear layers": (
            "SEQ_CLS",
            lora(r=2, lora_alpha=2, target_modules="all-linear", modules_to_save=[*saved]),
        ),
        "LoRA, biases of targets": ("SEQ_CLS", lora(**plain, bias="lora_only", modules_to_save=[*saved])),
        "LoRA, all biases": ("SEQ_CLS", lora(**plain, bias="all", modules_to_save=[*saved])),
        "DoRA": ("SEQ_CLS", lora(**plain, use_dora=True, modules_to_save=[*saved])),
        "AdaLoRA": ("SEQ_CLS", peft.AdaLoraConfig(init_r=4, target_r=2, total_step=10, lora_alpha=6,
                                                  target_modules=[*qv, up], modules_to_save=[*saved])),
        "VeRA": ("SEQ_CLS", peft.VeraConfig(r=6, target_modules=[qv[0], down], modules_to_save=[*saved])),
        "(IA)³": ("SEQ_CLS", peft.IA3Config(target_modules=[*qv, down], feedforward_modules=[down],
                                            modules_to_save=[*saved])),
        "LayerNorm tuning": ("SEQ_CLS", peft.LNTuningConfig(target_modules=norms, modules_to_save=[*saved])),
        "prefix tuning": ("SEQ_CLS", peft.PrefixTuningConfig(num_virtual_tokens=4)),
        "prefix tuning, projected": ("SEQ_CLS", peft.PrefixTuningConfig(
            num_virtual_tokens=3, prefix_projection=True, encoder_hidden_size=8)),
        "prompt tuning": ("SEQ_CLS", peft.PromptTuningConfig(num_virtual_tokens=4)),
    }  # fmt: skip
    if family == "deberta-v2":
        found["LoRA, query"] = ("FEATURE_EXTRACTION", lora(**{**plain, "target_modules": ["query_proj"]}))
    for _, config in found.values():
        config.inference_mode = False
    return found


def _saved(family: str) -> list[str]:
    if family == "distilbert":
        return ["pre_classifier", "classifier"]
    if family == "deberta-v2":
        return ["pooler", "classifier"]
    return ["head", "classifier"] if family == "modernbert" else ["classifier"]


def _layer(family: str, layer: int) -> str:
    return f"albert_layer_groups.{layer}" if family == "albert" else rf"layers?.{layer}"


def write(work: Path, family: str, name: str, task: str, config: Any, brief: bool) -> None:
    folder = work / "peft" / "read" / f"{family}, {name}{', trained' if brief else ''}".replace("/", "-")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    options = {} if task == "FEATURE_EXTRACTION" else {"num_labels": 2 if task == "QUESTION_ANS" else OUTPUTS}
    torch.manual_seed(1)
    own = CLASSES[task].from_pretrained(base(work, family), **options)
    config.task_type = task
    model = peft.get_peft_model(own, config)
    enlivened(model, seed=2)
    batch = inputs(family, own.config.pad_token_id or 0)
    if task == "QUESTION_ANS":  # peft's class for it does not pass token types on
        batch.pop("token_type_ids", None)
    if brief:
        trained(model, batch, lambda out: out.logits)
    body = own if task == "FEATURE_EXTRACTION" else getattr(own, own.base_model_prefix)
    found = outputs_of(model, body, batch)
    model.save_pretrained(folder / "adapter")
    case = {"family": family, "method": name, "task": task, "trained": brief, "peft": peft.__version__,
            "transformers": transformers.__version__}  # fmt: skip
    write_case(folder, case, batch, found)


def main() -> None:
    work, families = Path(sys.argv[1]), sys.argv[2:] or FAMILY_NAMES
    for family in families:
        for name, (task, config) in configurations(family).items():
            for brief in (False, True) if family == "bert" and task == "SEQ_CLS" else (False,):
                try:
                    write(work, family, name, task, config, brief)
                except Exception as error:  # the library cannot make this adapter for this family
                    print(f"peft cannot write: {family}, {name}: {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    quiet()
    main()
