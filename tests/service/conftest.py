from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra `serve` is not installed")
pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

from intarsia.bank.bank import Bank
from intarsia.encoder.encoder import Encoder
from tests.support.families import save_tiny
from tests.support.service import Running, running, small_bank


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny encoder as a folder, for processes."""
    return save_tiny(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def learned(tmp_path_factory: pytest.TempPathFactory, encoder: Encoder) -> Path:
    """The folder of a small bank; copy it to change it."""
    return small_bank(tmp_path_factory.mktemp("learned") / "bank", encoder).store.folder


@pytest.fixture(scope="session")
def encoder(base: str) -> Encoder:
    return Encoder.load(base)


@pytest.fixture(scope="module")
def bank(learned: Path, encoder: Encoder) -> Bank:
    return Bank(learned, encoder)


@pytest.fixture(scope="module")
def service(learned: Path, encoder: Encoder) -> Iterator[Running]:
    """An open service over the small bank, for tests that do not change it."""
    with running(Bank(learned, encoder), uploads=True) as made:
        yield made
