"""Reading a foreign folder or file: bounded sizes, no code, and a hash of what was read.

A `.bin` file is a pickle. PyTorch reads it with `weights_only=True`: it builds tensors and plain containers, and
refuses everything else before any code runs. The short list below adds the types that NumPy values need.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from intarsia import files
from intarsia.errors import ExchangeError
from intarsia.exchange.accounting import Flags, Weights

LARGEST_CONFIG = 1 << 20  # bytes of a JSON file
LARGEST_WEIGHTS = 4 << 30  # bytes of a file of tensors
LARGEST_TOKENIZER = 64 << 20
MOST_TENSORS = 100_000
WEIGHTS = (".safetensors", ".bin")
T = TypeVar("T", Flags, Weights)


class Source:
    """A folder in another library's format. What is read is accounted for (`check_consumed`) and hashed (`sha256`)."""

    def __init__(self, path: str | Path, name: str | None = None) -> None:
        """`name`: where the folder came from, for provenance; by default its path."""
        self.folder = Path(path).expanduser()
        if self.folder.is_file() and self.folder.suffix in WEIGHTS:
            self.folder, self.only = self.folder.parent, self.folder.name
        else:
            self.only = ""
        self.name = name or str(path)
        if not self.folder.is_dir():
            raise ExchangeError(
                f"{path} does not exist or is not a folder. Expected a folder with an adapter, or a weights file "
                f"({', '.join(WEIGHTS)})."
            )
        self._hashes: dict[str, str] = {}
        self._accounts: list[Flags | Weights] = []
        self._below: dict[str, Source] = {}
        self.headless = False  # the user wants no head, so a head in files of its own is not read

    @property
    def files(self) -> frozenset[str]:
        """The names of the files that the folder has; only one, if the source is a single file."""
        if self.only:
            return frozenset((self.only,))
        return frozenset(path.name for path in self.folder.iterdir() if path.is_file())

    def first(self, *names: str) -> str | None:
        """Return the first of these file names that exists."""
        have = self.files
        return next((name for name in names if name in have), None)

    def below(self, name: str) -> Source:
        """Return a folder inside this folder. It belongs to this source: its files are accounted for and hashed too."""
        if name in self._below:
            return self._below[name]
        if not name or Path(name).name != name or not (self.folder / name).is_dir():
            raise ExchangeError(f"{self.folder} has no folder {name!r:.100}, which its configuration names.")
        self._below[name] = Source(self.folder / name, f"{self.name}/{name}")
        self._below[name].headless = self.headless
        return self._below[name]

    def json(self, name: str) -> dict[str, Any]:
        """Return the object of a JSON file, without accounting for its entries."""
        try:
            value = json.loads(self._content(name, LARGEST_CONFIG))
        except (ValueError, RecursionError) as error:
            raise ExchangeError(f"{self.folder / name} is not valid JSON: {error}.") from None
        if not isinstance(value, dict):
            raise ExchangeError(f"{self.folder / name} holds a {type(value).__name__}; expected a JSON object.")
        return value

    def config(self, name: str) -> Flags:
        """Return the flags of a JSON file; each must be taken."""
        flags = Flags(name, self.json(name))
        self._accounts.append(flags)
        return flags

    def weights(self, *names: str, rename: Callable[[str], str] | None = None) -> Weights:
        """Return the tensors of the first of these files that exists; each must be taken. `rename` gives the present
        name of a tensor of an older file."""
        name = self.first(*names)
        if name is None:
            raise ExchangeError(f"{self.folder} has no {' or '.join(names)}. Found: {self._listed()}.")
        found = self.load(name)
        if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
            raise ExchangeError(f"{self.folder / name} is not a mapping from names to tensors.")
        if rename is not None:
            renamed = {rename(key): tensor for key, tensor in found.items()}
            if len(renamed) < len(found):
                raise ExchangeError(f"{self.folder / name} has tensors under their old and their new names.")
            found = renamed
        weights = Weights(name, found)
        self._accounts.append(weights)
        return weights

    def account(self, part: T) -> T:
        """Account for flags or tensors that a reader took out of a file with another layout."""
        self._accounts.append(part)
        return part

    def load(self, name: str) -> Any:
        """Return the content of a safetensors file, or that of a `.bin` file without running any code."""
        content = self._content(name, LARGEST_WEIGHTS)
        found = _safetensors(content, self.folder / name) if name.endswith(".safetensors") else None
        if found is None:
            found = _pickled(self.folder / name)
        if isinstance(found, dict) and len(found) > MOST_TENSORS:
            raise ExchangeError(f"{self.folder / name} holds {len(found)} entries; at most {MOST_TENSORS} are read.")
        return found

    def leave_out(self, *names: str) -> None:
        """Hash files that the import leaves out on purpose, without reading what they hold."""
        for name in names:
            if name in self.files:
                self._content(name, LARGEST_WEIGHTS)

    def vocabulary(self) -> dict[str, int] | None:
        """Return the vocabulary that the folder carries, if it has a tokenizer file."""
        if "tokenizer.json" not in self.files:
            return None
        from tokenizers import Tokenizer

        content = self._content("tokenizer.json", LARGEST_TOKENIZER)
        try:
            return dict(Tokenizer.from_str(content.decode()).get_vocab())
        except Exception as error:  # the library raises plain `Exception`
            raise ExchangeError(f"{self.folder / 'tokenizer.json'} cannot be read: {error}.") from None

    def check_consumed(self) -> None:
        """Raise if a flag or a tensor of a file that was read is left over, or a file of weights was not read."""
        for account in self._accounts:
            account.check_empty()
        for source in self._below.values():
            source.check_consumed()
        unread = sorted(name for name in self.files if name.endswith(WEIGHTS) and name not in self._hashes)
        twin = {name.rpartition(".")[0] for name in self._hashes}  # of a .bin file beside its .safetensors
        unread = [name for name in unread if _stem(name) not in {_stem(stem) for stem in twin}]
        if unread and not self.only:
            raise ExchangeError(
                f"{self.folder} has weights that the import does not read: {', '.join(unread[:5])}. Remove them from "
                "the folder if they do not belong to the adapter."
            )

    @property
    def sha256(self) -> str:
        """The hash of all files that were read: their names and contents."""
        digest = hashlib.sha256()
        for name, found in sorted(self._hashes.items()):
            digest.update(f"{name} {found}\n".encode())
        for name, source in sorted(self._below.items()):
            digest.update(f"{name}/ {source.sha256}\n".encode())
        return digest.hexdigest()

    def _content(self, name: str, limit: int) -> bytes:
        path = self.folder / name
        try:
            with files.open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
                content = file.read(limit + 1) if size <= limit else b""
        except OSError as error:
            raise ExchangeError(f"{path} cannot be read: {error.strerror or error}.") from None
        if size > limit or len(content) > limit:
            raise ExchangeError(f"{path} has {size:,} bytes; at most {limit:,} are read.")
        self._hashes[name] = hashlib.sha256(content).hexdigest()
        return content

    def _listed(self) -> str:
        names = sorted(self.files)
        return ", ".join(names[:8]) + (" …" if len(names) > 8 else "") or "no files"


