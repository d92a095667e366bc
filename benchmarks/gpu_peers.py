"""The peers of `gpu.py`, which train one job at a time: a Houlsby model built with forward hooks, and peft's LoRA."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from gpu import BATCH, WARM_UP, Answer, measured, plain_model, texts
from torch import Tensor, nn

CLASSES = 2
PADDED = {
    14: (32, 64),
    40: (64, 128),
}  # padded lengths of compiled peers; each has its own compiled program and CUDA graph


class HookedHoulsby(nn.Module):
    """A common implementation: adapters in forward hooks, trained LayerNorms, everything else frozen, mean pooling."""

    def __init__(self, model: Any, size: int = 64) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
        d, like = model.config.hidden_size, next(model.parameters())
        self.adapters = nn.ModuleList()
        for name, module in model.named_modules():
            if isinstance(module, nn.LayerNorm):
                module.requires_grad_(True)
            if "layer." in name and name.endswith(("output.dropout", "attention.dropout")):
                adapter = nn.Sequential(nn.Linear(d, size), nn.GELU(), nn.Linear(size, d))
                for part in (adapter[0], adapter[2]):
                    nn.init.trunc_normal_(part.weight, std=1e-2)  # type: ignore[arg-type]
                    nn.init.zeros_(part.bias)  # type: ignore[arg-type]
                adapter.to(like)
                self.adapters.append(adapter)
                module.register_forward_hook(lambda _, __, out, a=adapter: out + a(out))
        assert len(self.adapters) == 2 * model.config.num_hidden_layers
        self.head = nn.Linear(d, CLASSES).to(like)

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        return _loss(self.model, self.head, ids, mask, labels)


class PeftLora(nn.Module):
    def __init__(self, model: Any) -> None:
        from peft import LoraConfig, get_peft_model

        super().__init__()
        bert = any("query" in name for name, _ in model.named_modules())
        d, like = model.config.hidden_size, next(model.parameters())
        targets = ["query", "value"] if bert else ["attn.q", "attn.v"]
        self.model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules=targets))
        self.head = nn.Linear(d, CLASSES).to(like)

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        return _loss(self.model, self.head, ids, mask, labels)


def _loss(model: Any, head: nn.Module, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    states = model(input_ids=ids, attention_mask=mask).last_hidden_state
    pooled = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return nn.functional.cross_entropy(head(pooled).float(), labels)


class Peer:
    """One warmed-up job, ready to be measured for each mean length."""

    def __init__(self, kind: str, source: str, means: list[int], *, dtype: torch.dtype, compiled: bool) -> None:
        base = plain_model(source, dtype)
        model = (HookedHoulsby(base) if kind == "houlsby" else PeftLora(base)).train()
        self.trained = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=3e-4, fused=True)
        self.compiled = compiled
        self.call: Any = torch.compile(model, mode="reduce-overhead", dynamic=False) if compiled else model
        self.steps: dict[int, tuple[Callable[[int], None], list[int], float]] = {}
        for mean in means:
            batches, counts = _batches(mean, compiled)
            began = time.perf_counter()
            lengths = sorted(batches, key=lambda b: b[0].shape[1])[:: max(1, len(batches) // 12)]
            for i, batch in enumerate([*lengths, *batches]):  # other lengths use other matrix-product kernels
                self.take(batch)
                if i >= len(lengths) and time.perf_counter() - began > WARM_UP:
                    break
            torch.cuda.synchronize()
            warm = time.perf_counter() - began
            self.steps[mean] = (lambda i, b=batches: self.take(b[i % len(b)])), counts, warm  # type: ignore[misc]

    def take(self, batch: tuple[Tensor, ...]) -> None:
        ids, mask, labels = (x.to("cuda", non_blocking=True) for x in batch)
        if self.compiled:
            torch.compiler.cudagraph_mark_step_begin()
        self.call(ids, mask, labels).backward()
        nn.utils.clip_grad_norm_(self.trained, 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def measure(self, seconds: float) -> dict[str, Answer]:
        """Return the measured speed for each mean length."""
        found = {}
        for mean, (step, counts, warm) in self.steps.items():
            result = measured(step, seconds, counts)
            result["examples_a_second"] = BATCH / result["ms_a_step"] * 1000
            result["warm_up_seconds"] = warm
            found[str(mean)] = result
        return found


def _batches(mean: int, compiled: bool) -> tuple[list[tuple[Tensor, ...]], list[int]]:
    """Return padded batches of similar length in page-locked memory, and the number of real tokens of each."""
    from intarsia.train.order import epoch_batches

    rows = texts(mean, 2048)
    lengths = [len(t) for t in rows]
    batches: list[tuple[Tensor, ...]] = []
    counts: list[int] = []
    for batch in (b for e in range(2) for b in epoch_batches(lengths, BATCH, 0, e) if len(b) == BATCH):
        longest = max(lengths[r] for r in batch)
        longest = next(n for n in PADDED[mean] if n >= longest) if compiled else longest
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for i, r in enumerate(batch):
            ids[i, : lengths[r]] = torch.tensor(rows[r])
            mask[i, : lengths[r]] = 1
        batches.append((ids.pin_memory(), mask.pin_memory(), torch.tensor([r % 2 for r in batch]).pin_memory()))
        counts.append(sum(lengths[r] for r in batch))
    return batches, counts


def main() -> None:
    """Arguments KIND MODEL SECONDS MEAN …: compile, print "ready", and measure after a line on standard input."""
    kind, source, seconds, *means = sys.argv[1:]
    torch.backends.cuda.matmul.allow_tf32 = True
    peer = Peer(kind, source, [int(mean) for mean in means], dtype=torch.bfloat16, compiled=True)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(peer.measure(float(seconds))), flush=True)


if __name__ == "__main__":
    main()
