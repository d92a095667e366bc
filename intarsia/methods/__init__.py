"""The methods, one paper a file. Adding one touches its own file, its test, and the registry below."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from intarsia.errors import IntarsiaError
from intarsia.methods.bottleneck import Bottleneck
from intarsia.methods.method import Method, Spec, running_key, to_dict

METHODS: dict[str, type] = {Bottleneck.name: Bottleneck}


def from_dict(config: dict[str, Any]) -> Method:
    """The method that `to_dict` wrote."""
    options = dict(config)
    kind = options.pop("type", None)
    if kind not in METHODS:
        raise IntarsiaError(f"the method {kind!r} is not known; known methods: {', '.join(METHODS)}.")
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    try:
        return METHODS[kind](**options)
    except TypeError as error:
        raise IntarsiaError(f"the method {kind!r} does not take these options: {error}") from error


_PRESETS: dict[str, tuple[type, str]] = {"houlsby": (Bottleneck, "size"), "bottleneck": (Bottleneck, "size")}


def parse(text: str, options: Sequence[str] = ()) -> Method:
    """A method as written on the command line: a name, with its size after a dash (`houlsby-64`), and `KEY=VALUE`
    options."""
    name = next((n for n in _PRESETS if text == n or text.startswith(f"{n}-")), "")
    size = text.removeprefix(name).removeprefix("-")
    if not name:
        raise IntarsiaError(f"the method {text!r} is not known; known methods: {', '.join(_PRESETS)} (as houlsby-64).")
    kind, size_option = _PRESETS[name]
    fields = {f.name: str(f.type) for f in dataclasses.fields(kind)}
    values = dict(option.partition("=")[::2] for option in [*([f"{size_option}={size}"] if size else []), *options])
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise IntarsiaError(f"the method {name} has no option {unknown[0]!r}; it has: {', '.join(fields)}.")
    return kind(**{key: _value(key, value, fields[key]) for key, value in values.items()})


def _value(key: str, text: str, annotation: str) -> Any:
    """An option's text as its annotated type."""
    try:
        if text.lower() == "none" and "None" in annotation:
            return None
        if annotation.startswith("bool"):
            return {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}[text.lower()]
        if annotation.startswith("tuple"):
            return layer_span(text)
        number = {"int": int, "float": float}.get(annotation.removesuffix(" | None"))
        return text if number is None else number(text)
    except (KeyError, ValueError):
        raise IntarsiaError(f"the option {key}={text} cannot be read: {annotation} was expected.") from None


def layer_span(text: str) -> tuple[int, ...]:
    """`0,2,6-11` → (0, 2, 6, 7, 8, 9, 10, 11)."""
    layers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        layers += range(int(first), int(last or first) + 1)
    return tuple(layers)


__all__ = ["METHODS", "Bottleneck", "Method", "Spec", "from_dict", "parse", "running_key", "to_dict"]