def _stem(name: str) -> str:
    return name.removesuffix(".safetensors").removesuffix(".bin").removeprefix("pytorch_")


def _safetensors(content: bytes, path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return dict(load(content))
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise ExchangeError(f"{path} is not a valid safetensors file: {error}.") from None


def _pickled(path: Path) -> Any:
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(_safe_types()):
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged pickles raise anything
        text = str(error)
        named = text.partition("Unsupported global: GLOBAL ")[2].split()
        if named:
            raise ExchangeError(
                f"{path} is refused: its pickle names {named[0]!r}, which is neither a tensor nor a plain value. No "
                "code of the file was run. Save the adapter again as safetensors with its own library."
            ) from None
        raise ExchangeError(
            f"{path} cannot be read as a file of tensors: {text.splitlines()[0] if text else type(error).__name__}"
        ) from None


def _safe_types() -> list[Any]:
    """NumPy's scalar types, which files of composable-sft hold, by the names of NumPy 1 and 2."""
    import numpy as np

    names: list[Any] = [np.dtype, *(type(np.dtype(kind)) for kind in (np.int64, np.int32, np.float32, np.float64))]
    with suppress(AttributeError, ImportError):
        from numpy._core import multiarray

        names += [multiarray.scalar, (multiarray.scalar, "numpy.core.multiarray.scalar")]
    return names
