"""Accounting for a foreign file: every flag and every tensor must be taken by name, or the import fails.

A flag or tensor that a reader does not know could change what the adapter computes. Ignoring it would give wrong
answers without a sign. So the readers take each entry; `check_empty` names what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from intarsia.errors import ExchangeError

SHOWN = 5  # names in a message
_REQUIRED = object()


class Flags:
    """The entries of a JSON object; `where` names the file (and the key inside it) in messages."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self._values = dict(values)
        self._taken: set[str] = set()
        self._nested: dict[str, Flags] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def take(self, name: str, default: Any = _REQUIRED) -> Any:
        """Return the value of a flag, and count it as taken."""
        if name not in self._values and default is _REQUIRED:
            raise ExchangeError(f"{self.where} has no {name!r}, which the import needs.")
        self._taken.add(name)
        return self._values.get(name, default)

    def number(self, name: str, default: Any = _REQUIRED, *, least: float = 0, most: float = 2**24) -> float:
        """Take a number in a range."""
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise ExchangeError(f"{self.where}: {name} is {value!r:.80}; expected a number from {least} to {most}.")
        return value

    def whole(self, name: str, default: Any = _REQUIRED, *, least: int = 0, most: int = 2**24) -> int:
        """Take a whole number in a range."""
        value = self.number(name, default, least=least, most=most)
        if not isinstance(value, int):
            raise ExchangeError(f"{self.where}: {name} is {value!r}; expected a whole number.")
        return value

    def yes(self, name: str, default: bool = False) -> bool:
        """Take a flag that is true or false; null means false."""
        value = self.take(name, default)
        if value is not None and not isinstance(value, bool):
            raise ExchangeError(f"{self.where}: {name} is {value!r:.80}; expected true or false.")
        return bool(value)

    def names(self, name: str, default: Any = None) -> tuple[str, ...] | None:
        """Take a list of strings; null gives None."""
        value = self.take(name, default)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value) or len(value) > 10_000:
            raise ExchangeError(f"{self.where}: {name} is {value!r:.80}; expected a list of names.")
        return tuple(value)

    def nested(self, name: str) -> Flags:
        """Take an object; its own entries are then accounted for too. A missing or null object is empty."""
        if name not in self._nested:
            value = self.take(name, None)
            if value is not None and not isinstance(value, dict):
                raise ExchangeError(f"{self.where}: {name} is {value!r:.80}; expected an object.")
            self._nested[name] = Flags(f"{self.where}, {name}", value or {})
        return self._nested[name]

    def expect(self, name: str, *allowed: Any, because: str = "") -> None:
        """Take a flag that may only be absent or have one of these values."""
        if name in self._values and self._values[name] not in allowed:
            reason = f": {because}" if because else ""
            raise ExchangeError(
                f"{self.where}: {name} = {self._values[name]!r:.200} cannot be imported{reason}. "
                f"Expected {' or '.join(repr(value) for value in allowed)}."
            )
        self._taken.add(name)

    def no_effect(self, *names: str) -> None:
        """Take flags that do not change what the adapter computes: they only matter in the other library's training."""
        self._taken.update(names)

    def check_empty(self) -> None:
        """Raise unless every flag was taken."""
        left = [name for name in self._values if name not in self._taken]
        if left:
            shown = ", ".join(f"{name} = {self._values[name]!r:.60}" for name in left[:SHOWN])
            raise ExchangeError(
                f"{self.where} has {_count(left, 'flag')} that Intarsia does not know: {shown}. An import that ignored "
                "them could compute something else, so nothing was imported."
            )
        for nested in self._nested.values():
            nested.check_empty()


class Weights:
    """The tensors of a foreign file, by name; each is taken once, in float32."""

    def __init__(self, where: str, tensors: Mapping[str, Tensor]) -> None:
        self.where = where
        self._left = dict(tensors)
        self.count = len(self._left)

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def __iter__(self) -> Iterator[str]:
        """The names that were not taken yet."""
        return iter(tuple(self._left))

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, which stays untaken."""
        return tuple(self._peek(name).shape)

    def take(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """Return a tensor in float32 and count it as taken; raise unless it has this shape and is finite."""
        tensor = self._peek(name)
        if shape is not None and tuple(tensor.shape) != shape:
            raise ExchangeError(
                f"{self.where}: the tensor {name!r} has the shape {tuple(tensor.shape)}; this base needs {shape}. "
                "The adapter was made for another base, or the file is damaged."
            )
        del self._left[name]
        if not tensor.is_floating_point():
            raise ExchangeError(f"{self.where}: the tensor {name!r} has the type {tensor.dtype}; expected floats.")
        tensor = tensor.detach().to(torch.float32, copy=True).contiguous()
        if not bool(tensor.isfinite().all()):
            raise ExchangeError(f"{self.where}: the tensor {name!r} contains NaN or infinity. The adapter is unusable.")
        return tensor

    def take_if(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor | None:
        """Return a tensor that may be absent."""
        return self.take(name, shape) if name in self else None

    def copy_of(self, name: str, other: str) -> None:
        """Take a copy of another tensor: a file may repeat one under several names. The values must be equal."""
        if not torch.equal(self._peek(name), self._peek(other)):
            raise ExchangeError(f"{self.where}: {name!r} differs from {other!r}, of which it should be a copy.")
        self.take(name)

    def check_empty(self) -> None:
        """Raise unless every tensor was taken."""
        if self._left:
            left = list(self._left)
            shown = ", ".join(f"{name!r} {tuple(self._left[name].shape)}" for name in left[:SHOWN])
            raise ExchangeError(
                f"{self.where} has {_count(left, 'tensor')} without a place in this base or its configuration: {shown}"
                f"{' …' if len(left) > SHOWN else ''}. Nothing was imported."
            )

    def _peek(self, name: str) -> Tensor:
        if name not in self._left:
            raise ExchangeError(f"{self.where} has no tensor {name!r:.200}, which its configuration needs.")
        return self._left[name]


def _count(items: list[str], word: str) -> str:
    return f"{len(items)} {word}{'s' * (len(items) != 1)}"
