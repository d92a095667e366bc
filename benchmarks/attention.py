"""Attention within short segments on a GPU, in several implementations: Intarsia's kernel, padded blocks in buckets,
`flex_attention` with a document mask, and PyTorch's variable-length attention. All but the last are also measured with
a relative position bias, as in MPNet.

    python benchmarks/attention.py --output results/attention-h200.json

Median milliseconds of forward and backward of one layer with BERT-base's shape (12 heads of 64), in bf16, no dropout.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

HEADS, WIDTH = 12, 64


def median_ms(run: Callable[[], Any]) -> float:
    from triton.testing import do_bench

    return float(do_bench(run, warmup=20, rep=60, return_mode="median"))


def forward_backward(forward: Callable[[], Tensor], inputs: tuple[Tensor, ...]) -> dict[str, float]:
    out = forward()
    g = torch.randn_like(out)
    back = median_ms(lambda: torch.autograd.grad(out, inputs, g, retain_graph=True))
    return {"forward": median_ms(forward), "backward": back}


def implementations(lengths: list[int], relative: Tensor | None) -> dict[str, Callable[..., Tensor]]:
    """Return functions of q, k and v [tokens, heads, width] for segments of these lengths."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    from intarsia.encoder.attention import packed_attention
    from intarsia.encoder.packed import Segment, pack
    from intarsia.kernels import Layout, attention

    tokens = sum(lengths)
    batch = pack([Segment([1] * n) for n in lengths], "cuda")
    starts = torch.tensor([0, *lengths], device="cuda").cumsum(0)
    zero = torch.zeros(1, dtype=torch.int32, device="cuda")
    longest = 1 << (max(lengths) - 1).bit_length()
    layout = Layout(
        tokens=tokens, align=tokens, tile_slot=zero, slot_start=zero, slot_end=zero + tokens,
        row_start=starts[:-1].int(), row_length=torch.tensor(lengths, dtype=torch.int32, device="cuda"),
        longest=max(16, longest), seeds=zero,
    )  # fmt: skip
    document = torch.repeat_interleave(torch.arange(len(lengths), device="cuda"), torch.tensor(lengths, device="cuda"))
    mask = create_block_mask(lambda b, h, q, k: document[q] == document[k], None, None, tokens, tokens, device="cuda")
    middle = 0 if relative is None else relative.shape[1] // 2

    def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        assert relative is not None
        return s + relative[h, (k - q).clamp(-middle, middle) + middle]

    compiled = torch.compile(flex_attention, dynamic=False)

    def flex(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        return compiled(q, k, v, score_mod=None if relative is None else score, block_mask=mask)[0].transpose(0, 1)

    scale = WIDTH**-0.5
    found: dict[str, Callable[..., Tensor]] = {
        "kernel": lambda q, k, v: attention.attention(q, k, v, layout, scale=scale, p=0.0, site=0, relative=relative),
        "bucketed": lambda q, k, v: packed_attention(q, k, v, batch, scale=scale, relative=relative),
        "flex": flex,
    }
    if relative is None:
        from torch.nn.attention.varlen import varlen_attn

        ends = starts.int()
        found["varlen"] = lambda q, k, v: varlen_attn(q, k, v, ends, ends, max(lengths), max(lengths))  # type: ignore[assignment, return-value]
    return found


def main() -> None:
    from gpu import texts

    from intarsia import provenance

    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--output", type=Path)
    options.add_argument("--jobs", type=int, nargs="+", default=[1, 32])
    given = options.parse_args()
    out: dict[str, Any] = {"milliseconds": {}}
    for mean in (14, 40):
        for jobs in given.jobs:
            lengths = [len(t) for t in texts(mean, 32 * jobs)]
            shape = (sum(lengths), HEADS, WIDTH)
            q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
            for biased in (False, True):
                relative = torch.randn(HEADS, 2 * 128 - 1, device="cuda", dtype=torch.bfloat16) if biased else None
                for name, run in implementations(lengths, relative).items():
                    title = f"{name}{', relative bias' if biased else ''}, {jobs} jobs, mean {mean}"
                    try:
                        found = forward_backward(lambda run=run, q=q, k=k, v=v: run(q, k, v), (q, k, v))  # type: ignore[misc]
                    except Exception as error:  # this version of PyTorch does not have it
                        print(f"{title}: {type(error).__name__}: {str(error).splitlines()[0][:100]}", flush=True)
                        continue
                    out["milliseconds"][title] = found
                    print(f"{title}: {found['forward']:.3f} + {found['backward']:.3f} ms", flush=True)
    out["provenance"] = {
        "machine": provenance.machine("cuda"), "versions": provenance.versions(),
        "command": "python benchmarks/attention.py", "seeds": [0],
    }  # fmt: skip
    if given.output:
        given.output.write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
