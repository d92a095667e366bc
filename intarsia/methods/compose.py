"""Compositions: several methods, and frozen inlays of the bank, that act together as one method.

A part is a method, a frozen inlay (`Parent`), or the name of a task whose inlay a bank puts in its place (`resolve`).
Parts may be compositions. A composition trains and stores the tensors of the parts that are methods, under the prefixes
`0.`, `1.` …, and tensors of its own. What a parent computes, it computes with the tensors of the parent's inlay.

`docs/composition.md` has the formulas.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from intarsia.encoder.sites import PREFIX
from intarsia.errors import IntarsiaError
from intarsia.methods import composed_weights
from intarsia.methods.method import Category, Ending, Method, Phase, Spec, Tensors

if TYPE_CHECKING:
    from typing import Self

    from torch import Tensor

    from intarsia.encoder.noise import Noise
    from intarsia.encoder.shape import Shape, WeightShape
    from intarsia.encoder.site_view import SiteView

USUAL_RATE = 5e-4  # of a method whose recipe names none
MOST_PARTS = 64  # of one composition
DEEPEST = 8  # levels of compositions inside compositions, and of parents that are compositions

Part = Method | str


@dataclass(frozen=True)
class Parent(Method):
    """A frozen inlay of a bank, as a part of a composition: `version` of `task`, whose method is `method`."""

    digest: str
    task: str
    version: int
    method: Method

    name: ClassVar[str] = "parent"
    trains: ClassVar[str] = "nothing"

    def __post_init__(self) -> None:
        check_depth(self)

    def __str__(self) -> str:
        return f"{self.task}@{self.version}"

    def tensors(self, shape: Shape) -> dict[str, Spec]:
        return {}

    def count(self, shape: Shape) -> int:
        return 0

    def check(self, shape: Shape) -> None:
        self.method.check(shape)


class Composite(Method):
    """The parent class of compositions, which are frozen dataclasses with the field `parts`."""

    parts: tuple[Part, ...]
    fewest: ClassVar[int] = 1  # parts
    category: ClassVar[Category] = "modules of its own"

    def _init(self, parts: Sequence[Part], **options: Any) -> None:
        """Set the fields of a frozen dataclass, and check the parts."""
        for name, value in {"parts": tuple(parts), **options}.items():
            object.__setattr__(self, name, value)
        kind = type(self).__name__
        if not self.fewest <= len(self.parts) <= MOST_PARTS:
            limits = f"{self.fewest} to {MOST_PARTS}" if self.fewest > 1 else f"1 to {MOST_PARTS}"
            raise IntarsiaError(f"{kind} has {len(self.parts)} parts; expected {limits}.")
        for part in self.parts:
            if not isinstance(part, Method) and not (isinstance(part, str) and part.strip()):
                shown = f"the class {part.__name__}" if isinstance(part, type) else repr(part)[:60]
                raise IntarsiaError(
                    f"a part of {kind} is {shown}; expected a method such as Pfeiffer(48), or the name of a task."
                )
            own = own_method(part) if isinstance(part, Method) else None
            if own is not None and own.cached:
                raise IntarsiaError(
                    f"{kind} cannot have the part {own.name}: it reads stored states of the plain base, so nothing "
                    "can act before it. Use another method."
                )
            if own is not None and own.position_offset:
                raise IntarsiaError(
                    f"{kind} cannot have the part {own.name} with offset={own.position_offset}: it moves the positions "
                    "of the text, and the other parts were learned at their own positions. Use offset=0."
                )
            if own is not None and own.touches_rows:
                raise IntarsiaError(
                    f"{kind} cannot have the part {own.name} with these options: it changes the input of the head, "
                    "and a composition acts inside the base only. Use pooler=False."
                )
        check_depth(self)

    def __repr__(self) -> str:
        shown = [*map(repr, self.parts), *(f"{key}={value!r}" for key, value in self.options().items())]
        return f"{type(self).__name__}({', '.join(shown)})"

    def __reduce__(self) -> Any:
        return _unpickled, (type(self), self.parts, self.options())

    def options(self) -> dict[str, Any]:
        """Return the arguments of the class beside the parts."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "parts"}  # type: ignore[arg-type]

    def with_parts(self, parts: Sequence[Part]) -> Self:
        """Return the same composition of other parts."""
        return type(self)(*parts, **self.options())

    @classmethod
    def of(cls, parts: Sequence[Part], **fields: Any) -> Self:
        """Return the composition with these values of its fields."""
        return cls(*parts, **fields)

    @property
    def recipe(self) -> Mapping[str, Any]:  # type: ignore[override]
        """The recipe of the part that trains, or of that with the lowest learning rate if several do."""
        recipes = [part.recipe for part in self.parts if isinstance(part, Method) and not isinstance(part, Parent)]
        return min(recipes, key=lambda recipe: float(recipe.get("learning_rate", USUAL_RATE)), default={})

    @property
    def changes_base(self) -> bool:  # type: ignore[override]
        return any(own_method(part).changes_base for part in self.parts if isinstance(part, Method))

    @property
    def not_merged(self) -> str:
        trained = list(trained_parts(self))
        kind = next((part.name for part in trained if part.merged_as != "tensors"), None)
        if kind is not None:
            return f"a composition with the part {kind} has no sum of the same form"
        return next((part.not_merged for part in trained if part.not_merged), "")

    @cached_property
    def methods(self) -> tuple[Method, ...]:
        """The parts; raises if one of them is still a name."""
        for part in self.parts:
            if isinstance(part, str):
                raise IntarsiaError(
                    f"the composition has the task {part!r} as a part. Learn it in a bank that has this task."
                )
        return self.parts  # type: ignore[return-value]

    def part_tensors(self, number: int, tensors: Tensors) -> Tensors:
        """Return the tensors of one part, by the part's own names."""
        return composed_weights.part_tensors(number, tensors)

    def check(self, shape: Shape) -> None:
        for part in self.methods:
            part.check(shape)
        self._check_sole(shape)
        composed_weights.check(type(self).__name__, self.methods, bool(self.own_tensors(shape)), shape)

    def _check_sole(self, shape: Shape) -> None:
        """Raise if a part must act alone at a place where another part acts too."""
        methods = [own_method(part) for part in self.methods]
        for number, method in enumerate(methods):
            sole, reason = method.sole(shape)
            for other in methods[:number] + methods[number + 1 :]:
                if shared := sorted(sole & other.places(shape)):
                    site, layer = shared[0]
                    raise IntarsiaError(
                        f"{type(self).__name__} cannot have the parts {method.name} and {other.name} together: both "
                        f"act at {site} of layer {layer}, and {reason}"
                    )

    def recordable(self, shape: Shape) -> bool:
        # The keys and values of a prefix would be read by the slots of the composition, not by those of its parts.
        prefix = any(site == PREFIX for site, _ in self.places(shape))
        return not prefix and not self.changes_base and all(own_method(p).recordable(shape) for p in self.methods)

    @property
    def wide(self) -> bool:
        return any(own_method(part).wide for part in self.methods)

    def check_values(self, shape: Shape, tensors: Tensors) -> None:
        for number, part in enumerate(self.methods):
            part.check_values(shape, self.part_tensors(number, tensors))

    def sized(self, shape: Shape) -> Method:
        return self.with_parts([part.sized(shape) for part in self.methods])

    def places(self, shape: Shape) -> frozenset[tuple[str, int]]:
        return frozenset().union(*(own_method(part).places(shape) for part in self.methods))

    def sole(self, shape: Shape) -> tuple[frozenset[tuple[str, int]], str]:
        found = [own_method(part).sole(shape) for part in self.methods]
        return frozenset().union(*(places for places, _ in found)), next((why for places, why in found if places), "")

    @property
    def wants(self) -> tuple[str, ...]:
        return tuple(sorted({wanted for part in self.methods for wanted in own_method(part).wants}))

    @property
    def reads_beside(self) -> bool:
        return all(own_method(part).reads_beside for part in self.methods)

    @property
    def inverts_words(self) -> bool:
        return any(own_method(part).inverts_words for part in self.parts if isinstance(part, Method))

    def words(self, tensors: Tensors, rows: Tensor) -> Tensor:
        for number in reversed(range(len(self.methods))):  # the last that acted is undone first
            rows = own_method(self.methods[number]).words(self.part_tensors(number, tensors), rows)
        return rows

    def acting(self, view: SiteView) -> list[tuple[int, Method, SiteView]]:
        """Return the parts that act at the place of a view: their numbers, methods and views."""
        methods = enumerate(map(own_method, self.methods))
        return [(number, method, view.part(number)) for number, method in methods if view.acts(number)]

    def reads(self, view: SiteView, h: Tensor) -> Tensor:
        _, method, part = self.acting(view)[0]
        return method.reads(part, h)

    def norm(self, view: SiteView, x: Tensor) -> Tensor:
        _, method, part = self.acting(view)[-1]  # the topmost part that has its own LayerNorm here
        return method.norm(part, x)

    def phases(self, shape: Shape) -> tuple[Phase, ...]:
        return composed_weights.phases(self.methods, shape) or (Phase("train", self.tensors(shape)),)

    def weights(
        self, phase: str, shape: Shape, tensors: Tensors, kept: Tensors, base: Tensors, noise: Noise | None = None
    ) -> dict[str, Tensor]:
        return composed_weights.weights(self.methods, phase, shape, tensors, kept, base, noise)

    def end_phase(self, phase: str, shape: Shape, tensors: Tensors, kept: Tensors, base: Tensors) -> Ending:
        return composed_weights.end_phase(self.methods, phase, shape, tensors, kept, base)

    def penalty(
        self, phase: str, shape: Shape, tensors: Tensors, kept: Tensors, base: Tensors, noise: Noise | None = None
    ) -> Tensor | None:
        found = [self.own_penalty(shape, tensors)]
        for number, part in enumerate(self.methods):
            own = self.part_tensors(number, tensors), self.part_tensors(number, kept)
            found.append(part.penalty(phase, shape, *own, base, noise))
        penalties = [penalty for penalty in found if penalty is not None]
        return sum(penalties[1:], penalties[0]) if penalties else None

    def own_penalty(self, shape: Shape, tensors: Tensors) -> Tensor | None:
        """Return the penalty of the composition's own tensors, [...] or [slots, ...] each, summed over slots."""
        return None

    def trained(self, shape: Shape) -> list[WeightShape]:
        weights = {weight.name: weight for part in self.methods for weight in part.trained(shape)}
        return list(weights.values())

    def own_places(self, shape: Shape) -> Sequence[tuple[str, int]]:
        """Return the (site, layer) pairs where tensors of the composition itself act."""
        return ()

    def own_tensors(self, shape: Shape) -> dict[str, Spec]:
        """Return the tensors that belong to the composition itself, by name."""
        return {}

    def own_count(self, shape: Shape) -> int:
        """Return the number of trained parameters that belong to the composition itself, in closed form."""
        return 0

    def tensors(self, shape: Shape) -> dict[str, Spec]:
        return self._of_parts(lambda part: part.tensors(shape)) | self.own_tensors(shape)

    def stored(self, shape: Shape) -> dict[str, Spec]:
        return self._of_parts(lambda part: part.stored(shape)) | self.own_tensors(shape)

    def _of_parts(self, specs: Callable[[Method], Mapping[str, Spec]]) -> dict[str, Spec]:
        return {f"{i}.{name}": spec for i, part in enumerate(self.methods) for name, spec in specs(part).items()}

    def count(self, shape: Shape) -> int:
        return sum(part.count(shape) for part in self.methods) + self.own_count(shape)

    def matrices(self, shape: Shape) -> int:
        own = sum(s.size for s in self.own_tensors(shape).values() if len(s.shape) == 2 and s.start != "base")
        return sum(own_method(part).matrices(shape) for part in self.methods) + own


