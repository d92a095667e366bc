"""What a method is: a small frozen config that says which sites get which tensors and what they do there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from intarsia.encoder.spec import BaseTensor, Spec
from intarsia.errors import IntarsiaError

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.noise import Noise
    from intarsia.encoder.site_view import SiteView
    from intarsia.encoder.sites import Shape, WeightShape

Tensors = Mapping[str, "Tensor"]
Category = Literal[
    "modules of its own", "changes inside layers", "weights of the base", "a sparse difference", "frozen features"
]


@dataclass(frozen=True)
class Preset:
    """A name of a method on the command line."""

    size: str | None = None  # the option that a number after the name and a dash sets
    options: Mapping[str, Any] = field(default_factory=dict)  # set already
    trains: str | None = None  # what it trains, where that is not the method's own `trains`
    alias: bool = False  # a second name for another preset: it is not listed
    after: str | None = None  # the preset that it is listed behind; None: in the method's place


@dataclass(frozen=True)
class Phase:
    """A stretch of training with tensors and a schedule of its own. Most methods have one."""

    name: str
    specs: Mapping[str, Spec]
    epochs: float = 1.0  # times the epochs asked for
    rate: float = 1.0  # times the learning rate asked for
    exact: bool = False  # its penalty's gradient is small: whole weights must not be rounded to the base's precision


class Method:
    """What every method in this folder is: a frozen dataclass derived from this. It knows nothing of training or
    serving. A method acts at sites, on its own tokens; or (`changes_base`) it trains weights of the base itself."""

    name: ClassVar[str]  # in stored inlays
    presets: ClassVar[Mapping[str, Preset]]  # its names on the command line
    category: ClassVar[Category] = "modules of its own"  # how figures mark it
    paper: ClassVar[str] = ""
    trains: ClassVar[str] = ""  # in a few words
    training_only: ClassVar[tuple[str, ...]] = ()  # options that only say how training goes, not what is computed
    recipe: ClassVar[Mapping[str, Any]] = {}  # training settings, where they differ from `Settings()`
    changes_base: ClassVar[bool] = False  # runs alone in a pass, with weights of its own in place of the base's
    mergeable: ClassVar[bool] = False  # whether `merge` can give a plain model
    cached: ClassVar[bool] = False  # trains on stored states of the plain base

    @property
    def takes_undropped(self) -> bool:
        """Whether `output` gives h to `view.bottleneck` alone, which can apply the base's dropout to it on the way."""
        return False

    @property
    def wants(self) -> tuple[str, ...]:
        """What `SiteView` shall carry beside the site's own values: "sublayer_input", "layer_input"."""
        return ()

    def check(self, shape: Shape) -> None:
        """Raise, with the reason, where the method cannot work on a base of this shape."""

    def recordable(self, shape: Shape) -> bool:
        """Whether its passes on a GPU may be recorded as a CUDA graph: `output` and `norm` must not wait for the device
        nor depend on which slots own tokens, and `view.batch_norm` is not available. A method that does not say so runs
        eagerly, with the same results."""
        return False

    def in_slots_of(self) -> Method:
        """The method whose slots it takes in recorded passes: methods of different sizes may share slots of the largest
        size, if what is left over stays 0 and has no effect."""
        return self

    @property
    def wide(self) -> bool:
        """Whether its products are large enough for the larger tiles of recorded passes."""
        return False

    def sized(self, shape: Shape) -> Method:
        """The same method with its size set, where the base decides it."""
        return self

    def matrices(self, shape: Shape) -> int:
        """Weights of its own matrices that each token is multiplied with."""
        specs = self.tensors(shape).values()
        return sum(spec.size for spec in specs if len(spec.shape) == 2 and spec.start != "base")

    def without_layers(self, tensors: Tensors, first: int, last: int) -> dict[str, Tensor]:
        """One owner's tensors, changed so that its modules in the layers from `first` to `last` have no effect."""
        raise IntarsiaError(f"{self.name} cannot be taken out of single layers.")

    def places(self, shape: Shape) -> frozenset[tuple[str, int]]:
        """The (site, layer) pairs where the method acts."""
        return frozenset()

    def trained(self, shape: Shape) -> Iterable[WeightShape]:
        """The weights of the base that the method trains."""
        return ()

    def tensors(self, shape: Shape) -> dict[str, Spec]:
        """Every trained tensor of the method on a base of this shape, by name."""
        raise NotImplementedError

    def count(self, shape: Shape) -> int:
        """Trained parameters in closed form; equal to the trained tensors of `tensors`."""
        raise NotImplementedError

    def output(self, view: SiteView, h: Tensor) -> Tensor:
        """At an output, linear or linear's input site: the method's own tokens `h` [tokens, width] → new values."""
        raise NotImplementedError

    def norm(self, view: SiteView, x: Tensor) -> Tensor:
        """At a norm site: the method's own tokens, normalised."""
        raise NotImplementedError

    def mixed(self, tensors: Tensors, states: Tensor) -> Tensor:
        """Of a `cached` method: the pooled states of all layers [rows, layers, d] → [rows, d], as a pass would give."""
        return states[:, -1]

    def row_width(self, shape: Shape) -> int:
        """The width of what the head reads."""
        return shape.width

    def pooled(self, tensors: Tensors, rows: Tensor) -> Tensor:
        """One owner's pooled rows [rows, d] → what the head reads [rows, row_width]."""
        return rows

    def phases(self, shape: Shape) -> tuple[Phase, ...]:
        return (Phase("train", self.tensors(shape)),)

    def weights(
        self, phase: str, shape: Shape, tensors: Tensors, kept: Tensors, base: Tensors, noise: Noise | None = None
    ) -> dict[str, Tensor]:
        """The weights that stand for the base's in a pass, by parameter name. `tensors` are the phase's own, `kept`
        what earlier phases left. Of the last phase, both are what the inlay holds."""
        return {}

    def penalty(
        self, phase: str, shape: Shape, tensors: Tensors, kept: Tensors, base: Tensors, noise: Noise | None = None
    ) -> Tensor | None:
        """What is added to the loss, in the pass whose `noise` its `weights` had; None: nothing, or its gradient is in
        theirs."""
        return None

    def end_phase(self, phase: str, shape: Shape, tensors: Tensors, kept: Tensors, base: Tensors) -> Ending:
        """Called when a phase that is not the last has ended."""
        return Ending()

    @property
    def touches_rows(self) -> bool:
        """Whether `pooled` or a pooler of its own changes what the head reads."""
        return False

    def merge(self, shape: Shape, tensors: Tensors, plain: Plain) -> None:
        """Change the weights of a plain model so that it computes the same."""
        raise IntarsiaError(f"{self.name} cannot be merged into the base: it computes what no weight of it does.")


