"""A memory fence that Triton before 3.7.1 omits on Hopper GPUs.

On these GPUs a matrix product reads shared memory through another proxy than the copies that write it. A fence must
order the two (github.com/triton-lang/triton/pull/10537). Without it a product may, very rarely, read the old content.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import triton

FENCE = "fence.proxy.async.shared::cta;"
_PRODUCT = re.compile(r"^([ \t]*)(wgmma\.fence\.sync\.aligned;)", re.MULTILINE)
_OURS = "intarsia/kernels/"  # part of the source file names in a kernel's PTX
_KEY = "intarsia: a fence before products"


def fenced(code: str) -> str:
    """The PTX with a fence before each product, if it is from this package or names no file. The cost is negligible."""
    ours = _OURS in code.replace("\\", "/") or ".file" not in code
    return _PRODUCT.sub(rf"\1{FENCE}\n\1\2", code) if ours else code


def needed(version: str = triton.__version__) -> bool:
    """Whether this version of Triton omits the fence."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3]) < (3, 7, 1)


def mend() -> None:
    """Add the fence to all kernels compiled from now on, if this Triton needs it and has a compilation hook."""
    runtime: Any = getattr(getattr(triton, "knobs", None), "runtime", None)
    if not needed() or not hasattr(runtime, "add_stages_inspection_hook"):
        return
    if getattr(runtime.add_stages_inspection_hook, "fences", False):
        return
    before: Callable[..., Any] | None = runtime.add_stages_inspection_hook

    def hook(*given: Any) -> tuple[str, str] | None:
        """Without arguments: the additional cache key of compiled kernels. With (backend, stages, options, language,
        capability): change the stages of a kernel that is about to be compiled."""
        if not given:
            return (_KEY, _KEY) if before is None else tuple(f"{key} {_KEY}" for key in before())  # type: ignore[return-value]
        if before is not None:
            before(*given)
        stages = given[1]
        if "ptx" in stages:  # only NVIDIA GPUs have this stage
            plain = stages["ptx"]
            stages["ptx"] = lambda source, metadata: fenced(plain(source, metadata))
        return None

    hook.fences = True  # type: ignore[attr-defined]
    runtime.add_stages_inspection_hook = hook
