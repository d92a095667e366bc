"""The client: the bank's own calls over HTTP and over the bank's Unix socket."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intarsia import Client, Limits
from intarsia.bank.bank import Bank
from intarsia.encoder.encoder import Encoder
from intarsia.errors import DeadlineExceeded, IntarsiaError, Overloaded, RequestTooLong, ServiceError, UnknownTask
from intarsia.local_socket import Listener, connect, socket_path
from tests.support.service import TEXTS, Running, running


@pytest.fixture
def client(service: Running) -> Iterator[Client]:
    with Client(service.url) as made:
        yield made


def test_the_banks_own_calls(client: Client, bank: Bank) -> None:
    assert client.predict("opinion", TEXTS) == bank.predict("opinion", TEXTS)
    rows: list[Any] = [
        ("opinion", TEXTS[0]),
        ("pairs", (TEXTS[1], "it was so")),
        ("tags", TEXTS[2].split()),
        ("rating", "x"),
    ]
    assert client.predict(rows) == bank.predict(rows)
    assert np.array_equal(client.embed(TEXTS), bank.embed(TEXTS))
    assert np.array_equal(client.embed(TEXTS, "opinion"), bank.embed(TEXTS, "opinion"))
    assert client.embed([]).shape == (0, 32) and client.predict("opinion", []) == []
    assert [(t.name, t.version, t.kind) for t in client.tasks()] == [
        ("opinion", 2, "label"), ("pairs", 1, "label"), ("rating", 1, "score"), ("tags", 1, "tags"),
    ]  # fmt: skip
    assert client.tasks("opi")[0].labels == ("no", "yes")


def test_many_rows_become_several_requests(client: Client, bank: Bank) -> None:
    texts = [TEXTS[i % 4] for i in range(1500)]
    assert client.predict("opinion", texts) == bank.predict("opinion", texts)


def test_inputs_have_the_forms_that_the_bank_takes(client: Client, bank: Bank) -> None:
    table = {"text": TEXTS, "number": [1, 2, 3, 4]}
    tables: list[Any] = [table, [{"text": text} for text in TEXTS], np.array(TEXTS)]
    for texts in tables:
        assert client.predict("opinion", texts) == bank.predict("opinion", TEXTS)
        assert np.array_equal(client.embed(texts), bank.embed(TEXTS))
    pairs = [(text, "it was so") for text in TEXTS]
    for task in (None, "pairs"):
        assert np.array_equal(client.embed(pairs, task), bank.embed(pairs, task))
    assert np.array_equal(client.embed([text.split() for text in TEXTS], "tags"), bank.embed(TEXTS, "tags"))
    wrong: list[Any] = [
        ["opinion", [5]],
        ["opinion", [None]],
        ["opinion", None],
        [["opinion"]],
        [5],
        [[("opinion", 5)]],
    ]
    for given in wrong:
        with pytest.raises(IntarsiaError):
            client.predict(*given)


def test_small_limits_of_the_service_give_smaller_requests(learned: Path, encoder: Encoder) -> None:
    small = Bank(learned, encoder, limits=Limits(queue_tokens=64))
    texts = [TEXTS[i % 4] for i in range(50)]
    with running(small, rows=20, body_bytes=600) as service, Client(service.url) as client:
        assert client.predict("opinion", texts) == small.predict("opinion", texts)
        assert np.array_equal(client.embed(texts), small.embed(texts))
        with pytest.raises(RequestTooLong, match="600 bytes"):
            client.predict("opinion", ["good " * 1000])


def test_errors_are_the_librarys(client: Client, service: Running) -> None:
    with pytest.raises(UnknownTask, match="nothing"):
        client.predict("nothing", ["x"])
    with pytest.raises(IntarsiaError, match="list of texts"):
        client.predict("opinion", "x")
    with pytest.raises(IntarsiaError, match="pairs"):
        client.predict("pairs", ["x"])
    with pytest.raises(IntarsiaError, match="address"):
        Client("ftp://x")
    with pytest.raises(ServiceError, match="Is it running"):
        Client("http://127.0.0.1:9", patience=0).predict("opinion", ["x"])


def test_an_address_may_have_a_path_and_wrong_ones_are_explained(service: Running) -> None:
    with (
        Client(f"{service.url}/behind/a/proxy/", patience=0) as client,
        pytest.raises(IntarsiaError, match="no such route"),
    ):
        client.tasks()
    assert Client(f"{service.url}/").tasks()
    with pytest.raises(IntarsiaError, match="99999"):
        Client("http://127.0.0.1:99999")
    with pytest.raises(IntarsiaError, match="line break"):
        Client(service.url, "secret\n")


def test_a_key_is_shown(learned: Path, encoder: Encoder) -> None:
    with running(Bank(learned, encoder), key="secret") as service:
        assert len(Client(service.url, "secret").predict("opinion", TEXTS)) == 4
        with pytest.raises(ServiceError, match="key"):
            Client(service.url).predict("opinion", TEXTS)


def test_a_busy_service_is_asked_again(client: Client, service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, submit = service.service.engine, service.service.engine.submit
    refusals, slept = [7.0, 2.0], []

    def full_twice(*args: Any, **kwargs: Any) -> Any:
        if refusals:
            raise Overloaded("full", refusals.pop(0))
        return submit(*args, **kwargs)

    monkeypatch.setattr(engine, "submit", full_twice)
    monkeypatch.setattr("intarsia.client.time.sleep", slept.append)
    assert len(client.predict("opinion", TEXTS)) == 4
    assert slept == [7.0, 2.0]
    refusals[:] = [60.0]
    with pytest.raises(Overloaded):
        client.predict("opinion", TEXTS)  # longer than its patience
    assert slept == [7.0, 2.0]


def test_connections_are_kept_and_replaced(client: Client, service: Running) -> None:
    client.predict("opinion", TEXTS)
    (kept,) = client._idle
    client.predict("opinion", TEXTS)
    assert client._idle == [kept]
    kept.sock.close()
    kept.sock = service.raw()
    kept.sock.shutdown(2)  # as if the service had closed it
    assert len(client.predict("opinion", TEXTS)) == 4


def test_an_answer_that_takes_too_long(service: Running) -> None:
    engine, go = service.service.engine, threading.Event()
    blocked = threading.Thread(target=lambda: engine._on_device(go.wait))
    blocked.start()
    try:
        with pytest.raises(DeadlineExceeded), Client(service.url, timeout=0.2) as client:
            client.predict("opinion", ["x"])
    finally:
        go.set()
        blocked.join()


def test_answers_from_many_threads_are_each_ones_own(client: Client, bank: Bank) -> None:
    words = "good bad fine poor great awful film book red blue green apple".split()
    rows = [[(task, f"{a} {b}") for task in ("opinion", "rating")] for a in words for b in words]
    expected = {repr(row): bank.predict(row) for row in rows}
    wrong: list[Any] = []

    def ask(part: list[Any]) -> None:
        for row in part:
            if client.predict(row) != expected[repr(row)]:
                wrong.append(row)

    threads = [threading.Thread(target=ask, args=(rows[i::8],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_socket_of_a_bank(learned: Path, encoder: Encoder, tmp_path: Path) -> None:
    folder = tmp_path / "bank"
    shutil.copytree(learned, folder)
    assert Client.for_bank(folder) is None
    path = socket_path(folder)
    with running(Bank(folder, encoder), socket=True, key="secret") as service:
        assert path.stat().st_mode & 0o777 == 0o600
        client = Client.for_bank(folder)
        assert client is not None
        assert client.predict("opinion", TEXTS) == Bank(folder, encoder).predict("opinion", TEXTS)  # needs no key
        assert client.post("/v1/tasks/opinion/load")["resident"]
        client.close()
        with pytest.raises(OSError, match="in use"):
            Listener(folder)  # a second service of the bank
        service.service.engine = None
        assert Client.for_bank(folder) is None  # it is not ready
    assert not path.exists() and not path.with_name(path.name + ".lock").exists()


def test_a_socket_that_a_killed_service_left_is_replaced(tmp_path: Path) -> None:
    code = "import os, sys; from intarsia.local_socket import Listener; Listener(sys.argv[1]); os._exit(9)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert socket_path(tmp_path).exists() and connect(socket_path(tmp_path)) is None
    assert Client.for_bank(tmp_path) is None
    listener = Listener(tmp_path)
    connection = connect(socket_path(tmp_path))
    assert connection is not None
    connection.close()
    listener.close()
    assert not socket_path(tmp_path).exists()


def test_a_long_path_has_its_socket_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    bank = tmp_path / ("long" * 30)
    bank.mkdir()
    assert socket_path(bank).parent == tmp_path / "run" / "intarsia"
    Listener(bank).close()


def test_the_client_imports_no_torch() -> None:
    code = "import sys, intarsia; intarsia.Client; assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