@dataclass(frozen=True)
class Ending:
    """What a phase leaves behind: tensors that stay as they are (`kept`) and starts for tensors of the next phase."""

    kept: dict[str, Tensor] = field(default_factory=dict)
    starts: dict[str, Tensor] = field(default_factory=dict)
    keep_head: bool = False  # the head goes on as it is; else it starts anew


class Plain:
    """Weights of a plain model, to be changed by `Method.merge`; copies are made of those that are."""

    def __init__(self, shape: Shape, base: Tensors, at_site: Callable[[str, int, str], BaseTensor]) -> None:
        self.shape, self.base, self._at_site = shape, base, at_site
        self.changed: dict[str, Tensor] = {}

    def whole(self, parameter: str) -> Tensor:
        """A parameter's copy, to be written to."""
        if parameter not in self.changed:
            self.changed[parameter] = self.base[parameter].detach().clone()
        return self.changed[parameter]

    def at(self, site: str, layer: int, kind: str) -> Tensor:
        """The `weight` or `bias` at a site, to be written to."""
        refusal = self.shape.merge_refusal(site, layer)
        if refusal is not None:
            raise IntarsiaError(refusal)
        found = self._at_site(site, layer, kind)
        return self.whole(found.parameter)[found.rows]


def to_dict(method: Any) -> dict[str, Any]:
    """A method's config as plain JSON values."""
    options = dataclasses.asdict(method).items()
    return {"type": method.name, **{k: list(v) if isinstance(v, tuple) else v for k, v in options}}


def running_key(method: Any) -> tuple[Any, ...]:
    """Equal for methods that compute the same with the same tensors: these share one stack of slots."""
    options = dataclasses.asdict(method)
    return (method.name, *((k, v) for k, v in sorted(options.items()) if k not in method.training_only))


def lowest(method: Method, shape: Shape) -> int:
    """The lowest layer in which a method acts; 0 also where it acts in the embeddings, the top one where it acts behind
    the layers only. What enters that layer does not depend on the method."""
    found = [shape.layers - 1]
    for site, layer in method.places(shape):
        if site != "final.norm":
            found.append(max(0, layer))
    for weight in method.trained(shape):
        if not weight.behind:
            found.append(min(weight.layers, default=0))
    return min(found)


def check_least(**least: tuple[float | None, float]) -> None:
    """Each option: (value, least). None is an option that is not given."""
    for option, (value, lowest) in least.items():
        if value is not None and not value >= lowest:  # nor NaN
            raise IntarsiaError(f"{option} {value} is too small: at least {lowest} was expected.")


def check_dropout(p: float) -> None:
    if not 0 <= p < 1:
        raise IntarsiaError(f"dropout {p} cannot be: a share from 0 to below 1 was expected.")


def chosen_layers(layers: tuple[int, ...] | None, shape: Shape) -> tuple[int, ...]:
    """The layers a method lives in; None: all."""
    if layers is None:
        return tuple(range(shape.layers))
    wrong = [i for i in layers if not 0 <= i < shape.layers]
    if wrong or not layers:
        raise IntarsiaError(f"layers {list(layers)} do not fit this base: it has layers 0 to {shape.layers - 1}.")
    return layers


def sorted_layers(method: Any) -> None:
    """For `__post_init__`: equal spans are equal, however written."""
    if method.layers is not None:
        object.__setattr__(method, "layers", tuple(sorted(set(method.layers))))
