"""The common class of methods: a frozen config that defines the sites, the tensors, and the computation of a method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from intarsia.encoder.spec import BaseTensor, Spec
from intarsia.errors import IntarsiaError, check_choice

if TYPE_CHECKING:
    from torch import Tensor

    from intarsia.encoder.compiled_site import CompiledSite
    from intarsia.encoder.noise import Noise
    from intarsia.encoder.shape import Shape, WeightShape
    from intarsia.encoder.site_view import SiteView

ALL_BUT_LAST = "all-but-last"
# The layers of a method: None means all; "all-but-last" leaves out the last layer, as MAD-X 2.0 does.
Layers = tuple[int, ...] | Literal["all-but-last"] | None
LARGEST = 2**24  # of an option, unless its method has a lower limit

Tensors = Mapping[str, "Tensor"]
MergedAs = Literal["tensors", "low rank", "entries"]
Category = Literal[
    "modules of its own", "changes inside layers", "weights of the base", "a sparse difference", "frozen features"
]


@dataclass(frozen=True)
class Preset:
    """A name of a method on the command line."""

    size: str | None = None  # the option that the number in `name-number` sets
    options: Mapping[str, Any] = field(default_factory=dict)  # the options that the name sets
    trains: str | None = None  # replaces the method's `trains`
    alias: bool = False  # a second name for another preset, left out of listings
    after: str | None = None  # the preset that precedes it in listings; None: the position of its method


@dataclass(frozen=True)
class Phase:
    """A part of the training with its own tensors and schedule. Most methods have a single phase."""

    name: str
    specs: Mapping[str, Spec]
    epochs: float = 1.0  # multiplies the epochs in the settings
    rate: float = 1.0  # multiplies the learning rate in the settings
    exact: bool = False  # keep whole weights in float32: its penalty's gradient is too small for the base's precision


class Method:
    """The parent class of all methods, which are frozen dataclasses. It does not depend on training or serving.

    A method acts at sites, on its own tokens; or, with `changes_base`, it replaces weights of the base.
    """

    name: ClassVar[str]  # the name in stored inlays
    presets: ClassVar[Mapping[str, Preset]]  # its names on the command line
    category: ClassVar[Category] = "modules of its own"  # selects the marker in figures
    paper: ClassVar[str] = ""
    trains: ClassVar[str] = ""  # a short description of the trained parameters
    training_only: ClassVar[tuple[str, ...]] = ()  # options that change only the training, not the computed function
    # Options that are newer than stored inlays of the method. At its default, such an option is left out of the stored
    # config, so that the config of an old inlay does not change when it is written again.
    newer: ClassVar[tuple[str, ...]] = ()
    recipe: ClassVar[Mapping[str, Any]] = {}  # training settings that differ from `Settings()`
    changes_base: ClassVar[bool] = False  # its weights replace the base's, so it runs exclusively in a pass
    mergeable: ClassVar[bool] = False  # whether `merge` is implemented
    # What methods/merging.py adds up to merge inlays: the tensors, products of two, or the entries of a difference.
    merged_as: ClassVar[MergedAs] = "tensors"
    cached: ClassVar[bool] = False  # trains on cached states of the plain base

    @property
    def takes_undropped(self) -> bool:
        """Whether `output` passes h only to `view.bottleneck`, which can then apply the base's dropout to h."""
        return False

    @property
    def position_offset(self) -> int:
        """The number added to the positions of the method's own tokens. Where it is not 0, passes are not recorded,
        and the method acts in the embeddings."""
        return 0

    @property
    def wants(self) -> tuple[str, ...]:
        """The additional states that the method reads from `SiteView`: "sublayer_input", "layer_input"."""
        return ()

    @property
    def not_merged(self) -> str:
        """The reason why inlays of the method cannot be merged with each other; empty if they can."""
        return ""

    def check(self, shape: Shape) -> None:
        """Raise an error with the reason if the method cannot work on a base of this shape."""

    def recordable(self, shape: Shape) -> bool:
        """Return whether its passes on a GPU can be recorded as a CUDA graph.

        Then `output` and `norm` must not wait for the device, must not depend on which slots own tokens, and must not
        call `view.batch_norm`. Other methods run eagerly, with the same results.
        """
        return False

    def compiled(self, shape: Shape) -> Mapping[tuple[str, int], CompiledSite] | None:
        """Describe what the method does in the layers, by sub-layer ("attention", "ffn") or linear site, and layer, if
        that is all it does there: its rows then run in compiled passes on CPUs. None: they run in PyTorch."""
        return None

    def compiled_parts(self, shape: Shape) -> Sequence[Mapping[tuple[str, int], CompiledSite]] | None:
        """Return `compiled` of a composition's parts that are none, in order, or that of the method itself."""
        found = self.compiled(shape)
        return None if found is None else (found,)

    def in_slots_of(self) -> Method:
        """Return the method whose slots this method uses in recorded passes.

        Methods of different sizes can share slots of the largest size if the unused part stays 0 and has no effect.
        """
        return self

    @property
    def wide(self) -> bool:
        """Whether its matrix products are large enough for the larger tiles of recorded passes."""
        return False

    def sized(self, shape: Shape) -> Method:
        """Return the method with its size set, if the size depends on the base."""
        return self

    def matrices(self, shape: Shape) -> int:
        """Return the number of weights in the method's own matrices that multiply each token."""
        specs = self.tensors(shape).values()
        return sum(spec.size for spec in specs if len(spec.shape) == 2 and spec.start != "base")

    def without_layers(self, tensors: Tensors, first: int, last: int) -> dict[str, Tensor]:
        """Return one owner's tensors, changed so that the method has no effect in the layers `first` to `last`."""
        raise IntarsiaError(f"the method {self.name} cannot be removed from single layers; use a bottleneck method.")

    def places(self, shape: Shape) -> frozenset[tuple[str, int]]:
        """Return the (site, layer) pairs where the method acts."""
        return frozenset()

    def trained(self, shape: Shape) -> Iterable[WeightShape]:
        """Return the weights of the base that the method trains."""
        return ()

    def tensors(self, shape: Shape) -> dict[str, Spec]:
        """Return the tensors of the method on a base of this shape, by name."""
        raise NotImplementedError

    def stored(self, shape: Shape) -> dict[str, Spec]:
        """Return all tensors that an inlay of the method has on a base of this shape, by name."""
        return self.tensors(shape)

    def check_values(self, shape: Shape, tensors: Tensors) -> None:
        """Raise if a value of the `stored` tensors cannot be used. (Shapes, types and NaN are checked elsewhere.)"""

    def count(self, shape: Shape) -> int:
        """Return the number of trained parameters in closed form; it equals the size of the trained `tensors`."""
        raise NotImplementedError

    def output(self, view: SiteView, h: Tensor) -> Tensor:
        """Return new values for the method's own tokens `h` [tokens, width] at an output, linear or input site."""
        raise NotImplementedError

    def norm(self, view: SiteView, x: Tensor) -> Tensor:
        """Return the method's own tokens, normalised, at a norm site."""
        raise NotImplementedError

    # What compositions ask of their parts.

    def change(self, view: SiteView, h: Tensor) -> Tensor:
        """Return the difference of `output` from `h`."""
        return self.output(view, h) - h

    def reads(self, view: SiteView, h: Tensor) -> Tensor:
        """Return what the method reads at the output of a sub-layer or a layer, where the base gives `h`."""
        return h

    @property
    def reads_beside(self) -> bool:
        """Whether its change at the output of a sub-layer does not depend on that output."""
        return False

    def sole(self, shape: Shape) -> tuple[frozenset[tuple[str, int]], str]:
        """Return the places where no other part of a composition can act, and the reason."""
        return frozenset(), ""

    def mixed(self, tensors: Tensors, states: Tensor) -> Tensor:
        """For a `cached` method: pooled states of all layers [rows, layers, d] → [rows, d], as a pass computes it."""
        return states[:, -1]

    def row_width(self, shape: Shape) -> int:
        """Return the width of the head's input."""
        return shape.width

    def pooled(self, tensors: Tensors, rows: Tensor) -> Tensor:
        """One owner's pooled rows [rows, d] → the head's input [rows, row_width]."""
        return rows

    def phases(self, shape: Shape) -> tuple[Phase, ...]:
        """Return the phases of training, in order."""
        return (Phase("train", self.tensors(shape)),)

    def weights(
        self, phase: str, shape: Shape, tensors: Tensors, kept: Tensors, base: Tensors, noise: Noise | None = None
    ) -> dict[str, Tensor]:
        """Return the weights that replace the base's in a pass, by parameter name.

        `tensors` are the tensors of the phase; `kept` are tensors of earlier phases. After the last phase the inlay
        stores both.
        """
        return {}

    def penalty(
        self, phase: str, shape: Shape, tensors: Tensors, kept: Tensors, base: Tensors, noise: Noise | None = None
    ) -> Tensor | None:
        """Return the penalty that is added to the loss. `noise` is the noise that `weights` received in this pass.

        If the method does not change the base, `tensors` may be those of all slots, [slots, …], and the penalty is the
        sum over slots.
        None: there is no penalty, or the backward of `weights` adds its gradient.
        """
        return None

    def end_phase(self, phase: str, shape: Shape, tensors: Tensors, kept: Tensors, base: Tensors) -> Ending:
        """Return the result of a phase for the next phase. Called at the end of every phase except the last."""
        return Ending()

    @property
    def inverts_words(self) -> bool:
        """Whether `words` changes what the word head compares with the word embeddings."""
        return False

    def words(self, tensors: Tensors, rows: Tensor) -> Tensor:
        """One owner's output of the word head's norm [rows, e] → what is compared with the word embeddings."""
        return rows

    @property
    def touches_rows(self) -> bool:
        """Whether `pooled` or a trained pooler changes the head's input."""
        return False

    def merge(self, shape: Shape, tensors: Tensors, plain: Plain) -> None:
        """Change the weights of a plain model so that it computes the same outputs as the method."""
        raise IntarsiaError(
            f"the method {self.name} cannot be merged into the base: no weights of the base give the same outputs. "
            "Serve the inlay from a bank instead."
        )


