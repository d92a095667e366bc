"""A new version is served unless it scores worse on the same test part; its users are warned of what changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import intarsia
from intarsia import Bottleneck, Settings
from intarsia.bank import succession
from intarsia.bank.inlay import Inlay
from intarsia.bank.store import Store
from intarsia.cli.tables import learned
from intarsia.errors import BankError, IntarsiaWarning
from tests.support.families import opinions, tiny_with_words
from tests.support.inlays import make_inlay


def scored(value: float, *, test: str = "t", metric: str = "accuracy", **data: Any) -> Inlay:
    metrics = {"metric": metric, "test": {"value": value, "low": 0.0, "high": 1.0, "examples": 6}}
    return make_inlay(metrics=metrics, data={"test_sha256": test, **data})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "bank")
    store.add(scored(0.8))
    return store


def test_a_worse_version_is_kept_and_not_served(store: Store) -> None:
    with pytest.warns(
        IntarsiaWarning, match=r"version 2 is kept but not served: its accuracy, 70.0, is below the 80.0 "
    ):
        held = succession.add(store, scored(0.7))
    assert held.held and "version 2 (kept, not served): accuracy 70.0" in learned(held).plain  # also with --quiet
    assert "served" not in learned(store.entry("sentiment")).plain and store.entry("sentiment").version == 1
    with pytest.warns(IntarsiaWarning, match=r"79\.995, is below the 80\.000 of version 1"):
        succession.add(store, scored(0.79995))
    assert succession.add(store, scored(0.7), serve_anyway=True).version == store.entry("sentiment").version == 4


@pytest.mark.parametrize(
    "inlay",
    [scored(0.8), scored(0.9), scored(0.7, test="other rows"), scored(0.7, metric="matthews"), make_inlay()],
    ids=["equal", "better", "other test part", "other metric", "no test part"],
)
def test_any_other_version_is_served(store: Store, inlay: Inlay) -> None:
    assert not succession.add(store, inlay).held
    assert store.entry("sentiment").version == 2


def test_versions_without_a_hash_of_the_test_part_are_compared_by_their_data(tmp_path: Path) -> None:
    store = Store(tmp_path / "bank")
    old = scored(0.8)
    old.data.clear()
    old.data["sha256"] = "all parts"
    store.add(old)
    assert not succession.add(store, scored(0.7, sha256="others")).held
    store.add(old)
    with pytest.warns(IntarsiaWarning, match="not served"):
        assert succession.add(store, scored(0.7, sha256="all parts")).held


def test_other_labels_or_another_kind_are_announced(tmp_path: Path) -> None:
    quick = Settings(learning_rate=3e-3, epochs=1, batch_size=16)
    bank = intarsia.open(tmp_path / "bank", tiny_with_words())
    bank.learn("opinion", opinions(), method=Bottleneck(4), settings=quick)
    first = bank.predict("opinion", ["good film"])
    others = [{**row, "label": {"yes": "yes", "no": "never"}[row["label"]]} for row in opinions(seed=2)]
    with pytest.warns(IntarsiaWarning, match=r"no longer has the label no and has the new label never"):
        assert bank.learn("opinion", others, method=Bottleneck(4), settings=quick).version == 2
    assert set(bank.predict("opinion", ["good film"])[0].probabilities or {}) == {"never", "yes"}
    assert bank.predict("opinion", ["good film"], version=1) == first
    assert bank.evaluate("opinion", opinions(20), version=1).examples == 20
    with pytest.raises(BankError, match=r"no version 7\. Its versions are: 1, 2"):
        bank.predict("opinion", ["good film"], version=7)
    scores = [{**row, "label": 0.5 + (row["label"] == "yes")} for row in opinions()]
    with pytest.warns(IntarsiaWarning, match=r"is of the kind score \(until now label\)"):
        bank.learn("opinion", scores, method=Bottleneck(4), settings=quick)


def test_a_merged_task_with_other_labels_is_announced(tmp_path: Path) -> None:
    quick = Settings(learning_rate=3e-3, epochs=1, batch_size=16)
    bank = intarsia.open(tmp_path / "bank", tiny_with_words())
    for name, labels in (("opinion", {"yes": "yes", "no": "no"}), ("mood", {"yes": "good", "no": "bad"})):
        rows = [{**row, "label": labels[row["label"]]} for row in opinions()]
        bank.learn(name, rows, method=Bottleneck(4), settings=quick)
    with pytest.warns(IntarsiaWarning, match=r"no longer has the labels bad, good and has the new labels no, yes"):
        bank.merge("mood", {"opinion": 1.0})
