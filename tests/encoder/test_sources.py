"""Where a base is found."""

from __future__ import annotations

import json
import os
import pickle
import socket
from pathlib import Path

import pytest

from intarsia.encoder import sources
from intarsia.encoder.encoder import Encoder
from intarsia.errors import EncoderError
from tests.support.families import save_tiny


def unknown(*_: object) -> None:
    raise socket.gaierror("Name or service not known")


def test_without_a_network_the_hub_is_not_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "getproxies", dict)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert sources.offline()
    with pytest.raises(EncoderError, match="could not be loaded from the hub"):
        Encoder.load("nobody/nothing")
    monkeypatch.setattr(sources, "getproxies", lambda: {"https": "http://proxy"})
    assert not sources.offline()
    monkeypatch.setattr(sources, "getproxies", dict)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [])
    assert not sources.offline()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(save_tiny(tmp_path / "model"))


def edit(folder: Path, name: str = "config.json", **changes: object) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"hidden_size": 10**12}, "hidden_size is"),
        ({"hidden_size": "wide"}, "hidden_size|could not be read"),
        ({"hidden_size": 33}, "not a multiple|could not be read"),
        ({"vocab_size": -5}, "vocab_size is -5"),
        ({"pad_token_id": -1}, "pad_token_id is -1"),
        ({"pad_token_id": 10**6}, "pad_token_id is 1000000|could not be read"),
        ({"num_attention_heads": 0}, "num_attention_heads|could not be read"),
        ({"intermediate_size": 31}, "could not be read|damaged"),  # the weights have another size
        ({"model_type": "unheard-of"}, "could not be read|not known"),
    ],
)
def test_absurd_configurations_are_refused(folder: Path, changes: dict[str, object], message: str) -> None:
    edit(folder, **changes)
    with pytest.raises(EncoderError, match=message):
        Encoder.load(folder)


@pytest.mark.parametrize("wrong", ["x" * 3000, -1, None, True, [1], float("nan")])
def test_an_absurd_length_of_a_tokenizer_is_refused(folder: Path, wrong: object) -> None:
    edit(folder, "tokenizer_config.json", model_max_length=wrong)
    if wrong is None:  # the library's own default: no limit
        assert Encoder.load(folder).max_length > 1
        return
    with pytest.raises(EncoderError, match=r"model_max_length|could not be read"):
        Encoder.load(folder)


def test_a_token_without_an_embedding_is_named(folder: Path) -> None:
    encoder = Encoder.load(folder)
    encoder.tokenizer.add_tokens([f"token{number}" for number in range(encoder.model.config.vocab_size)])
    encoder.tokenizer.save_pretrained(folder)
    encoder = Encoder.load(folder)
    assert encoder.tokenize(["the film"])
    with pytest.raises(EncoderError, match="'token119' with the id"):
        encoder.tokenize(["the film", "token119"])


def test_damaged_weights_are_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    for part in (content[: len(content) // 2], content[:100], b"", b"\xff" * 64, content[:-1]):
        weights.write_bytes(part)
        with pytest.raises(EncoderError, match=r"damaged or cut short|could not be read"):
            Encoder.load(folder)


def test_pickled_weights_are_never_opened(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    trap = tmp_path / "opened"

    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str, ...]]:
            return os.mkdir, (str(trap),)

    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(EncoderError, match=r"a pickle \(pytorch_model.bin\)"):
        Encoder.load(folder)
    assert not trap.exists()


def test_the_code_of_a_model_folder_never_runs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where somebody would answer yes to the question whether it may."""
    trap = tmp_path / "ran"
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(trap)!r})\nclass Evil: pass\n")
    edit(folder, model_type="evil", auto_map={"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"})
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(EncoderError, match="Python code of its own"):
        Encoder.load(folder)
    assert not trap.exists()
