"""Importing `transformers`' model code without the parts that a frozen encoder never runs.

`transformers.modeling_utils` imports PyTorch's compiler, distributed tensors, the paged cache of text generation, and
the losses of object detection (with SciPy): most of the time of a cold start. `quick_imports` puts placeholders in
their place while a base is loaded, and removes them afterwards, so that a later import gets the real module.

Only the command line calls this: its process runs nothing else of `transformers`.
"""

from __future__ import annotations

import gc
import importlib
import importlib.abc
import importlib.machinery
import json
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

UNUSED = (
    "scipy",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.fx.experimental.symbolic_shapes",
    "transformers.generation.continuous_batching",
)


@contextmanager
def quick_imports(base: str | None) -> Iterator[None]:
    """Load a base in this context: the embedded one, or that of a folder. Changes nothing for a hub name, or if the
    model code was imported before. If the base does not load in the context, load it again outside."""
    model_type = "bert" if base in (None, "minilm") else _model_type(Path(str(base)).expanduser())
    if model_type is None or "transformers.modeling_utils" in sys.modules:
        yield
        return
    with _no_collection():
        import torch  # noqa: F401  # placeholders are for `transformers` alone

        before = set(sys.modules)
        with _placeholders(), _no_first_values():
            try:
                _import(model_type)
            except Exception:  # another version of a library uses a placeholder while it is imported
                for name in sys.modules.keys() - before:
                    if name.partition(".")[0] == "transformers":
                        del sys.modules[name]
            yield


def _model_type(folder: Path) -> str | None:
    """Return the model type that a folder's config.json names; None if there is none."""
    try:
        found = json.loads((folder / "config.json").read_bytes())["model_type"]
    except (OSError, ValueError, LookupError, TypeError):
        return None  # loading the base explains it
    return found if isinstance(found, str) else None


def _import(model_type: str) -> None:
    from transformers.utils import import_utils

    find = import_utils.define_import_structure
    try:
        # `transformers.models` reads the files of all models for its lazy names. Importing a submodule needs none.
        import_utils.define_import_structure = lambda path, *rest, **named: (
            {} if Path(path).parts[-2:] == ("models", "__init__.py") else find(path, *rest, **named)
        )
        importlib.import_module("transformers.models")
    finally:
        import_utils.define_import_structure = find
    importlib.import_module("transformers.modeling_utils")
    with suppress(ModuleNotFoundError):  # a type whose module has another name: loading the model finds it
        name = model_type.replace("-", "_")
        importlib.import_module(f"transformers.models.{name}.modeling_{name}")


@contextmanager
def _placeholders() -> Iterator[None]:
    finder = _Placeholders()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        finder.remove_modules()


@contextmanager
def _no_first_values() -> Iterator[None]:
    """Leave out the first values of new modules. `transformers` makes the model without storage and then takes the
    checkpoint's tensors; first values without storage only load PyTorch's compiler."""
    from torch import nn

    kept = {kind: kind.reset_parameters for kind in (nn.Embedding, nn.Linear, nn.LayerNorm)}
    try:
        for kind in kept:
            kind.reset_parameters = lambda self: None  # type: ignore[method-assign]
        yield
    finally:
        for kind, own in kept.items():
            kind.reset_parameters = own  # type: ignore[method-assign]


@contextmanager
def _no_collection() -> Iterator[None]:
    """Imports create many objects that stay: collecting garbage meanwhile only costs time, and so does looking at them
    in each later collection."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


class _AnyName(type):
    """A class that has every attribute: another placeholder."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyName(name, (_Placeholder,), {})


class _Placeholder(metaclass=_AnyName):
    """Stands for a class, a function, a decorator or a constant of a module that is not imported.

    As a class it can be a base class, an annotation or the second argument of `isinstance`. Called with a function, it
    returns the function, as a decorator; otherwise it returns an object that may be used as a decorator.
    """

    def __new__(cls, *arguments: Any, **_: Any) -> Any:
        return arguments[0] if arguments and isinstance(arguments[0], types.FunctionType) else object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, function: Any) -> Any:
        return function


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyName(name, (_Placeholder,), {})


class _Placeholders(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds placeholders for the modules in `UNUSED` and below them, unless they are loaded already."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if any(name == unused or name.startswith(f"{unused}.") for unused in UNUSED):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        self.made.append(spec.name)
        module = _Module(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass

    def remove_modules(self) -> None:
        """Forget the placeholders: the next import of such a module finds the real one."""
        for name in self.made:
            module = sys.modules.get(name)
            if not isinstance(module, _Module):
                continue
            del sys.modules[name]
            parent, _, child = name.rpartition(".")
            if parent in sys.modules and vars(sys.modules[parent]).get(child) is module:
                delattr(sys.modules[parent], child)
