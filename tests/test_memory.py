"""Memory is given back now and then, and only where the C library can."""

from __future__ import annotations

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


def test_where_there_is_no_such_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_trim", lambda: None)
    memory.MemoryTrim(every=0.0)()


def test_here() -> None:
    memory.MemoryTrim(every=0.0)()
