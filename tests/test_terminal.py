"""Text from files is text on the terminal: no markup, no escape sequences."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest

from intarsia.bank.store import Store
from intarsia.cli import console
from intarsia.formatting import json_text, printable
from tests.support.inlays import make_inlay

HOSTILE = "\x1b[2J\x1b]0;owned\x07 [red]no[/] :smile: [/] \x9b31m \u202egnp.exe \udc80 \r"


def test_control_characters_are_shown() -> None:
    shown = printable(HOSTILE)
    assert "\\x1b[2J" in shown and "\\x07" in shown and "\\x9b31m" in shown and "\\u202e" in shown
    assert "\\udc80" in shown and "\\x0d" in shown and "[red]no[/] :smile:" in shown
    assert printable("plain ✓ naïve\n\ttext — 日本語 👍") == "plain ✓ naïve\n\ttext — 日本語 👍"


def test_json_has_the_same_values() -> None:
    text = json_text({"label": [HOSTILE, "naïve ✓"]})
    assert json.loads(text) == {"label": [HOSTILE, "naïve ✓"]}
    assert "naïve ✓" in text and not any(c in text for c in "\x1b\x9b\x7f\u202e\udc80")


@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_printed_is_markup_or_control(terminal: bool) -> None:
    sink = io.StringIO()
    made = console.PlainConsole(file=sink, force_terminal=terminal, width=200, color_system=None)
    table = console.table(["task", HOSTILE], [[HOSTILE, "1"]], total=["total", HOSTILE])
    for part in (HOSTILE, table, console.styled(("error:", "bold red"), HOSTILE)):
        made.print(part)
    written = sink.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert not any(c in written for c in "\x1b\x07\x9b\u202e\udc80\r")
    assert written.count("[red]no[/] :smile:") == 5


def test_labels_and_paths_of_a_bank_are_only_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from intarsia.bank.bank import Bank
    from intarsia.cli.tables import learned, show_table, tasks_table

    text = HOSTILE.replace("\udc80", "")
    history = [{"always": text}]
    metrics = {"metric": "accuracy", "dev": 0.5, "best_epoch": 1}
    inlay = make_inlay(metrics=metrics, labels=(text, "b"))
    training = {"steps": 1, "seconds": 1.0, "history": history, "seed": 0}
    data = {"path": text, "rows": {"train": 1}, "split": text}
    store = Store(tmp_path)
    entry = store.add(dataclasses.replace(inlay, training=training, data=data, encoder={**inlay.encoder, "name": text}))
    store.folder.joinpath("inlays", "odd").mkdir()
    store.folder.joinpath("inlays", "odd", "0001.safetensors").write_bytes(b"no inlay")
    console.print_parts([*tasks_table(Bank(tmp_path)), show_table(entry, [entry]), learned(entry)])
    console.print_json({"labels": [text]})
    written = capsys.readouterr().out
    assert not any(c in written for c in "\x1b\x07\x9b\u202e\r")
    assert "[red]no[/] :smile:" in written and "damaged: " in written


def test_an_argument_that_is_not_utf8_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from intarsia.cli import main

    for arguments in (["predict", "a", "caf\udce9"], ["learn", "a\udcff", "x.csv"]):
        monkeypatch.setattr("sys.argv", ["intarsia", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == 2
        assert "is not valid UTF-8" in capsys.readouterr().err


def test_an_error_of_the_operating_system_is_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import intarsia.cli as cli

    def fail() -> None:
        raise OSError(24, "Too many open files", "bank/x")

    monkeypatch.setattr("sys.argv", ["intarsia", "tasks"])
    monkeypatch.setattr(cli, "_app_for", lambda command: fail)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert "Cannot use bank/x: Too many open files. Close other files" in capsys.readouterr().err.replace("\n", " ")
