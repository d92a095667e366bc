"""The provenance of a result: library versions and the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

from intarsia.version import __version__

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "scikit-learn")


def versions() -> dict[str, str]:
    """The versions of Python, Intarsia and the installed libraries that affect results."""
    found = {"python": platform.python_version(), "intarsia": __version__}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):  # scikit-learn is optional
            found[name] = importlib.metadata.version(name)
    return found


def machine(device: str = "cpu") -> dict[str, Any]:
    """The platform, processor, core and thread counts and the device; on CUDA also the GPU's name."""
    import torch

    description: dict[str, Any] = {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device,
    }
    if device.startswith("cuda") and torch.cuda.is_available():
        description["accelerator"] = torch.cuda.get_device_name(device)
    return description


def _processor() -> str:
    """The processor's model name, from Linux where available."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    model_names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(model_names, platform.processor() or platform.machine())
