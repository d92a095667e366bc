"""Module names and patterns of peft configurations.

Patterns come from a file, and Python's regular expressions can take unbounded time. Only patterns whose time is small
for names of modules are used; others are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from intarsia.errors import ExchangeError

LONGEST = 1000
MOST_REPEATS = 4  # unbounded repetitions in a pattern: the time grows with this power of a name's length


def compiled(pattern: str, where: str) -> re.Pattern[str]:
    """Return a compiled pattern; raise if it is not valid or could take too long."""
    if len(pattern) > LONGEST:
        raise ExchangeError(f"{where}: a pattern has {len(pattern)} characters; at most {LONGEST} are read.")
    try:
        found = re.compile(pattern)
        repeats, nested = _repeats(re._parser.parse(pattern))  # type: ignore[attr-defined]
    except (re.error, RecursionError, OverflowError) as error:
        raise ExchangeError(f"{where}: the pattern {pattern!r:.100} is not valid: {error}.") from None
    if nested or repeats > MOST_REPEATS:
        raise ExchangeError(f"{where}: the pattern {pattern!r:.100} is refused: matching it could take very long.")
    return found


def _repeats(parsed: Any, inside: bool = False) -> tuple[int, bool]:
    """Return the number of unbounded repetitions, and whether one is inside another."""
    count, nested = 0, False
    for op, value in parsed:
        if str(op) in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            low, high, inner = value
            many = int(high) - int(low) > 8
            below, deeper = _repeats(inner, inside or many)
            count, nested = count + below + many, nested or deeper or (many and inside)
        else:
            for item in _inner(value):
                below, deeper = _repeats(item, inside)
                count, nested = count + below, nested or deeper
    return count, nested


def _inner(value: Any) -> Iterable[Any]:
    """Yield the parsed patterns inside a group, a branch or an assertion."""
    if type(value).__name__ == "SubPattern":
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _inner(item)


class Targets:
    """Which modules a peft configuration names."""

    def __init__(
        self,
        where: str,
        targets: Any,
        exclude: Any = None,
        layers: Any = None,
        layers_pattern: Any = None,
        saved: tuple[str, ...] = (),
    ) -> None:
        self.targets, self.exclude = _names(where, targets), _names(where, exclude)
        self.layers = None if layers in (None, []) else {layers} if isinstance(layers, int) else set(layers)
        given = [layers_pattern] if isinstance(layers_pattern, str) else list(layers_pattern or [])
        middle = "|".join(f"(?:{pattern})" for pattern in given)
        before = r"(?:^|.*?\.)" + f"(?:{middle})" if middle else r".*?\.[^.]*"
        self._layer = compiled(before + r"\.(?P<index>\d+)\.", where)
        self._saved = tuple(compiled(rf"(^|.*\.){name}($|\..*)", where) for name in saved)

    def __contains__(self, path: str) -> bool:
        """Whether a module is a target. `path` is its whole name in the other library's model."""
        if _fits(path, self.exclude) or any(pattern.match(path) for pattern in self._saved):
            return False
        if not _fits(path, self.targets):
            return False
        if self.layers is None or isinstance(self.targets, re.Pattern):
            return True
        match = self._layer.match(path)
        return match is not None and int(match["index"]) in self.layers


def _names(where: str, value: Any) -> re.Pattern[str] | tuple[str, ...]:
    if isinstance(value, str):
        return compiled(value, where)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value) or len(value) > 10_000:
        raise ExchangeError(f"{where}: {value!r:.100} is not a list of module names or a pattern.")
    return tuple(value)


def _fits(path: str, names: re.Pattern[str] | tuple[str, ...]) -> bool:
    if isinstance(names, re.Pattern):
        return names.fullmatch(path) is not None
    return any(path == name or path.endswith(f".{name}") for name in names)


class ByModule:
    """A value for each module: the first pattern that fits its name, else the default."""

    def __init__(self, where: str, patterns: Mapping[str, Any], default: float) -> None:
        for key, value in patterns.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ExchangeError(f"{where}: {key!r:.80} has the value {value!r:.80}; expected a number.")
        if len(patterns) > 10_000:
            raise ExchangeError(f"{where}: {len(patterns)} patterns; at most 10000 are read.")
        self._patterns = [(compiled(rf"(.*\.)?({key})$", where), value) for key, value in patterns.items()]
        self.default = default

    def of(self, path: str) -> float:
        return next((value for pattern, value in self._patterns if pattern.match(path)), self.default)
