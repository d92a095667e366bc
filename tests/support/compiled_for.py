"""The compiled function of CPU passes, built for this processor or for an older one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from intarsia.kernels import cpu_library


@pytest.fixture
def in_pytorch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run all passes of a test in PyTorch, whatever this processor could do."""
    monkeypatch.setenv(cpu_library.SWITCH, "0")
    cpu_library.load.cache_clear()
    yield
    cpu_library.load.cache_clear()


@contextmanager
def compiled_for(processor: str) -> Iterator[str]:
    """Build the function for "this" processor, or for one of `cpu_library.OLDER`; skip the test if that cannot be."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv(cpu_library.SWITCH, "" if processor == "this" else processor)
        cpu_library.load.cache_clear()
        if cpu_library.load() is None:
            pytest.skip(f"there is no C compiler, or this processor has fewer instructions ({processor})")
        yield processor
    cpu_library.load.cache_clear()
