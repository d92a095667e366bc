"""`intarsia explain` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import intarsia
from intarsia.cli import main
from tests.support.families import opinions, save_tiny


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explain")
    made = intarsia.open(folder / "bank", save_tiny(folder / "base"))
    made.learn("tone", opinions(), "houlsby-4", epochs=2, learning_rate=5e-3, batch_size=16, max_length=16)
    pairs = [{"text_a": row["text"], "text_b": "it was so", "label": row["label"]} for row in opinions()]
    made.learn("both", pairs, "houlsby-4", epochs=1, batch_size=16, max_length=16)
    return folder / "bank"


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["intarsia", *arguments])
    try:
        main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_terminal_html_and_json(
    bank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(monkeypatch, capsys, "explain", "tone", "a good day", "--bank", str(bank))
    assert code == 0 and err == "" and "by occlusion" in out and "without it" in out and "█" in out
    code, out, _ = run(
        monkeypatch, capsys, "explain", "tone", "a good day", "-b", str(bank), "--json", "--by", "gradients"
    )
    (found,) = json.loads(out)
    assert [word["word"] for word in found["words"]] == ["a", "good", "day"] and found["by"] == "gradients"
    page = tmp_path / "page.html"
    code, out, err = run(monkeypatch, capsys, "explain", "both", "good\tbad <b>", "-b", str(bank), "-o", str(page))
    assert code == 0 and out == "" and f"Wrote {page}" in err and "&lt;" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tone", "good", "--by", "magic"), "--by 'magic' is not known"),
        (("tone", "good", "--label", "yess"), "Did you mean 'yes'"),
        (("tone", "good", "--output", "x.txt"), "ends in .html"),
        (("tonne", "good"), "Did you mean 'tone'"),
        (("tone", ""), "text 1 is empty"),
    ],
)
def test_wrong_requests_are_refused(
    bank: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    code, out, err = run(monkeypatch, capsys, "explain", *arguments, "--bank", str(bank))
    assert code == 2 and out == "" and message in err
