"""Inlay files from strangers: refused with a reason, without harm to other tasks."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import socket
import sqlite3
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import intarsia
from intarsia import Bottleneck, LotteryTicket, Settings
from intarsia.bank.bank import Bank
from intarsia.bank.container import FORMAT, canonical
from intarsia.bank.description import FIELDS
from intarsia.bank.index import SELECT, IndexRow, _checksum
from intarsia.bank.inlay import decode, read_header
from intarsia.bank.usable import usable_fault
from intarsia.cli.tables import show_table, tasks_dict, tasks_table
from intarsia.encoder.encoder import Encoder
from intarsia.errors import BankError, DamagedInlay, IntarsiaError
from tests.support.families import opinions, tiny_with_words
from tests.support.forging import forged, plant
from tests.support.fuzz_inlays import fuzz
from tests.support.inlays import make_inlay

TEXTS = ["good good film", "an awful day"]
QUICK = Settings(epochs=1, batch_size=16, learning_rate=1e-2)


@pytest.fixture(scope="module")
def base() -> Encoder:
    return tiny_with_words()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, base: Encoder) -> Path:
    """A bank with one intact task, `good`, and one sparse task."""
    bank = intarsia.open(tmp_path_factory.mktemp("original"), base)
    bank.learn("good", opinions(40), Bottleneck(4), settings=QUICK)
    bank.learn("sparse", opinions(40), LotteryTicket(entries=40), settings=QUICK)
    return bank.store.folder


@pytest.fixture
def bank(tmp_path: Path, original: Path, base: Encoder) -> Bank:
    shutil.copytree(original, tmp_path / "bank")
    return intarsia.open(tmp_path / "bank", base)


def listed(bank: Bank) -> None:
    """All that lists a bank; none of it may end in anything but a message."""
    tasks_table(bank)
    tasks_dict(bank)
    for entry in bank.tasks():
        if entry.state == "ok":
            show_table(entry, bank.versions(entry.name))
            entry.to_dict()


def answers(bank: Bank) -> list[tuple[str | None, float | None]]:
    return [(p.label, p.probability) for p in bank.predict("good", TEXTS)]


def refused(bank: Bank, change: Any, *, of: str = "good", header: str | None = None) -> str:
    """Plant a forged copy of a task and return why it is refused. Its neighbour answers as before."""
    before = answers(bank)
    inlay = bank.store.load(of)
    content = forged(replace(inlay, name="bad"), change, header=header)
    path = plant(bank.store.folder, "bad", content)
    begun = time.perf_counter()
    listed(bank)
    with pytest.raises(IntarsiaError) as caught:
        bank.predict([("good", TEXTS[0]), ("bad", TEXTS[0])])
    assert any(problem.path == path for problem in bank.verify()), "verify must see it"
    listed(intarsia.open(bank.store.folder, bank.encoder))
    assert time.perf_counter() - begun < 60
    assert answers(bank) == before and answers(intarsia.open(bank.store.folder, bank.encoder)) == before
    return str(caught.value)


def tensor(name: str, made: torch.Tensor | None) -> Any:
    def change(_: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        tensors.pop(name, None)
        if made is not None:
            tensors[name] = made

    return change


def described(**values: Any) -> Any:
    """Change fields of the description: `method__size=8` sets `size` in `method`; `...` deletes."""

    def change(fields: dict[str, Any], _: dict[str, torch.Tensor]) -> None:
        for path, value in values.items():
            *outer, last = path.split("__")
            target = fields
            for key in outer:
                target = target[key]
            if value is ...:
                del target[last]
            else:
                target[last] = value

    return change


DOWN = "method.0.ffn.output.down.weight"  # [4, 32]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (tensor(DOWN, torch.zeros(8, 32)), r"float32 \(8, 32\)"),
        (tensor(DOWN, torch.zeros(4, 31)), r"float32 \(4, 31\)"),
        (tensor(DOWN, None), "missing"),
        (tensor("method.extra", torch.zeros(1)), "no such tensor"),
        (tensor("head.extra", torch.zeros(0)), "no such tensor"),
        (tensor(DOWN, torch.zeros(4, 32, dtype=torch.int32)), "type I32; expected F32"),
        (tensor(DOWN, torch.zeros(4, 32, dtype=torch.float16)), "type F16; expected F32"),
        (tensor(DOWN, torch.zeros(4, 32, dtype=torch.int64)), "type I64; expected F32"),
        (tensor(DOWN, torch.full((4, 32), float("nan"))), "NaN"),
        (tensor(DOWN, torch.full((4, 32), float("inf"))), "NaN or infinity"),
        (tensor("head.output.bias", torch.zeros(1)), "2 outputs"),
        (described(method__size=8), r"\(8, 32\)"),
        (described(method__size=10**9), "too large"),
        (described(method__size=10**30), "schema|too large|range"),
        (described(method__size="4"), "Expected int, got str"),
        (described(method__size=-1), "too small"),
        (described(method__depth=10**9), "too large"),
        (described(method__layers=list(range(10**6))), "more than 10000 items"),
        (described(method__layers=[0, 7]), "layers 0 to 2"),
        (described(method__norms=False), "no such tensor"),
        (described(method__norms="yes"), "Expected bool, got str"),
        (described(method__nope=1), "no option 'nope'"),
        (described(method__type="quantum"), "not known"),
        (described(method__type=7), r"\$\.method\.type"),
        (described(method="bottleneck"), r"\$\.method"),
        (described(labels=["no", "no"]), "twice"),
        (described(labels=["no"]), "needs? 1 outputs|need 1"),
        (described(labels=[]), "needs labels"),
        (described(kind="quantum"), "kind"),
        (described(kind="score"), "has no labels"),
        (described(kind="score", labels=[]), "1 outputs|outputs"),
        (described(kind="tags"), "pooling mean does not fit"),
        (described(head__pooling=...), "pooling"),
        (described(head__pooling="max"), "pooling"),
        (described(head__pooling="none"), "pooling none does not fit"),
        (described(head__pooling="trained-pooler"), "pooler"),
        (described(head__outputs=3), "3 outputs"),
        (described(training__max_length="128"), "max_length"),
        (described(training__max_length=0), "max_length"),
        (described(training__max_length=10**30), "max_length"),
        (described(training__history={}), "history"),
        (described(metrics__test=[1, 2]), r"metrics\.test"),
        (described(metrics__best_epoch="x"), "best_epoch"),
        (described(parameters="many"), "parameters"),
        (described(parameters__total=7), "states 7"),
        (described(parameters__head=1e30), "parameters"),
        (described(encoder__fingerprint=...), "fingerprint"),
        (described(encoder__fingerprint="00" * 32), "another base"),
        (described(encoder=[]), "encoder"),
        (described(name="../../etc"), "name"),
        (described(name="good"), "holds the task 'good'"),
        (described(data=None), "data"),
        (described(parents=[1]), "parents"),
        (described(created=1), "created"),
    ],
)  # fmt: skip
def test_forged_inlays_are_refused(bank: Bank, change: Any, message: str) -> None:
    found = refused(bank, change)
    assert re.search(message, found), found


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (torch.arange(40) + 10**9, "ascending"),
        (torch.arange(40) - 1, "ascending"),
        (torch.arange(40).flip(0), "ascending"),
        (torch.zeros(40, dtype=torch.int64), "ascending"),
        (torch.arange(41), r"int64 \(41,\)"),
        (torch.arange(40).float(), "type F32; expected I64"),
    ],
)
def test_forged_differences_are_refused(bank: Bank, index: torch.Tensor, message: str) -> None:
    found = refused(bank, tensor("method.index", index), of="sparse")
    assert re.search(message, found), found


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ("[" * 40 + "]" * 40, "levels"),
        ("", "not JSON"),
        ("null", "schema"),
        ("{}", "schema"),
        ('{"name":"bad","name":3}', "schema"),
        ("1" * 5000, "not JSON"),
        ("NaN", "not JSON"),
    ],
)
def test_forged_descriptions_are_refused(bank: Bank, header: str, message: str) -> None:
    assert message in refused(bank, None, header=header)


def container(layout: str, extra: str = "") -> bytes:
    """A file with this JSON for its tensors, and no valid digest."""
    metadata = canonical({"digest": "00" * 32, "format": FORMAT, "intarsia": "{}"})
    text = f'{{"__metadata__":{metadata}{layout}}}'.encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + extra.encode()


EMPTY = ',"method.a":{"data_offsets":[0,0],"dtype":"F32","shape":['
BOMBS = {
    "many dimensions": EMPTY + ",".join(["1" + "0" * 18] * 250) + "]}",
    "a size of 5,000 digits": EMPTY + "9" * 5000 + "]}",
    "shapes of 2 MB": "".join(
        f',"method.{i:06d}":{{"data_offsets":[0,0],"dtype":"F32","shape":[{",".join(["9007199254740991"] * 8)}]}}'
        for i in range(12_000)
    ),
    "empty tensors": "".join(
        f',"method.{i:06d}":{{"data_offsets":[0,0],"dtype":"F32","shape":[0,9007199254740991]}}' for i in range(20_000)
    ),
    "nested": ',"method.a":' + "[" * 100_000 + "]" * 100_000,
    "junk": ',"method.a":[' + ",".join(["[]"] * 500_000) + "]",
    "many names": "".join(f',"m{i}":0' for i in range(200_000)),
}  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS)
def test_small_files_are_refused_fast(bank: Bank, bomb: str) -> None:
    path = plant(bank.store.folder, "bad", container(BOMBS[bomb]))
    begun = time.perf_counter()
    with pytest.raises(DamagedInlay):
        read_header(path)
    assert [problem.path for problem in bank.verify()] == [path]
    listed(bank)
    assert time.perf_counter() - begun < 60
    assert len(answers(bank)) == 2


def test_a_new_inlay_with_nan_is_not_stored(bank: Bank) -> None:
    inlay = bank.store.load("good")
    for value in (float("nan"), float("inf")):
        broken = replace(inlay, tensors={**inlay.tensors, DOWN: torch.full((4, 32), value)})
        with pytest.raises(DamagedInlay, match="NaN or infinity"):
            bank.store.add(broken)
    short = replace(inlay, tensors={**inlay.tensors, DOWN: torch.zeros(3, 32)})
    with pytest.raises(DamagedInlay, match=r"float32 \(3, 32\)"):
        bank.store.add(short, encoder=bank.encoder)
    assert len(bank.versions("good")) == 1


def test_without_bank_json_another_base_does_not_answer(bank: Bank) -> None:
    before = answers(bank)
    (bank.store.folder / "bank.json").unlink()
    other = intarsia.open(bank.store.folder, tiny_with_words(seed=1))
    for ask in (lambda: other.predict("good", TEXTS), lambda: other.evaluate("good", opinions(12))):
        with pytest.raises(IntarsiaError, match="another base"):
            ask()
    again = intarsia.open(bank.store.folder, bank.encoder)
    assert answers(again) == before
    assert not (bank.store.folder / "bank.json").exists()
    # A stranger's file does not stop the others; learning writes bank.json again.
    plant(bank.store.folder, "bad", forged(replace(bank.store.load("good"), name="bad"), described(encoder__name="x",
          encoder__fingerprint="00" * 32)))  # fmt: skip
    assert answers(intarsia.open(bank.store.folder, bank.encoder)) == before
    inlay = again.store.load("good")
    again.store.add(inlay)
    assert (bank.store.folder / "bank.json").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"{}", b"[" * 100_000, b'{"format":1,"encoder":[]}', b'{"format":1,"encoder":{"fingerprint":7}}',
        b'{"format":1,"encoder":{"fingerprint":"aa","parameters":"many"}}', b"1" * 5000,
        b'{"format":1,"encoder":{"fingerprint":"aa","parameters":1e400}}', b'{"format":1,"encoder":{"fingerprint":"aa",'
        b'"name":["--encoder"]}}', b'{"format":[],"encoder":{"fingerprint":"aa"}}', b" " * 2_000_000,
    ],
)  # fmt: skip
def test_forged_bank_json(bank: Bank, content: bytes) -> None:
    (bank.store.folder / "bank.json").write_bytes(content)
    opened = intarsia.open(bank.store.folder)
    for ask in (opened.tasks, opened.cost, lambda: opened.predict("good", TEXTS)):
        with pytest.raises(IntarsiaError, match=r"bank\.json"):
            ask()
    assert any("bank.json" in str(problem) for problem in opened.verify())


def rewrite(folder: Path, statement: str, *values: Any) -> None:
    """Change the index as an attacker does: with right checksums."""
    with sqlite3.connect(folder / "index.sqlite") as connection:
        connection.execute(statement, values)
        for *row, _ in connection.execute(SELECT).fetchall():
            made = IndexRow._make(row)
            connection.execute("UPDATE inlays SET checksum = ? WHERE name = ?", (_checksum(made), made.name))
    connection.close()


def test_a_forged_index_reaches_no_other_file(bank: Bank, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    rewrite(bank.store.folder, "UPDATE inlays SET file = ?", "../victim")
    opened = intarsia.open(bank.store.folder, bank.encoder)
    assert {entry.path.parent.parent for entry in opened.tasks()} == {bank.store.folder / "inlays"}
    opened.remove("good")
    assert victim.read_text() == "mine" and not (bank.store.folder / "inlays" / "good").exists()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("header", "[" * 50_000), ("header", "{}"), ("header", "null"), ("header", 7), ("digest", 7), ("state", 3.5),
        ("fingerprint", b"x"), ("name", "../.."), ("reason", None), ("fingerprint", "00"),
    ],
)  # fmt: skip
def test_forged_index_rows_end_in_no_traceback(bank: Bank, column: str, value: Any) -> None:
    before = answers(bank)
    with suppress(sqlite3.IntegrityError):
        rewrite(bank.store.folder, f"UPDATE inlays SET {column} = ? WHERE name = 'good'", value)
    opened = intarsia.open(bank.store.folder, bank.encoder)
    with suppress(IntarsiaError):
        listed(opened)
        answers(opened)
    opened.verify(rebuild=True)
    assert answers(intarsia.open(bank.store.folder, bank.encoder)) == before


def test_labels_of_a_forged_index_are_not_given(bank: Bank) -> None:
    header = bank.show("good").header_json
    rewrite(bank.store.folder, "UPDATE inlays SET header = ? WHERE name = 'good'", header.replace('"yes"', '"evil"'))
    with pytest.raises(BankError, match="try again"):
        answers(intarsia.open(bank.store.folder, bank.encoder))
    assert answers(intarsia.open(bank.store.folder, bank.encoder)) == answers(bank)


def test_an_index_that_is_a_link_or_fifo_is_not_opened(bank: Bank, tmp_path: Path) -> None:
    index = bank.store.folder / "index.sqlite"
    for other in index.parent.glob("index.sqlite*"):
        other.unlink()
    foreign = tmp_path / "foreign"
    sqlite3.connect(foreign).execute("CREATE TABLE mine (x)").connection.close()
    content = foreign.read_bytes()
    index.symlink_to(foreign)
    assert len(intarsia.open(bank.store.folder, bank.encoder).tasks()) == 2
    index.unlink()
    os.mkfifo(index)
    assert len(intarsia.open(bank.store.folder, bank.encoder).tasks()) == 2
    assert foreign.read_bytes() == content


@pytest.mark.parametrize("special", ["fifo", "zero", "outside", "loop", "folder", "socket", "parent"])
def test_special_files_and_links_are_refused(bank: Bank, tmp_path: Path, special: str) -> None:
    before, bad = answers(bank), bank.store.folder / "inlays" / "bad"
    bad.mkdir()
    path = bad / "0001.safetensors"
    good = bank.show("good").path
    outside = tmp_path / "outside"
    outside.mkdir()
    stolen = Path(shutil.copy(good, outside / "0001.safetensors"))
    listener = None
    if special == "fifo":
        os.mkfifo(path)
    elif special == "zero":
        path.symlink_to("/dev/zero")
    elif special == "outside":
        path.symlink_to(stolen)
    elif special == "loop":
        path.symlink_to(path)
    elif special == "folder":
        path.mkdir()
    elif special == "socket":
        listener = socket.socket(socket.AF_UNIX)
        with contextlib.chdir(bad):
            listener.bind(path.name)
    else:
        bad.rmdir()
        bad.symlink_to(outside)
    opened = intarsia.open(bank.store.folder, bank.encoder)
    listed(opened)
    assert [problem.name for problem in opened.verify()] == ["bad"]
    with pytest.raises(IntarsiaError):
        opened.predict([("bad", "good film"), ("good", "good film")])
    assert answers(opened) == before
    if special != "folder":
        opened.remove("bad")
        assert [entry.name for entry in opened.tasks()] == ["good", "sparse"]
    assert stolen.exists()
    if listener is not None:
        listener.close()


def test_an_unreadable_task_folder_is_its_own_problem(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    before = answers(bank)
    scandir = os.scandir

    def locked(path: Any) -> Any:
        if Path(path).name == "sparse":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", locked)
        opened = intarsia.open(bank.store.folder, bank.encoder)
        listed(opened)
        assert [entry.state for entry in opened.tasks()] == ["ok", "damaged"]
        assert [problem.name for problem in opened.verify()] == ["sparse"]
        with pytest.raises(DamagedInlay, match="Permission denied"):
            opened.predict("sparse", TEXTS)
        assert answers(opened) == before
    assert [entry.state for entry in opened.tasks()] == ["ok", "ok"]


def test_a_fifo_in_place_of_bank_json(bank: Bank) -> None:
    base = bank.encoder
    (bank.store.folder / "bank.json").unlink()
    os.mkfifo(bank.store.folder / "bank.json")
    opened = intarsia.open(bank.store.folder, base)
    with pytest.raises(BankError, match="not a regular file"):
        opened.tasks()


def test_fuzzed_inlays() -> None:
    counts, failures = fuzz(seed=1, count=60)
    assert not failures, f"seed {min(failures)}: {failures[min(failures)]}"
    assert counts["refused"] > 40


absurd = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(FIELDS), absurd)
def test_any_value_of_any_field_is_read_or_refused(field: str, value: Any) -> None:
    def change(fields: dict[str, Any], _: dict[str, torch.Tensor]) -> None:
        fields[field] = value

    try:
        inlay = decode(forged(make_inlay(), change), Path("x"))
        usable_fault(inlay, inlay.layout)
        json.dumps(inlay.interface.task_kind.to_dict())
    except IntarsiaError:
        pass


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 2**64 - 1))
def test_any_bytes_are_refused(content: bytes, length: int) -> None:
    for made in (content, length.to_bytes(8, "little") + content, len(content).to_bytes(8, "little") + content):
        with pytest.raises(DamagedInlay):
            decode(made, Path("x"))
