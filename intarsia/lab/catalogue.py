"""Every method there is, with what it trains and costs on one encoder."""

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
    from intarsia.encoder.sites import Shape


@dataclass(frozen=True)
class Listed:
    """One method on one encoder. Where it cannot work there, `reason` says why, and the figures are None."""

    name: str
    method: dict[str, Any]
    paper: str
    trains: str
    mergeable: bool
    mixable: bool  # rows of several tasks in one pass
    parameters: int | None = None  # without the head
    share: float | None = None  # of the base's
    step: float | None = None  # cost of a training step; full fine-tuning is 1
    steps: float = 1.0  # times the steps that were asked for
    step_seconds: float | None = None  # where it was measured
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Catalogue:
    encoder: str
    parameters: int  # of the base
    measured: bool
    methods: tuple[Listed, ...]

    @property
    def full_seconds(self) -> float:
        """Of a step of full fine-tuning, where steps were timed: what their cost is relative to."""
        return next(m.step_seconds or 0.0 for m in self.methods if m.method["type"] == Full.name)

    def to_dict(self) -> dict[str, Any]:
        cost_of = "timed" if self.measured else "estimated"
        return {
            "encoder": self.encoder,
            "parameters": self.parameters,
            "step": f"{cost_of}, relative to full fine-tuning",
            "methods": [listed.to_dict() for listed in self.methods],
        }


def catalogue(
    encoder: str | Path | Encoder | None = None, *, measure: bool = False, watch: Callable[[str], None] | None = None
) -> Catalogue:
    """All presets on an encoder, which is loaded only where steps are to be timed; `watch` is told each name then."""
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
    """An encoder's shape; from its configuration and the names of its weights alone, where they are at hand."""
    from intarsia.encoder.encoder import Encoder
    from intarsia.encoder.sites import Shape, family_of
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
        return Encoder.load(source).shape  # which says what is wrong
    family_of(config)  # the clear error first
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    if not pooler:
        model.pooler = None  # as `Encoder.load` does with a checkpoint that holds none
    return Shape.of_model(model)


def sized_name(preset: str, shape: Shape) -> str:
    """A preset's name with its default size: houlsby-64, lt-sft-0.5%."""
    return short_name(to_dict(parse(preset).sized(shape)))


def _reason(method: Method, shape: Shape) -> str | None:
    try:
        method.check(shape)
    except IntarsiaError as error:
        return str(error)
    return None


def _listed(preset: str, method: Method, shape: Shape, reason: str | None, timed: cost.StepTime | None) -> Listed:
    name, words = sized_name(preset, shape), PRESETS[preset].trains or method.trains
    if reason is not None:
        return Listed(name, to_dict(method), method.paper, words, False, False, reason=reason)
    count = method.count(shape)
    return Listed(
        name=name,
        method=to_dict(method),
        paper=method.paper,
        trains=words,
        mergeable=mergeable(method, shape),
        mixable=not method.changes_base,
        parameters=count,
        share=count / shape.parameters,
        step=cost.estimate(method, shape) if timed is None else timed.relative,
        steps=cost.steps(method, shape),
        step_seconds=None if timed is None else timed.seconds,
    )


def mergeable(method: Method, shape: Shape) -> bool:
    """Whether a plain model can hold what the method learns on this base."""
    return method.mergeable and not any(shape.merge_refusal(site, layer) for site, layer in method.places(shape))
