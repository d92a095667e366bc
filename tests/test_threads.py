"""How threads wait and how many there are: set at the package's import, never against the user's choice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from intarsia import threads

SHOW = "import intarsia, os, sys; print([os.environ.get(n) for n in sys.argv[1:]])"
NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["PASSIVE", "1000"]),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, ["ACTIVE", None]),
        ({"GOMP_SPINCOUNT": "5"}, [None, "5"]),
    ],
)
def test_waiting_threads_soon_sleep_unless_the_user_chose(given: dict[str, str], expected: list[str | None]) -> None:
    clean = {name: value for name, value in os.environ.items() if name not in threads.WAITING}
    done = subprocess.run(
        [sys.executable, "-c", SHOW, *NAMES], env={**clean, **given}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(expected)


def test_no_more_threads_than_a_container_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    assert threads.core_limit(tmp_path) is None  # no control group
    for content, expected in (("max 100000\n", None), ("250000 100000\n", 3), ("3200000 100000\n", None)):
        (tmp_path / "cpu.max").write_text(content)
        assert threads.core_limit(tmp_path) == expected
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    for quota, expected in (("-1\n", None), ("50000\n", 1)):
        (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
        assert threads.core_limit(tmp_path) == expected
    monkeypatch.setattr(threads, "core_limit", lambda: 3)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads.prepare()
    assert os.environ["OMP_NUM_THREADS"] == "3"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    threads.prepare()
    assert os.environ["OMP_NUM_THREADS"] == "5"