@dataclass(frozen=True)
class Ending:
    """The result of a phase: tensors that stay fixed (`kept`), and initial values for the next phase (`starts`)."""

    kept: dict[str, Tensor] = field(default_factory=dict)
    starts: dict[str, Tensor] = field(default_factory=dict)
    keep_head: bool = False  # True: the head continues; False: it is initialised again


class Plain:
    """Weights of a plain model that `Method.merge` changes. Changed weights are copies; the base stays as it is."""

    def __init__(self, shape: Shape, base: Tensors, at_site: Callable[[str, int, str], BaseTensor]) -> None:
        self.shape, self.base, self._at_site = shape, base, at_site
        self.changed: dict[str, Tensor] = {}

    def whole(self, parameter: str) -> Tensor:
        """Return a copy of a parameter that the caller may write to."""
        if parameter not in self.changed:
            self.changed[parameter] = self.base[parameter].detach().clone()
        return self.changed[parameter]

    def at(self, site: str, layer: int, kind: str) -> Tensor:
        """Return a copy of the `weight` or `bias` at a site that the caller may write to."""
        refusal = self.shape.merge_refusal(site, layer)
        if refusal is not None:
            raise IntarsiaError(refusal)
        found = self._at_site(site, layer, kind)
        return self.whole(found.parameter)[found.rows]


