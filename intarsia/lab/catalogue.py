"""The catalogue: all methods, with the parameters that they train and the cost of a step, on one encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.errors import IntarsiaError
from intarsia.lab import cost
from intarsia.methods import PRESETS, Full, Method, parse, short_name, to_dict

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder
    from intarsia.encoder.shape import Shape


@dataclass(frozen=True)
class Listed:
    """One method on one encoder. If the method does not fit the encoder, `reason` says why and the numbers are None."""

    name: str
    method: dict[str, Any]
    paper: str
    trains: str
    mergeable: bool
    mixable: bool  # one pass can mix rows of several tasks
    parameters: int | None = None  # without the head
    share: float | None = None  # parameters, relative to the base
    step: float | None = None  # the cost of a training step, relative to full fine-tuning
    steps: float = 1.0  # the number of steps, relative to the requested steps
    step_seconds: float | None = None  # only if measured
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Catalogue:
    """All methods on one encoder."""

    encoder: str
    parameters: int  # the number of parameters of the base
    measured: bool
    methods: tuple[Listed, ...]

    @property
    def full_seconds(self) -> float:
        """The measured time of a step of full fine-tuning, to which the other costs are relative."""
        return next(m.step_seconds or 0.0 for m in self.methods if m.method["type"] == Full.name)

    def to_dict(self) -> dict[str, Any]:
        basis = "timed" if self.measured else "estimated"
        return {
            "encoder": self.encoder,
            "parameters": self.parameters,
            "step": f"{basis}, relative to full fine-tuning",
            "methods": [listed.to_dict() for listed in self.methods],
        }


def catalogue(
    encoder: str | Path | Encoder | None = None, *, measure: bool = False, watch: Callable[[str], None] | None = None
) -> Catalogue:
    """Return the catalogue of all presets on an encoder.

    With `measure`, the encoder is loaded and steps are timed; `watch` is called with the name of each timed method.
    """
    from intarsia.encoder.encoder import Encoder
    from intarsia.encoder.sources import EMBEDDED

    given = encoder or EMBEDDED
    if measure and not isinstance(given, Encoder):
        given = Encoder.load(given)
    shape = given.shape if isinstance(given, Encoder) else shape_of(given)
    methods = {name: parse(name) for name, preset in PRESETS.items() if not preset.alias}
    reasons = {name: _reason(method, shape) for name, method in methods.items()}
    timed: dict[str, cost.StepTime] = {}
    if measure and isinstance(given, Encoder):
        usable = {name: method for name, method in methods.items() if reasons[name] is None}
        timed = cost.measure(given, usable, watch)
    listed = [_listed(name, method, shape, reasons[name], timed.get(name)) for name, method in methods.items()]
    name = given.name if isinstance(given, Encoder) else str(given)
    return Catalogue(name, shape.parameters, measure, tuple(listed))


def shape_of(source: str | Path) -> Shape:
    """Return an encoder's shape. If its files are local, only its configuration and weight names are read."""
    from intarsia.encoder.encoder import Encoder
    from intarsia.encoder.shape import Shape
    from intarsia.encoder.sites import family_of
    from intarsia.encoder.sources import EMBEDDED, embedded_folder

    folder = embedded_folder() if str(source) == EMBEDDED else Path(source).expanduser()
    weights = folder / "model.safetensors"
    if not (folder / "config.json").is_file() or not weights.is_file():
        return Encoder.load(source).shape
    import torch
    from safetensors import SafetensorError, safe_open
    from transformers import AutoConfig, AutoModel

    try:
        config = AutoConfig.from_pretrained(str(folder))
        with safe_open(weights, framework="pt") as file:
            pooler = any("pooler." in name for name in file.keys())  # noqa: SIM118 (not a dict)
    except (OSError, ValueError, SafetensorError):
        return Encoder.load(source).shape  # raises an error that explains the problem
    family_of(config)  # raises a clear error for an unknown family
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    if not pooler:
        model.pooler = None  # as `Encoder.load` does for a checkpoint without a pooler
    return Shape.of_model(model)


def sized_name(preset: str, shape: Shape) -> str:
    """Return a preset's name with its default size, such as houlsby-64 or lt-sft-0.5%."""
    return short_name(to_dict(parse(preset).sized(shape)))


def _reason(method: Method, shape: Shape) -> str | None:
    """Return why a method does not fit the encoder, or None."""
    try:
        method.check(shape)
    except IntarsiaError as error:
        return str(error)
    return None


def _listed(preset: str, method: Method, shape: Shape, reason: str | None, timed: cost.StepTime | None) -> Listed:
    name, trains = sized_name(preset, shape), PRESETS[preset].trains or method.trains
    if reason is not None:
        return Listed(name, to_dict(method), method.paper, trains, False, False, reason=reason)
    count = method.count(shape)
    return Listed(
        name=name,
        method=to_dict(method),
        paper=method.paper,
        trains=trains,
        mergeable=mergeable(method, shape),
        mixable=not method.changes_base,
        parameters=count,
        share=count / shape.parameters,
        step=cost.estimate(method, shape) if timed is None else timed.relative,
        steps=cost.steps(method, shape),
        step_seconds=None if timed is None else timed.seconds,
    )


def mergeable(method: Method, shape: Shape) -> bool:
    """Return whether the method's trained tensors can be merged into a plain model of this base."""
    return method.mergeable and not any(shape.merge_refusal(site, layer) for site, layer in method.places(shape))