def _unpickled(kind: type[Composite], parts: Sequence[Part], options: Mapping[str, Any]) -> Composite:
    return kind(*parts, **options)


def own_method(part: Method) -> Method:
    """Return the method that computes what a part computes."""
    return part.method if isinstance(part, Parent) else part


def inner(method: Part) -> tuple[Part, ...]:
    """Return the parts of a composition, or the method of a parent."""
    if isinstance(method, Composite):
        return method.parts
    return (method.method,) if isinstance(method, Parent) else ()


def names(method: Method) -> tuple[str, ...]:
    """Return the names of tasks that still stand for their inlays, each once, in order."""
    found = [name for part in inner(method) for name in ([part] if isinstance(part, str) else names(part))]
    return tuple(dict.fromkeys(found))


def resolve(method: Method, lookup: Callable[[str], Parent]) -> Method:
    """Return the method with `lookup(name)` in the place of each name of a task."""
    if not isinstance(method, Composite):
        return method
    return method.with_parts([lookup(p) if isinstance(p, str) else resolve(p, lookup) for p in method.parts])


def parents(method: Method) -> tuple[Parent, ...]:
    """Return the frozen inlays on which a method is built, and those on which they are built, each digest once."""
    found: dict[str, Parent] = {}
    for parent in _all_parents(method):
        found.setdefault(parent.digest, parent)
    return tuple(found.values())


