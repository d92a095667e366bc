"""Proofs of a base: found while its files are the same, wrong ones are found by hashing again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from intarsia.encoder import proof
from intarsia.encoder.encoder import Encoder
from tests.support.families import save_tiny


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a base, written an hour ago, with an empty cache."""
    monkeypatch.setenv("INTARSIA_CACHE", str(tmp_path / "cache"))
    folder = Path(save_tiny(tmp_path / "base"))
    age(folder)
    return folder


def age(folder: Path) -> None:
    for path in folder.iterdir():
        os.utime(path, ns=(10**18, 10**18))


def test_a_proof_stands_for_the_hash_until_a_file_changes(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Encoder.load(base)
    assert proof.find(base) == proof.Proof(
        first.fingerprint, first.tokenizer_fingerprint, {p.name: proof.file_sha256(p) for p in base.iterdir()}
    )
    with monkeypatch.context() as patched:
        patched.setattr("intarsia.encoder.encoder.fingerprint", lambda _: pytest.fail("hashed again"))
        again = Encoder.load(base)
    assert again.fingerprint == first.fingerprint
    again.check_frozen()
    (base / "tokenizer_config.json").touch()
    assert proof.find(base) is None


def test_a_file_that_was_just_written_is_not_trusted(base: Path) -> None:
    (base / "config.json").touch()
    Encoder.load(base)
    assert proof.find(base) is None


def test_other_content_with_the_same_stamp_is_found_by_hashing_again(base: Path) -> None:
    Encoder.load(base)
    weights = base / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    with weights.open("r+b") as file:  # in place: the same inode and size
        file.write(content)
    age(base)
    assert proof.find(base) is not None  # size, time and inode are the same
    assert proof.changed_files(base) == ["model.safetensors"]
    assert proof.find(base) is None and proof.changed_files(base) == ()
