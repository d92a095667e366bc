"""A few cases of every part of the campaign (`make campaign` runs thousands), and its page."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.campaign import fuzz, kills, points, report, together
from tests.campaign.bank import World
from tests.campaign.children import in_child, killed_after
from tests.campaign.tally import Budget, Tally

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("campaign"))


def test_a_few_cases_of_each_part(world: World) -> None:
    parts = {"kills": kills.run, "crashes": points.crashes, "errors": points.errors}
    for name, part in parts.items():
        tally = part(world, Budget.of(1, 0, 60.0, most=4))
        assert not tally.failures, name
        assert sum(tally.counts.values()) >= 4


def test_a_few_inputs_of_each_kind(world: World) -> None:
    for kind, count in {"inlays": 200, "headers": 20, "readers": 40, "columns": 20, "states": 50, "models": 2}.items():
        tally = fuzz.batch(world, kind, range(1, 1 + count), 1e18)
        assert not tally.failures and tally.counts["inputs"] == count, kind


def test_threads_and_processes(world: World) -> None:
    for part in (together.threads, together.processes):
        tally = part(world, Budget.of(1, 0, 0.5, most=1))
        assert not tally.failures and tally.counts


def test_a_child_that_is_killed_or_fails_or_hangs_is_seen() -> None:
    import time

    assert in_child(lambda: 1 + 1).value == 2
    assert "ZeroDivisionError" in in_child(lambda: 1 // 0).error
    assert killed_after(lambda: time.sleep(60), 0.0).status == -9
    assert in_child(lambda: time.sleep(60), longest=0.1).hung


def test_a_broken_bank_is_a_failure(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaign can fail: it is told when a kill leaves half a file under its name."""

    def torn(self: World, folder: Path, number: int) -> None:
        path = folder / "inlays" / "added" / "0001.safetensors"
        path.parent.mkdir()
        path.write_bytes(b"half")

    monkeypatch.setattr(World, "add", torn)
    monkeypatch.setattr(kills, "some_operation", lambda draw: "add")
    tally = kills.run(world, Budget.of(0, 0, 60.0, most=3))
    assert tally.counts["failures"] and "0001.safetensors" in tally.failures[0]["reason"]


def test_failures_name_no_folder_of_the_machine() -> None:
    trace = (
        'File "/a/b/.venv/lib/python3.11/site-packages/torch/nn.py", line 2\n'
        'File "/a/b c/x/intarsia/files.py", line 3\n'
        "Cannot use /tmp/campaign-x1/failed: No space left on device"
    )
    found = report.without_folders(trace)
    assert "/a/" not in found and "/tmp" not in found
    assert '"site-packages/torch/nn.py"' in found and "campaign-x1/failed: No space" in found


def test_the_page_is_drawn_from_the_results(tmp_path: Path) -> None:
    tally = Tally()
    tally.counts.update({"kills": 7, "operations": 2})
    tally.fail("kill: add", 5, "Traceback\n  a|b")
    made = report.described({"kills": tally}, 3, 20, datetime(2026, 1, 2, tzinfo=UTC))
    report.write(tmp_path / "c.json", tmp_path / "c.md", [made, made])
    assert report.runs(tmp_path / "c.json") == [made, made]
    page = (tmp_path / "c.md").read_text()
    assert "| kills | 7 | 14 |" in page and "| failures | 1 | 2 |" in page and "a\\|b" in page
    stored = ROOT / "results" / "campaign.json"
    if stored.is_file():
        found = json.loads(stored.read_text())["runs"]
        assert report.text(found) == (ROOT / "docs" / "campaign.md").read_text()
