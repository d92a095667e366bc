"""Whether int8 works and pays on this processor: the verdict of a trial in a process of its own.

A verdict is stored in the user's cache folder, for one processor, PyTorch, base shape and number of threads. A verdict
that int8 is too slow is not stored: another program may have slowed the trial down.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from intarsia import files, provenance
from intarsia.encoder.frozen import FrozenLinear
from intarsia.errors import IntarsiaError, PrecisionError
from intarsia.kernels.cpu_library import instructions

# Times as fast as float32: with these and more, int8 pays. Few tokens take little time in any precision.
LEAST_FULL, LEAST_FEW = 1.25, 0.7
SECONDS = 180.0  # a trial that takes longer has failed
FORMAT = 1  # of the stored verdict; raise it if the products or the trial change
ISA = "ONEDNN_MAX_CPU_ISA"
LIMITED = "AVX512_CORE_VNNI"  # the newest instructions before AMX and bf16
TRIAL = ("-m", "intarsia.encoder.int8_trial")  # arguments of Python
SETTINGS = (ISA, "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")  # environment variables that change the products


@dataclass(frozen=True)
class Verdict:
    """The result of the trials. Times are seconds of all linear layers of the base."""

    problem: str | None = None  # int8 does not work
    float32: dict[str, float] | None = None  # by number of tokens
    few: dict[str, float] | None = None  # tokens, float32, int8
    full: dict[str, float] | None = None
    limited: dict[str, Any] | None = None  # the verdict with `LIMITED` instructions, if int8 failed without

    @property
    def works(self) -> bool:
        return self.problem is None and self.few is not None

    @property
    def pays(self) -> bool:
        return self.works and _ratio(self.full) >= LEAST_FULL and _ratio(self.few) >= LEAST_FEW

    def describe(self) -> str:
        """Return what was measured, as sentences."""
        if self.problem is not None:
            return f"int8 does not work: {self.problem}. {self._with_limit()}".strip()
        return "int8 pays. " + self._speeds() if self.pays else "int8 does not pay. " + self._speeds()

    def _speeds(self) -> str:
        parts = []
        for measured, least in ((self.few, LEAST_FEW), (self.full, LEAST_FULL)):
            if measured is not None:
                parts.append(
                    f"its linear layers take {1000 * measured['int8']:.2f} ms in int8 and "
                    f"{1000 * measured['float32']:.2f} ms in float32 for {int(measured['tokens'])} tokens "
                    f"({_ratio(measured):.2f} times as fast; at least {least:g} is expected)"
                )
        return "In the trial, " + ", and ".join(parts) + "."

    def _with_limit(self) -> str:
        if self.limited is None:
            return ""
        limited = Verdict(**self.limited)
        if not limited.pays:
            return f"With {ISA}={LIMITED}: {limited.describe()}"
        cost = ""
        if self.float32 and limited.float32:
            share = sum(self.float32.values()) / sum(limited.float32.values())
            cost = f"; float32 then runs at {share:.0%} of its speed"
        setting = f"the environment variable {ISA}={LIMITED}"
        return f"With {setting}, {limited.describe()} Set it before the program starts{cost}."


def _ratio(measured: Mapping[str, float] | None) -> float:
    return 0.0 if measured is None else measured["float32"] / measured["int8"]


def require(linears: Sequence[FrozenLinear], name: str) -> Verdict:
    """Raise unless int8 works and pays for these layers on this processor."""
    found = verdict(linears)
    if not found.pays:
        raise PrecisionError(
            f"int8 is not available for the base {name} on this processor ({processor()}, PyTorch "
            f"{torch.__version__}): {found.describe()} Use float32: omit --precision (in Python: precision)."
        )
    return found


def verdict(linears: Sequence[FrozenLinear]) -> Verdict:
    """Return the stored verdict for these layers on this machine; if there is none, run the trial."""
    request = {"groups": groups(linears), "threads": torch.get_num_threads()}
    path = _path(request)
    found = None if path is None else _read(path)
    if found is None:
        found = _trial(request, os.environ)
        if found.problem is not None and ISA not in os.environ:
            found = Verdict(**{**asdict(found), "limited": asdict(_trial(request, {**os.environ, ISA: LIMITED}))})
        if path is not None and (found.pays or found.problem is not None):
            with suppress(OSError, IntarsiaError):  # not writable: the next process runs the trial again
                path.parent.mkdir(parents=True, exist_ok=True)
                files.replace(path, [json.dumps(asdict(found)).encode()])
    return found


def groups(linears: Sequence[FrozenLinear]) -> list[tuple[int, tuple[int, ...], int]]:
    """Return the layers by input width and output widths, with their number. Layers that share a product are one."""
    counts: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for linear in linears:
        together = (linear,) if linear.projections is None else linear.projections.linears
        if linear is together[0]:
            counts[linear.in_features, tuple(layer.out_features for layer in together)] += 1
    return [(width, outs, count) for (width, outs), count in sorted(counts.items())]


def _trial(request: Mapping[str, Any], environment: Mapping[str, str]) -> Verdict:
    """Run int8_trial.py in a process of its own."""
    package = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(package), *filter(None, [environment.get("PYTHONPATH")])])
    command = [sys.executable or "python", *TRIAL]
    try:
        done = subprocess.run(
            command, input=json.dumps(request), capture_output=True, text=True, timeout=SECONDS, check=False,
            env={**environment, "PYTHONPATH": path},
        )  # fmt: skip
    except OSError as error:
        return Verdict(f"the process of its trial cannot start ({error})")
    except subprocess.TimeoutExpired:
        return Verdict(f"its trial took longer than {SECONDS:.0f} s")
    stages: dict[str, Any] = {}
    with suppress(ValueError):
        for line in done.stdout.splitlines():
            stages |= json.loads(line)
    if done.returncode != 0:
        stages["problem"] = f"the process of its trial {_end(done.returncode, done.stderr)}"
    elif "few" not in stages:
        stages["problem"] = "the process of its trial printed no result"
    return Verdict(**{key: stages.get(key) for key in ("problem", "float32", "few", "full")})


def _end(code: int, errors: str) -> str:
    if code < 0:
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    last = (errors.strip().splitlines() or ["no message"])[-1]
    return f"ended with code {code}: {last[:300]}"


def processor() -> str:
    return str(provenance.machine()["processor"])


def _path(request: Mapping[str, Any]) -> Path | None:
    """Return the file of the verdict, or None if there is no cache folder."""
    try:
        cache = files.cache_folder()
    except RuntimeError:  # no home folder
        return None
    depends = {
        "format": FORMAT,
        "request": request,
        "torch": torch.__version__,
        "processor": processor(),
        "instructions": instructions(),
        "environment": {name: os.environ.get(name) for name in SETTINGS},
    }
    digest = hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()
    return cache / f"int8-{digest[:32]}.json"


def _read(path: Path) -> Verdict | None:
    """Return a stored verdict; None if there is none or it cannot be read."""
    try:
        found = Verdict(**json.loads(path.read_bytes()))
        return found if found.pays or found.problem is not None else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ZeroDivisionError):
        return None
