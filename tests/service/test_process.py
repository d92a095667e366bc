"""The service as a process: signals, kills under load, and errors at the start."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from intarsia import Client
from intarsia.bank.bank import Bank
from intarsia.cli.shared import app
from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaError
from intarsia.local_socket import socket_path
from tests.support.families import opinions
from tests.support.service import ROOT, TEXTS, Process, Running, running, served, wait_until

KILLS = int(os.environ.get("INTARSIA_KILLS", "2"))


@pytest.fixture(scope="module")
def folder(learned: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("process") / "bank"
    shutil.copytree(learned, made)
    return made


class Load:
    """Clients that ask until the service is gone; every answer is compared."""

    def __init__(self, process: Process, expected: list[Any]) -> None:
        self.answered = self.lost = 0
        self.wrong: list[Any] = []
        self.client = Client(process.running.url, patience=0, timeout=30)
        self.expected = expected
        self.end = threading.Event()
        self.threads = [threading.Thread(target=self._run, args=(self._ask,)) for _ in range(4)]
        self.threads.append(threading.Thread(target=self._run, args=(self._write,)))
        for thread in self.threads:
            thread.start()

    def _run(self, act: Callable[[], None]) -> None:
        while not self.end.is_set():
            try:
                act()
            except IntarsiaError:
                self.lost += 1
                return

    def _ask(self) -> None:
        given = self.client.predict([("opinion", TEXTS[0]), ("rating", TEXTS[1]), ("tags", TEXTS[2])])
        if given != self.expected:
            self.wrong.append(given)
        self.answered += 1

    def _write(self) -> None:
        self.client.post("/v1/tasks/pairs/restore", {"version": 1})

    def join(self) -> None:
        self.end.set()
        for thread in self.threads:
            thread.join(60)


def expected_of(folder: Path, encoder: Encoder) -> list[Any]:
    return Bank(folder, encoder).predict([("opinion", TEXTS[0]), ("rating", TEXTS[1]), ("tags", TEXTS[2])])


@pytest.mark.parametrize("seed", range(KILLS))
def test_kills_under_load_leave_the_bank_whole(folder: Path, encoder: Encoder, seed: int) -> None:
    expected = expected_of(folder, encoder)
    enough = random.Random(seed).randint(5, 60)
    with served(folder, "--no-jobs") as process:
        load = Load(process, expected)
        wait_until(lambda: load.answered >= enough)
        assert process.end(signal.SIGKILL) == -signal.SIGKILL
        load.join()
    assert load.wrong == []
    bank = Bank(folder, encoder)
    assert bank.verify() == [] and expected_of(folder, encoder) == expected
    assert socket_path(folder).exists()  # the next service replaces it
    for version in bank.versions("pairs")[1:]:
        bank.remove("pairs", version.version)


def test_sigterm_answers_what_was_admitted_and_jobs_go_on_later(folder: Path, encoder: Encoder) -> None:
    expected = expected_of(folder, encoder)
    job = {"task": "late", "rows": opinions(40), "method": "houlsby-8", "epochs": 3}
    with served(folder) as process:
        accepted = process.running.post("/v1/jobs", job)
        assert accepted.status == 202
        load = Load(process, expected)
        wait_until(lambda: load.answered >= 20)
        assert process.end(signal.SIGTERM) == 0
        load.join()
    assert load.wrong == [] and not socket_path(folder).exists()
    assert Bank(folder, encoder).verify() == []
    with served(folder) as process:
        where = f"/v1/jobs/{accepted.json()['id']}"
        wait_until(lambda: process.running.get(where).json()["state"] in ("done", "failed"), 120)
        assert process.running.get(where).json()["state"] == "done"
        assert process.running.post("/v1/tasks/late/predict", {"inputs": TEXTS}).status == 200
        assert process.end(signal.SIGINT) == 0


def test_every_limit_in_force_is_shown_at_the_start_and_the_log_is_json(learned: Path, base: str) -> None:
    command = [sys.executable, "-m", "intarsia.cli", "serve", "--bank", str(learned), "--port", "0", "--no-socket",
               "--no-jobs"]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as popen:
        assert popen.stderr is not None
        try:
            shown = [popen.stderr.readline() for _ in range(4)]
            made = Running(int(shown[0].split("127.0.0.1:")[1].split()[0]))
            limits = dict(pair.split("=") for line in shown for pair in line.split() if "=" in pair)
            in_force = made.get("/v1/info").json()["limits"]
            made.get("/nothing")
        finally:
            popen.terminate()
        lines = [json.loads(line) for line in popen.stderr.read().splitlines()]
    assert limits == {name: str(value) for name, value in in_force.items()} | {"log": "json"}
    assert "Ready after" in shown[3]
    assert [(line["event"], line["status"]) for line in lines[:-1]] == [("request", 200), ("request", 404)]
    assert lines[-1]["message"] == "The service has ended."


def test_every_option_is_an_environment_variable(learned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    from intarsia.cli import serve as command
    from intarsia.serve.limits import Limits

    taken: list[tuple[Any, ...]] = []
    monkeypatch.setattr(command, "run", lambda *given: taken.append(given))
    chosen = {"ENCODER": "somewhere", "DEVICE": "cpu", "PRECISION": "int8", "ROWS": "7", "UPLOADS": "1", "SLOTS": "3"}
    environment = {f"INTARSIA_SERVE_{name}": value for name, value in chosen.items()}
    assert CliRunner().invoke(app, ["serve"], env={"INTARSIA_BANK": str(learned), **environment}).exit_code == 0
    ((folder, encoder, device, precision, limits, options, _),) = taken
    assert (folder, encoder, device, precision) == (learned, "somewhere", "cpu", "int8")
    assert (limits.slots, options.rows, options.uploads) == (3, 7, True)
    usual = {name: value for name, value in dataclasses.asdict(Limits()).items() if value is not None}
    assert usual == command.USUAL
    assert "int8" in refused("--bank", str(learned), INTARSIA_SERVE_PRECISION="x")


def test_errors_of_the_log_are_json_too() -> None:
    from intarsia.service.server import JsonLines

    try:
        raise RuntimeError("broken\npart")
    except RuntimeError:
        record = logging.LogRecord("intarsia.error", logging.ERROR, "", 0, "request %s failed", ("7",), sys.exc_info())
    line = JsonLines().format(record)
    found = json.loads(line)
    assert "\n" not in line and found["event"] == "error" and found["message"] == "request 7 failed"
    assert "RuntimeError: broken" in found["traceback"]


def refused(*arguments: str, **environment: str) -> str:
    result = CliRunner().invoke(app, ["serve", *arguments], env=environment)
    assert isinstance(result.exception, IntarsiaError), result.output
    return str(result.exception)


def test_errors_at_the_start(learned: Path, base: str, tmp_path: Path) -> None:
    bank = ("--bank", str(learned), "--no-socket")
    assert "There is no bank" in refused("--bank", str(tmp_path / "nothing"))
    assert "no key is set" in refused(*bank, "--host", "0.0.0.0")
    assert "INTARSIA_API_KEY" in refused(*bank, INTARSIA_API_KEY="")
    assert "--rows" in refused(*bank, INTARSIA_SERVE_ROWS="0")
    assert "limit slots" in refused(*bank, "--slots", "0")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert "is taken" in refused(*bank, "--port", port)
        new = ("--bank", str(tmp_path / "new"), "--encoder", base, "--no-socket")  # begins a bank
        assert "is taken" in refused(*new, "--port", port)
    assert "no.such.host" in refused(*bank, "--host", "no.such.host.invalid", INTARSIA_API_KEY="k")
    file = tmp_path / "file"
    file.write_text("x")
    assert "There is no bank" in refused("--bank", str(file))


def test_without_the_extra_the_message_says_what_to_install(learned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "uvicorn" else find(name, *a))
    assert "pip install 'intarsia[serve]'" in refused("--bank", str(learned))


def test_an_encoder_that_cannot_be_loaded_ends_the_service(learned: Path, tmp_path: Path) -> None:
    assert str(tmp_path) in refused("--bank", str(learned), "--no-socket", "--port", "0", "--encoder", str(tmp_path))


def test_an_empty_bank_is_served(tmp_path: Path, encoder: Encoder) -> None:
    (tmp_path / "bank").mkdir()
    with running(Bank(tmp_path / "bank", encoder)) as service:
        assert service.get("/readyz").status == 200
        assert service.get("/v1/tasks").json() == {"tasks": [], "total": 0, "next_cursor": None}
        row = service.post("/v1/predict", {"requests": [{"task": "x", "input": "y"}]}).json()["results"][0]
        assert row["error"]["code"] == "unknown_task" and "no tasks yet" in row["error"]["message"]


def test_every_limit_of_the_engine_is_an_option() -> None:
    from dataclasses import fields

    from intarsia.cli.serve import LIMITS
    from intarsia.serve.limits import Limits

    assert set(LIMITS) == {field.name for field in fields(Limits)}