def to_dict(method: Any) -> dict[str, Any]:
    """Return the config of a method as plain JSON values, without `newer` options that have their default.

    The configs of its parts keep their types too.
    """
    defaults = {f.name: f.default for f in dataclasses.fields(method) if f.name in method.newer}
    options = {k: v for k, v in _options(method).items() if k not in defaults or v != defaults[k]}
    return {"type": method.name, **{name: _plain(value) for name, value in options.items()}}


@lru_cache(maxsize=1024)
def running_key(method: Any) -> tuple[Any, ...]:
    """Return a key that is equal for methods that compute the same function of the same tensors: they share slots.

    Compositions of one structure have equal keys, whatever inlays are their parents.
    """
    stored, options = to_dict(method), _options(method)
    if method.name == "parent":
        return method.name, running_key(options["method"])
    shown = [k for k in sorted(options) if k in stored and k not in method.training_only]
    return (method.name, *((k, _key(options[k])) for k in shown))


def _options(method: Any) -> dict[str, Any]:
    return {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return to_dict(value) if isinstance(value, Method) else value


def _key(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_key, value))
    return running_key(value) if isinstance(value, Method) else value


def lowest(method: Method, shape: Shape) -> int:
    """Return the lowest layer in which a method acts. The states that enter that layer do not depend on the method.

    The result is 0 if the method acts in the embeddings, and the top layer if it acts only after the layers.
    """
    if method.position_offset:
        return 0
    layers = [shape.layers - 1]
    for site, layer in method.places(shape):
        if site != "final.norm":
            layers.append(max(0, layer))
    for weight in method.trained(shape):
        if not weight.behind:
            layers.append(min(weight.layers, default=0))
    return min(layers)


def check_least(**limits: tuple[float | None, float] | tuple[float | None, float, float]) -> None:
    """Raise if an option, given as (value, least) or (value, least, most), is out of range. None means not set."""
    for option, (value, least, *rest) in limits.items():
        most = rest[0] if rest else LARGEST
        if value is not None and not value >= least:  # also rejects NaN
            raise IntarsiaError(f"{option} {value} is too small: at least {least} was expected.")
        if value is not None and value > most:
            raise IntarsiaError(f"{option} {value:.6g} is too large: at most {most} was expected.")


def check_dropout(p: float) -> None:
    """Raise unless `p` is a valid dropout probability."""
    if not 0 <= p < 1:
        raise IntarsiaError(f"dropout {p} is not valid: expected a probability of at least 0 and below 1.")


def chosen_layers(layers: Layers, shape: Shape) -> tuple[int, ...]:
    """Return the layers of a method."""
    if layers is None:
        return tuple(range(shape.layers))
    if layers == ALL_BUT_LAST:
        if shape.layers == 1:
            raise IntarsiaError(f"layers {ALL_BUT_LAST!r} leaves nothing: this base has a single layer.")
        return tuple(range(shape.layers - 1))
    assert not isinstance(layers, str)
    wrong = [i for i in layers if not 0 <= i < shape.layers]
    if wrong or not layers:
        raise IntarsiaError(f"layers {list(layers)} are not valid: this base has layers 0 to {shape.layers - 1}.")
    return layers


def sorted_layers(method: Any) -> None:
    """Sort the layers of a method in `__post_init__`, so that equal sets of layers compare equal."""
    if isinstance(method.layers, str):
        check_choice("layers", method.layers, (ALL_BUT_LAST,))
    elif method.layers is not None:
        object.__setattr__(method, "layers", tuple(sorted(set(method.layers))))
