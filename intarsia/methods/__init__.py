"""The methods, one file for each paper. A new method needs a file, a test, and one line in `registry.py`."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, get_type_hints

from intarsia.errors import IntarsiaError, did_you_mean
from intarsia.methods import compositions, registry
from intarsia.methods.compose import DEEPEST, MOST_PARTS, Composite
from intarsia.methods.compose import Parent as Parent
from intarsia.methods.compose import names as names
from intarsia.methods.compose import parents as parents
from intarsia.methods.compose import resolve as resolve
from intarsia.methods.compose import swap as swap
from intarsia.methods.compositions import *  # noqa: F403
from intarsia.methods.expression import Expression, read
from intarsia.methods.method import ALL_BUT_LAST
from intarsia.methods.method import Method as Method
from intarsia.methods.method import Preset as Preset
from intarsia.methods.method import Spec as Spec
from intarsia.methods.method import running_key as running_key
from intarsia.methods.method import to_dict as to_dict
from intarsia.methods.registry import *  # noqa: F403

METHODS: dict[str, type[Method]] = {
    kind.name: kind for kind in vars(registry).values() if isinstance(kind, type) and issubclass(kind, Method)
}
COMPOSITIONS: dict[str, type[Composite]] = {kind.name: kind for kind in compositions.ALL}
_METHOD_OF_PRESET = {name: kind for kind in METHODS.values() for name in kind.presets}


def _all_presets() -> dict[str, Preset]:
    """Return all presets, in the order of listings."""
    presets = {name: preset for kind in METHODS.values() for name, preset in kind.presets.items()}
    names = [name for name, preset in presets.items() if preset.after is None]
    for name, preset in presets.items():
        if preset.after is not None:
            names.insert(names.index(preset.after) + 1, name)
    return {name: presets[name] for name in names}


PRESETS = _all_presets()
MOST_ITEMS = 10_000  # of a list in a stored method


def from_dict(config: Mapping[str, Any]) -> Method:
    """Return the method that `to_dict` wrote. The names and types of the options are checked: they come from a file."""
    return _from_dict(config, 2 * DEEPEST)


def _from_dict(config: Any, levels: int) -> Method:
    """`levels`: how deep the parts of the method may still be nested."""
    if not isinstance(config, Mapping):
        raise IntarsiaError(f"a method is {repr(config)[:100]}; expected an object with the key 'type'.")
    if levels == 0:
        raise IntarsiaError(f"compositions are nested more than {DEEPEST} levels deep.")
    options = dict(config)
    name = options.pop("type", None)
    known: dict[str, type[Method]] = {**METHODS, **COMPOSITIONS, Parent.name: Parent}
    if not isinstance(name, str) or name not in known:
        listed = ", ".join([*METHODS, *COMPOSITIONS])
        raise IntarsiaError(f"the method {str(name)[:100]!r} is not known. Known methods: {listed}.")
    kind = known[name]
    fields = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(map(str, options)) - fields)
    if unknown:
        raise IntarsiaError(f"the method {name!r} has no option {unknown[0][:100]!r}.")
    if any(len(value) > MOST_ITEMS for value in options.values() if isinstance(value, list | tuple | str)):
        raise IntarsiaError(f"an option of the method {name!r} has more than {MOST_ITEMS} items.")
    if issubclass(kind, Composite):
        parts = options.pop("parts", None)
        if not isinstance(parts, list | tuple):
            raise IntarsiaError(f"the option 'parts' of the method {name!r} is not a list.")
        made = [part if isinstance(part, str) else _from_dict(part, levels - 1) for part in parts[: MOST_PARTS + 1]]
        return kind.of(made, **_converted(name, kind, options))
    if kind is Parent:
        method = _from_dict(options.pop("method", None), levels - 1)
        return Parent(**_converted(name, kind, options, required={"digest", "task", "version"}), method=method)
    import msgspec

    try:
        return msgspec.convert(options, kind)
    except msgspec.ValidationError as error:
        raise _invalid(name, error) from error


def _converted(
    name: str, kind: type[Method], options: Mapping[str, Any], required: Collection[str] = ()
) -> dict[str, Any]:
    """Return the options with the types of their fields."""
    import msgspec

    types = get_type_hints(kind)
    if missing := [option for option in required if option not in options]:
        raise IntarsiaError(f"the options of the method {name!r} are not valid: {missing[0]!r} is missing.")
    try:
        return {option: msgspec.convert(value, types[option]) for option, value in options.items()}
    except msgspec.ValidationError as error:
        raise _invalid(name, error) from error


def _invalid(name: str, error: Exception) -> IntarsiaError:
    problem = str(error).replace("`", "")
    return IntarsiaError(f"the options of the method {name!r} are not valid: {problem}.")


def parse(text: str, options: Sequence[str] = ()) -> Method:
    """Return the method that the command line names.

    `text` is a name, with an optional size after a dash (`houlsby-64`, `lt-sft-0.5%`) and options after spaces; or a
    composition of methods and of tasks of a bank: `stack(medical, pfeiffer-48)`. `options` are `KEY=VALUE`.
    """
    found = read(text) if text.strip() else Expression(text)
    options = [*found.options, *options]
    return _simple(found.name, options) if found.parts is None else _composed(found, options)


def _composed(found: Expression, options: Sequence[str]) -> Composite:
    """Return the composition that a text describes. A part that is no method is the name of a task."""
    kind = COMPOSITIONS.get(found.name.lower())
    if kind is None:
        raise IntarsiaError(
            f"the composition {found.name!r} is not known.{did_you_mean(found.name.lower(), COMPOSITIONS)} "
            f"Compositions: {', '.join(COMPOSITIONS)}, as in stack(medical, pfeiffer-48)."
        )
    fields = {
        name: str(p.annotation)
        for name, p in inspect.signature(kind.__init__).parameters.items()
        if p.default != p.empty
    }
    values = _checked_options(found.name, fields, options)
    return kind(*(_part(part) for part in found.parts or ()), **values)


def _part(found: Expression) -> Method | str:
    if found.parts is not None:
        return _composed(found, found.options)
    if any(found.name == name or re.fullmatch(rf"{name}-[\d.]\S*", found.name) for name in PRESETS):
        return _simple(found.name, found.options)
    if found.options:
        raise IntarsiaError(
            f"{found.name!r} is not a method, so {found.options[0]} cannot be an option of it."
            f"{did_you_mean(found.name.rpartition('-')[0] or found.name, PRESETS)} Options of a composition stand in "
            "its parentheses, or after them."
        )
    return found.name


def _checked_options(name: str, fields: Mapping[str, str], options: Sequence[str]) -> dict[str, Any]:
    bare = next((option for option in options if "=" not in option), None)
    if bare is not None:
        raise IntarsiaError(f"the option {bare!r} is not KEY=VALUE, such as layers=3-5.")
    values = dict(option.partition("=")[::2] for option in options)
    unknown = sorted(set(values) - set(fields))
    if unknown:
        meant = did_you_mean(unknown[0], fields)
        known = f"its options are: {', '.join(fields)}" if fields else "it has no options"
        raise IntarsiaError(f"the method {name} has no option {unknown[0]!r}; {known}.{meant}")
    return {key: _value(key, value, fields[key]) for key, value in values.items()}


def _simple(text: str, options: Sequence[str]) -> Method:
    """Return the method with this name and size."""
    names = [n for n in PRESETS if text == n or text.startswith(f"{n}-")]
    if not names:
        close = did_you_mean(text.rpartition("-")[0] or text, PRESETS)
        known = close or f" Known methods: {', '.join(PRESETS)}. Write a size as in houlsby-64."
        raise IntarsiaError(f"the method {text!r} is not known.{known}")
    name = max(names, key=len)
    kind, preset = _METHOD_OF_PRESET[name], PRESETS[name]
    sized, size = text != name, text.removeprefix(name).removeprefix("-")
    if sized and preset.size is None:
        raise IntarsiaError(f"the method {name} has no size, so {text!r} is not valid: write {name}.")
    fields = {f.name: str(f.type) for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    given = _checked_options(name, fields, [*([f"{preset.size}={size}"] if sized else []), *options])
    return kind(**{**preset.options, **given})


def as_method(value: Any) -> Method:
    """Return a method that is given as such, or as text with options after spaces: `houlsby-64 layers=3-5`."""
    if isinstance(value, Method):
        return value
    if isinstance(value, str) and value.strip():
        return parse(value)
    found = f"the class {value.__name__}" if isinstance(value, type) else f"{value!r:.60} ({type(value).__name__})"
    raise IntarsiaError(
        f"method: expected a name and size such as 'houlsby-64', or a method such as Bottleneck(64); found {found}."
    )


def short_name(config: Mapping[str, Any]) -> str:
    """Return the preset name and size of a stored method, as on the command line: `houlsby-64`.

    A composition is its name with those of its parts: `stack(medical, pfeiffer-48)`; a frozen inlay is its task.
    """
    if config["type"] == Parent.name:
        return str(config["task"])
    if config["type"] in COMPOSITIONS:
        parts = ", ".join(part if isinstance(part, str) else short_name(part) for part in config["parts"])
        return f"{config['type']}({parts})"

    def fits(preset: Preset) -> bool:
        options = preset.options.items()
        return all(bool(config.get(k)) if k == preset.size else config.get(k) == v for k, v in options)

    known = METHODS[config["type"]].presets if config["type"] in METHODS else {}
    fitting = [(name, preset) for name, preset in known.items() if fits(preset)]
    if not fitting:
        return str(config["type"])
    name, preset = max(fitting, key=lambda pair: len(pair[1].options))  # the first, if several are equal
    size = None if preset.size is None or config.get("entries") else config.get(preset.size)
    if not size:
        return name
    return f"{name}-{100 * size:g}%" if isinstance(size, float) else f"{name}-{size}"


def full_name(config: Mapping[str, Any]) -> str:
    """Return the short name and all options that differ from its defaults: `houlsby-64 std=1e-07`.

    A frozen inlay in a composition is its task with its version: `stack(medical@2, pfeiffer-48)`.
    """
    if config["type"] == Parent.name:
        return f"{config['task']}@{config['version']}"
    if config["type"] in COMPOSITIONS:
        parts = ", ".join(part if isinstance(part, str) else full_name(part) for part in config["parts"])
        return _with_options(f"{config['type']}({parts})", config, COMPOSITIONS[config["type"]])
    name = short_name(config)
    try:
        defaults = to_dict(parse(name))
    except IntarsiaError:  # this version no longer has the stored method
        return name
    newer = METHODS[config["type"]].newer
    other = {
        k: v for k, v in config.items() if (k in defaults and defaults[k] != v) or (k in newer and k not in defaults)
    }
    return _listed(name, other)


def _with_options(name: str, config: Mapping[str, Any], kind: type[Composite]) -> str:
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    del defaults["parts"]
    return _listed(name, {key: config[key] for key in defaults if key in config and config[key] != defaults[key]})


def _listed(name: str, options: Mapping[str, Any]) -> str:
    return " ".join([name, *(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in options.items())])


def _value(key: str, text: str, annotation: str) -> Any:
    """Return the value of an option's text in its annotated type."""
    try:
        if text.lower() == "none" and ("None" in annotation or annotation == "Layers"):
            return None
        if annotation == "Layers":
            return text if text == ALL_BUT_LAST else layer_span(text)
        if annotation.startswith("bool"):
            return {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}[text.lower()]
        if annotation.startswith("Sequence[float"):
            return tuple(float(part) for part in text.split(","))
        if annotation.startswith("tuple[str"):
            return tuple(part for part in text.split(",") if part)
        if annotation.startswith("tuple"):
            return layer_span(text)
        numbers: dict[str, Callable[[str], float]] = {"int": int, "float": _number}
        number = numbers.get(annotation.removesuffix(" | None"))
        return text if number is None else number(text)
    except (KeyError, ValueError):
        shown = {
            "Layers": f"layers such as 0-3,5, or {ALL_BUT_LAST},",
            "Sequence[float] | None": "a list such as [0.3,0.7]", "int": "a whole number", "bool": "yes or no",
            "float": "a number, such as 0.05 or 5%,",
        }  # fmt: skip
        expected = shown.get(annotation) or shown.get(annotation.removesuffix(" | None"), annotation)
        raise IntarsiaError(f"the option {key}={text} is not valid: {expected} was expected.") from None


def _number(text: str) -> float:
    """Return the value of `0.005` or `0.5%`."""
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def layer_span(text: str) -> tuple[int, ...]:
    """Return the layers of a list: `0,2,6-11` → (0, 2, 6, 7, 8, 9, 10, 11)."""
    layers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        layers += range(int(first), int(last or first) + 1)
    return tuple(layers)
