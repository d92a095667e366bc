"""Memory is given back now and then, and only where the C library can."""

from __future__ import annotations

import platform

import pytest

from intarsia import memory


def test_only_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [100.0], list[float]()
    monkeypatch.setattr(memory.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(memory, "_trim", lambda: lambda _: calls.append(now[0]))
    tidy = memory.MemoryTrim(every=30.0)
    for now[0] in (101.0, 129.9, 130.0, 140.0, 160.0):
        tidy()
    assert calls == [130.0, 160.0]


def test_a_c_library_without_the_call_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: object) -> object:
        raise OSError("no such library")

    monkeypatch.setattr(memory.ctypes, "CDLL", missing)
    assert memory._trim.__wrapped__() is None
    monkeypatch.setattr(memory, "_trim", lambda: None)
    trim = memory.MemoryTrim(every=0.0)
    begun = trim.last
    trim()
    assert trim.last == begun


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")
def test_glibc_has_the_call() -> None:
    trim = memory._trim()
    assert trim is not None and trim(0) in (0, 1)
