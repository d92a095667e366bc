"""Loading a base without what a frozen encoder never runs: the same outputs, and the real modules afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.families import save_tiny

LOAD = """
import sys
from contextlib import nullcontext
from intarsia.encoder.quick_import import quick_imports
quick, folder = sys.argv[1] == "quick", sys.argv[2]
with quick_imports(folder) if quick else nullcontext():
    from intarsia.encoder.encoder import Encoder
    encoder = Encoder.load(folder)
heavy = [name for name in ("scipy", "sympy", "torch._dynamo", "torch.distributed.tensor") if name in sys.modules]
from intarsia.encoder.packed import pack
import torch
with torch.no_grad():
    states = encoder.forward(pack(encoder.tokenize(["a good film", "no"])))
print(encoder.fingerprint, states.numpy().tobytes().hex())
print(heavy)
if quick:
    import scipy.optimize, torch._dynamo
    from torch.distributed.tensor import DTensor
    linear = torch.nn.Linear(3, 3)
    print(callable(scipy.optimize.linear_sum_assignment), torch._dynamo.__file__ is not None, DTensor.__module__)
    print(torch.isfinite(linear.weight).all().item(), linear.weight.abs().max().item() < 1)
"""


def loaded(way: str, folder: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", LOAD, way, folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_outputs_are_the_same_and_the_placeholders_go(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "base")
    plain, quick = loaded("plain", folder), loaded("quick", folder)
    assert quick[0] == plain[0]
    assert quick[1] == "[]"
    assert quick[2:] == ["True True torch.distributed.tensor", "True True"]


def test_a_base_that_does_not_load_is_explained_as_without(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    for way in ("plain", "quick"):
        done = subprocess.run([sys.executable, "-c", LOAD, way, str(tmp_path)], capture_output=True, text=True)
        assert done.returncode == 1 and "EncoderError" in done.stderr.splitlines()[-1]
