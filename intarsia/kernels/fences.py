"""A fence that Triton before 3.7.1 leaves out on Hopper GPUs.

There a product reads what copies to shared memory have written another way than they wrote it, and must be told that
they have ended (github.com/triton-lang/triton/pull/10537). Without the fence a product may, very rarely, read what was
there before.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import triton

FENCE = "fence.proxy.async.shared::cta;"
_PRODUCT = re.compile(r"^([ \t]*)(wgmma\.fence\.sync\.aligned;)", re.MULTILINE)
_OURS = "intarsia/kernels/"  # in the names of the files that a kernel's code came from
_KEY = "intarsia: a fence before products"


def fenced(code: str) -> str:
    """PTX with a fence before each product, where it is ours or does not say whose it is; it costs next to nothing."""
    ours = _OURS in code.replace("\\", "/") or ".file" not in code
    return _PRODUCT.sub(rf"\1{FENCE}\n\1\2", code) if ours else code


def needed(version: str = triton.__version__) -> bool:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3]) < (3, 7, 1)


def mend() -> None:
    """For what is compiled from here on, by a Triton that needs it and can be told."""
    runtime: Any = getattr(getattr(triton, "knobs", None), "runtime", None)
    if not needed() or not hasattr(runtime, "add_stages_inspection_hook"):
        return
    if getattr(runtime.add_stages_inspection_hook, "fences", False):
        return
    before: Callable[..., Any] | None = runtime.add_stages_inspection_hook

    def hook(*given: Any) -> tuple[str, str] | None:
        """Without arguments: what a compiled kernel is kept under, beside its source. Else it is about to be compiled:
        (backend, stages, options, language, capability)."""
        if not given:
            return (_KEY, _KEY) if before is None else tuple(f"{own} {_KEY}" for own in before())  # type: ignore[return-value]
        if before is not None:
            before(*given)
        stages = given[1]
        if "ptx" in stages:  # not on other makers' GPUs
            plain = stages["ptx"]
            stages["ptx"] = lambda source, metadata: fenced(plain(source, metadata))
        return None

    hook.fences = True  # type: ignore[attr-defined]
    runtime.add_stages_inspection_hook = hook
