"""Counting as the paper counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from intarsia.bank.accounting import BankCost, TaskCost, account
from intarsia.bank.store import Store
from intarsia.errors import BankError
from tests.support.inlays import flip, make_inlay


def test_the_papers_nine_glue_tasks() -> None:
    """Table 1: 3.6 % for each of nine tasks make 1.3 times BERT-large, against nine times with fine-tuning."""
    base = 330_000_000
    cost = BankCost(base, tuple(TaskCost(f"t{n}", 1, base, 11_880_000, 3_074, 1) for n in range(9)), ())
    assert [round(task.share, 3) for task in cost.tasks] == [0.036] * 9
    assert round(cost.total, 1) == 1.3
    assert cost.total == (base + 9 * 11_880_000) / base
    assert cost.total_with_heads == (base + 9 * 11_883_074) / base
    assert cost.fine_tuning == 9


def test_account_adds_up_the_newest_versions(tmp_path: Path) -> None:
    store = Store(tmp_path / "bank")
    for name, method, head in [("a", 40, 8), ("b", 60, 8), ("b", 50, 8)]:
        counts = {"method": method, "head": head, "total": method + head, "base": 1000}
        store.add(make_inlay(name, parameters=counts))
    cost = account(store.entries(), 1000)
    sizes = [entry.bytes for entry in store.entries()]
    assert cost.tasks == (TaskCost("a", 1, 1000, 40, 8, sizes[0]), TaskCost("b", 2, 1000, 50, 8, sizes[1]))
    assert (cost.method, cost.head, cost.bytes) == (90, 16, sum(sizes))
    assert (cost.total, cost.total_with_heads, cost.fine_tuning) == (1.09, 1.106, 2)
    assert (cost.tasks[1].trained, cost.tasks[1].share) == (58, 0.05)


def test_damaged_tasks_are_named_and_not_counted(tmp_path: Path) -> None:
    store = Store(tmp_path / "bank")
    store.add(make_inlay("a"))
    flip(store.add(make_inlay("b")).path, 4)
    cost = account(store.entries(), 1000)
    assert [task.name for task in cost.tasks] == ["a"]
    assert cost.damaged == ("b",)


def test_an_empty_bank_is_the_base_alone() -> None:
    cost = account([], 1000)
    assert (cost.total, cost.total_with_heads, cost.fine_tuning, cost.bytes) == (1.0, 1.0, 0, 0)


def test_what_cannot_be_counted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BankError, match="base of 0 parameters"):
        account([], 0)
    store = Store(tmp_path / "bank")
    with pytest.raises(BankError, match="missing required field head"):
        store.add(make_inlay(parameters={"method": 3}))