def direct_parents(method: Part) -> tuple[Parent, ...]:
    """Return the frozen inlays that are parts of a method, without those on which they are built."""
    if isinstance(method, Parent):
        return (method,)
    return tuple(parent for part in inner(method) for parent in direct_parents(part))


def _all_parents(method: Part) -> Iterator[Parent]:
    if isinstance(method, Parent):
        yield method
    for part in inner(method):
        yield from _all_parents(part)


def swap(method: Method, others: Mapping[str, Parent]) -> Method:
    """Return the method with other frozen inlays in the place of those with these digests.

    Only the method's own parts are replaced, not the parents of a parent: these belong to another inlay.
    """
    if isinstance(method, Parent):
        return others.get(method.digest, method)
    if not isinstance(method, Composite):
        return method
    return method.with_parts([part if isinstance(part, str) else swap(part, others) for part in method.parts])


def trained_parts(method: Part) -> Iterator[Method]:
    """Yield the methods in a composition that train, at every depth; for another method, the method itself."""
    if isinstance(method, Composite):
        for part in method.methods:
            yield from trained_parts(part)
    elif isinstance(method, Method) and not isinstance(method, Parent):
        yield method


def parent_tensors(method: Part, parents: Mapping[str, Tensors]) -> dict[str, Tensor]:
    """Return the tensors of the frozen inlays under the names that they have in a composition: `0.index`, `1.0.values`.

    `parents`: the tensors of inlays alone, by digest; inlays that are not given are left out.
    """
    found: dict[str, Tensor] = {}
    for number, part in enumerate(method.methods if isinstance(method, Composite) else ()):
        inside = parent_tensors(own_method(part), parents)
        if isinstance(part, Parent):
            inside |= parents.get(part.digest, {})
        found |= {f"{number}.{name}": tensor for name, tensor in inside.items()}
    return found


def check_depth(method: Method) -> None:
    """Raise if compositions and parents are nested too deeply."""
    level: Sequence[Part] = (method,)
    for _ in range(2 * DEEPEST):  # a parent and its composition are two levels
        level = [part for outer in level for part in inner(outer)]
        if not level:
            return
    raise IntarsiaError(f"compositions are nested more than {DEEPEST} levels deep.")
