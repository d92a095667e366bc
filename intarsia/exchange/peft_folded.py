"""AdaLoRA and VeRA of peft: low-rank differences in another form, folded into LoRA."""

from __future__ import annotations

from torch import Tensor

from intarsia.errors import ExchangeError
from intarsia.exchange.accounting import Flags
from intarsia.exchange.folding import HIGHEST_RANK, LowRank
from intarsia.exchange.modules import Modules
from intarsia.exchange.peft_lora import check_lora_flags, read_low_rank
from intarsia.exchange.peft_parts import PeftTensors, Read

SMALL = 1e-5  # AdaLoRA divides by its rank plus this
ADALORA_TRAINING = (
    "r", "target_r", "init_r", "tinit", "tfinal", "deltaT", "beta1", "beta2", "orth_reg_weight", "total_step",
    "rank_pattern", "use_rslora",
)  # fmt: skip


def read_adalora(flags: Flags, tensors: PeftTensors, modules: Modules) -> Read:
    """Return LoRA for B (A ⊙ E) x · alpha / (rank + 1e-5). The ranks are those of the tensors, as peft loads them."""
    flags.no_effect(*ADALORA_TRAINING)
    check_lora_flags(flags)
    flags.expect("use_dora", False, None)
    flags.expect("alpha_pattern", None, {})
    alpha = flags.number("lora_alpha", most=2**24)

    def difference(module: str, weight: Tensor) -> LowRank:
        shape = tensors.weights.shape(tensors.name(module, "lora_A"))
        rank = shape[0] if len(shape) == 2 else 0
        if rank > HIGHEST_RANK:
            raise ExchangeError(f"{flags.where}: the rank {rank} of {module!r} is too large: at most {HIGHEST_RANK}.")
        a = tensors.take(module, "lora_A", (rank, weight.shape[1]))
        e = tensors.take(module, "lora_E", (rank, 1))
        b = tensors.take(module, "lora_B", (weight.shape[0], rank))
        tensors.weights.take_if(tensors.name(module, "ranknum"))
        return LowRank(a * e, b, (alpha or rank) / (rank + SMALL))

    notes = ("AdaLoRA's E multiplied into A",)
    return read_low_rank(flags, tensors, modules, "lora_A", difference, folded=notes)


def read_vera(flags: Flags, tensors: PeftTensors, modules: Modules) -> Read:
    """Return LoRA for b ⊙ (B (d ⊙ (A x))), where all modules share A and B."""
    flags.no_effect("vera_dropout", "d_initial", "init_weights", "projection_prng_key", "save_projection")
    flags.expect("fan_in_fan_out", False, None)
    r = flags.whole("r", least=1, most=HIGHEST_RANK)
    weights = tensors.weights
    shared_a, shared_b = (weights.take_if(f"base_model.vera_{which}") for which in "AB")
    if shared_a is None or shared_b is None:
        raise ExchangeError(
            f"{weights.where} has no vera_A and vera_B: peft would draw them at random again, which need not give the "
            "same values on every machine. Save the adapter with save_projection=True."
        )

    def difference(module: str, weight: Tensor) -> LowRank:
        out, inputs = weight.shape
        fits = shared_a.shape[0] == r == shared_b.shape[1] and shared_a.shape[1] >= inputs and shared_b.shape[0] >= out
        if shared_a.ndim != 2 or shared_b.ndim != 2 or not fits:
            raise ExchangeError(
                f"{weights.where}: vera_A {tuple(shared_a.shape)} and vera_B {tuple(shared_b.shape)} do not cover "
                f"{module!r} {(out, inputs)} at the rank {r}."
            )
        d = tensors.take(module, "vera_lambda_d", (r,))
        b = tensors.take(module, "vera_lambda_b", (out,))
        return LowRank(d[:, None] * shared_a[:, :inputs], b[:, None] * shared_b[:out], 1.0)

    notes = ("VeRA's vectors multiplied into A and B",)
    return read_low_rank(flags, tensors, modules, "vera_lambda_d", difference, folded=notes)
