"""Tasks on the hub: a hub on this machine answers huggingface_hub's own calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

import intarsia
from intarsia import LoRA, Pfeiffer, Stack
from intarsia.errors import ExchangeError, IntarsiaError
from tests.exchange.test_hostile import config, with_head
from tests.support.families import opinions, save_tiny
from tests.support.hub import Repo, local_hub

QUICK: dict[str, Any] = {"epochs": 1, "batch_size": 16, "max_length": 20}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The repositories of a hub that `huggingface_hub` talks to."""
    import huggingface_hub.constants as constants

    with local_hub() as (address, repos):
        file = address + "/{repo_id}/resolve/{revision}/{filename}"
        file = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", file)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        yield repos


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("hub") / "base")


def test_a_task_goes_to_the_hub_and_comes_back(hub: dict[str, Repo], base: str, tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", base)
    bank.learn("language", opinions(40), Pfeiffer(4), **QUICK)
    entry = bank.learn("topic", opinions(40), Stack("language", LoRA(2)), **QUICK)
    address = bank.push("topic", "someone/topic", license="apache-2.0")
    assert address.startswith("https://huggingface.co/someone/topic/commit/")
    repo = hub["someone/topic"]
    assert set(repo) == {"README.md", "bank.json", "inlays/language/0001.safetensors", "inlays/topic/0001.safetensors"}
    assert b'license: "apache-2.0"' in repo["README.md"]
    other = intarsia.open(tmp_path / "other", base)
    pulled = other.pull("topic", "someone/topic")
    assert pulled.header.digest == entry.header.digest
    renamed = other.pull("subject", "someone/topic")
    assert renamed.header.parents == entry.header.parents
    assert [task.name for task in other.tasks()] == ["language", "subject", "topic"]
    texts = [row["text"] for row in opinions(4, seed=5)]
    expected = [answer.probability for answer in bank.predict("topic", texts)]
    for name in ("topic", "subject"):
        assert [answer.probability for answer in other.predict(name, texts)] == expected


def test_what_is_no_task_or_another_bases_is_refused(hub: dict[str, Repo], base: str, tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", base)
    bank.learn("topic", opinions(40), LoRA(2), **QUICK)
    bank.push("topic", "someone/topic")
    changed = bytearray(hub["someone/topic"]["inlays/topic/0001.safetensors"])
    changed[-1] ^= 1
    hub["someone/damaged"] = {**hub["someone/topic"], "inlays/topic/0001.safetensors": bytes(changed)}
    hub["someone/model"] = {"config.json": b"{}"}
    foreign = intarsia.open(tmp_path / "foreign", save_tiny(tmp_path / "base2", seed=1))
    fresh = intarsia.open(tmp_path / "fresh", base)
    for opened, repo, fault in [
        (fresh, "someone/damaged", "is damaged"),
        (fresh, "someone/model", "no bank.json"),
        (fresh, "someone/nothing", "no such repository"),
        (fresh, "nothing", "owner/name"),
        (foreign, "someone/topic", "base"),
    ]:
        with pytest.raises(IntarsiaError, match=fault):
            opened.pull("topic", repo)
        assert opened.tasks() == []
    with pytest.raises(ExchangeError, match="owner/name"):
        bank.push("topic", "topic")


def test_an_adapter_is_imported_from_the_hub(hub: dict[str, Repo], base: str, tmp_path: Path) -> None:
    import json

    save_file(with_head(), tmp_path / "weights")
    flags = json.dumps(config(task_type="SEQ_CLS")).encode()
    weights = (tmp_path / "weights").read_bytes()
    hub["someone/lora"] = {"adapter_config.json": flags, "adapter_model.safetensors": weights, "train.py": b"1 / 0"}
    bank = intarsia.open(tmp_path / "bank", base)
    origin = bank.import_("topic", "someone/lora", hub=True, labels=["no", "yes"]).header.training["imported"]
    assert origin["source"] == "hub:someone/lora" and len(origin["commit"]) == 40


def test_without_a_connection_the_error_says_what_to_do(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    bank = intarsia.open(tmp_path / "bank", base)
    with pytest.raises(ExchangeError, match="cannot be reached"):
        bank.pull("topic", "someone/topic")
    with pytest.raises(ExchangeError, match="cannot be reached"):
        bank.import_("topic", "someone/topic", hub=True)
    bank.learn("topic", opinions(40), LoRA(2), **QUICK)
    with pytest.raises(ExchangeError, match="cannot be reached"):
        bank.push("topic", "someone/topic")


def test_the_format_inlay_is_a_bank(base: str, tmp_path: Path) -> None:
    bank = intarsia.open(tmp_path / "bank", base)
    bank.learn("topic", opinions(40), LoRA(2), **QUICK)
    done = bank.export("topic", tmp_path / "out", format="inlay")
    assert done.format == "inlay"
    texts = [row["text"] for row in opinions(4, seed=5)]
    alone = intarsia.open(tmp_path / "out", base)
    assert [a.label for a in alone.predict("topic", texts)] == [a.label for a in bank.predict("topic", texts)]
