"""What the driver and the scripts in the other libraries' environments exchange: folders. Needs no Intarsia.

WORK/base-FAMILY/                   a tiny base with its tokenizer
WORK/LIBRARY/read/CASE/             written by the library: adapter/, case.json, expected.safetensors
WORK/LIBRARY/write/CASE/            written by Intarsia: the same
WORK/LIBRARY/write/CASE/found.safetensors or error.txt   what the library computes with the exported adapter
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.tiny_models import plain_model, tiny_tokenizer

LENGTHS = (12, 7, 3)  # of the rows of the batch that is compared
OUTPUTS = 3


def base(work: Path, family: str) -> Path:
    """Return the folder of a family's tiny base; write it first if it does not exist."""
    folder = work / f"base-{family}"
    if not (folder / "config.json").exists():
        model = plain_model(family)
        model.save_pretrained(folder)
        tiny_tokenizer(model.config.pad_token_id or 0).save_pretrained(folder)
    return folder


def inputs(family: str, pad: int) -> dict[str, torch.Tensor]:
    """Return a padded batch: token ids, attention mask, and token types where the family has them."""
    draw = torch.Generator().manual_seed(5)
    longest = max(LENGTHS)
    ids = torch.randint(5, 45, (len(LENGTHS), longest), generator=draw)
    mask = torch.arange(longest)[None] < torch.tensor(LENGTHS)[:, None]
    ids = torch.where(mask, ids, pad)
    ids[:, 0] = 2
    found = {"input_ids": ids, "attention_mask": mask.long()}
    if family not in ("distilbert", "mpnet", "modernbert"):
        types = (torch.arange(longest)[None] >= torch.tensor(LENGTHS)[:, None] // 2) & mask
        found["token_type_ids"] = types.long()
    return found


def enlivened(model: torch.nn.Module, seed: int) -> None:
    """Move every trainable parameter away from its initial value."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(0.3 * torch.randn_like(p))


def trained(model: torch.nn.Module, batch: dict[str, torch.Tensor], outputs: Callable[[Any], torch.Tensor]) -> None:
    """Train the trainable parameters for a few steps towards arbitrary labels."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    for _ in range(3):
        logits = outputs(model(**batch))
        loss = torch.nn.functional.cross_entropy(logits, torch.arange(len(logits)) % logits.shape[-1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def outputs_of(model: Any, body: torch.nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the last hidden states of `body`, a part of the model, and the model's logits if it has a head.

    The same in float64 follows, named `float64.…`, where the model computes in float64: it tells rounding, which random
    weights can amplify, from errors.
    """
    found = _outputs_of(model, body, batch)
    model.double()
    try:
        found |= {f"float64.{name}": tensor for name, tensor in _outputs_of(model, body, batch).items()}
    except RuntimeError:  # a part of the model is in float32
        pass
    finally:
        model.float()
    return found


def _outputs_of(model: Any, body: torch.nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    states: list[torch.Tensor] = []
    hook = body.register_forward_hook(lambda module, args, out: states.append(out[0]))
    model.eval()
    try:
        with torch.no_grad():
            out = model(**batch)
    finally:
        hook.remove()
    found = {"hidden": states[-1]}
    if hasattr(out, "start_logits"):
        found["logits"] = torch.stack([out.start_logits, out.end_logits], dim=-1)
    elif hasattr(out, "logits"):
        found["logits"] = out.logits
    return {name: tensor.contiguous().clone() for name, tensor in found.items()}


def write_case(folder: Path, case: dict[str, Any], batch: dict[str, torch.Tensor], found: dict[str, Any]) -> None:
    (folder / "case.json").write_text(json.dumps(case, indent=1) + "\n")
    tensors = {**{f"in.{k}": v for k, v in batch.items()}, **found}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "expected.safetensors")


def read_case(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the description of a case, its batch, and the expected outputs."""
    tensors = load_file(folder / "expected.safetensors")
    batch = {name.removeprefix("in."): tensor for name, tensor in tensors.items() if name.startswith("in.")}
    found = {name: tensor for name, tensor in tensors.items() if not name.startswith("in.")}
    return json.loads((folder / "case.json").read_text()), batch, found


def read_all(work: Path, library: str, read: Callable[[Path, Path], None]) -> None:
    """Call `read` with each case that Intarsia exported for the library; an error is written beside the case."""
    for folder in sorted((work / library / "write").iterdir()):
        if (folder / "adapter").exists():
            try:
                read(work, folder)
            except Exception as error:
                (folder / "error.txt").write_text(f"{type(error).__name__}: {error}")


def quiet() -> None:
    """Prepare the process of a script: one thread, and only its own output."""
    import transformers

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
