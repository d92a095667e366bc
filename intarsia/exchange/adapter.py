"""An adapter between two formats: what every reader returns and every writer takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from intarsia.errors import ExchangeError
from intarsia.methods import Method, Parent, resolve
from intarsia.tasks.heads import Head, Pooling

if TYPE_CHECKING:
    from intarsia.encoder.shape import Shape

HEADLESS = "none"  # the kind of an inlay without a head


@dataclass(frozen=True, kw_only=True, eq=False)
class Adapter:
    """A method with its tensors, a head or none, labels, and what the file says about itself."""

    method: Method
    tensors: Mapping[str, Tensor]  # the method's, by its own names
    kind: str = HEADLESS
    labels: tuple[str, ...] = ()  # () if the file has none; then the number of outputs says how many are needed
    head: Head | None = None
    head_tensors: Mapping[str, Tensor] = field(default_factory=dict)
    stored_head: Mapping[str, Any] = field(default_factory=dict)  # further fields of the head: temperature, mean …
    pooling: Pooling = "mean"  # of the vectors of an adapter without a head
    # The adapters that its method, a composition, names as its parts; each becomes an inlay of its own.
    parents: Mapping[str, Adapter] = field(default_factory=dict)
    pairs: bool = False
    max_length: int | None = None
    base: str = ""  # the name that the file gives to its base
    library: str = ""  # the library and version that wrote the file, as far as it says
    folded: tuple[str, ...] = ()  # what was computed into the tensors, because the method has no option for it
    notes: tuple[str, ...] = ()  # what the user should know: where the other library's own outputs depend on chance
    name: str = ""  # of the task, for writers
    metrics: Mapping[str, Any] = field(default_factory=dict)  # for the card
    licence: str | None = None
    version: int | None = None  # of the task, for writers

    def with_labels(self, labels: tuple[str, ...] | None, kind: str | None = None) -> Adapter:
        """Return the adapter with the labels that the user gave, or with numbered ones if the file has none."""
        if self.head is None:
            if labels or kind not in (None, HEADLESS):
                raise ExchangeError("the adapter has no head, so --labels and --kind do not apply to it.")
            return self
        if kind in ("tags", "span") and self.kind == "label" and self.head.pooling != "none":
            # some classes for tokens and for texts have heads of the same names
            tokenwise = replace(self.head, pooling="none")
            return replace(self, kind=kind, head=tokenwise).with_labels(labels, kind)
        kind = kind or self.kind
        outputs = self.head.outputs
        if kind in ("score", "span"):
            needed = 1 if kind == "score" else 2
            if outputs != needed or labels:
                raise ExchangeError(
                    f"a head of the kind {kind} has {needed} outputs and no labels; this one has {outputs}"
                    + (", and labels were given." if labels else ".")
                )
            return replace(self, kind=kind, labels=())
        chosen = labels or self.labels or tuple(f"LABEL_{i}" for i in range(outputs))
        if len(chosen) != outputs or len(set(chosen)) != len(chosen):
            raise ExchangeError(
                f"the head has {outputs} outputs, so {outputs} different labels are needed; found "
                f"{len(chosen)}: {', '.join(chosen[:8])}. Give them in the order of the outputs (--labels a,b,…)."
            )
        return replace(self, kind=kind, labels=chosen)

    def without_head(self) -> Adapter:
        """Return the adapter without its head."""
        return replace(self, kind=HEADLESS, labels=(), head=None, head_tensors={}, stored_head={})

    def check(self, shape: Shape) -> None:
        """Raise unless the tensors are exactly those of the method and the head on a base of this shape."""
        for parent in self.parents.values():
            parent.check(shape)
        method = self.method_on({})
        method.check(shape)
        specs = dict(method.stored(shape))
        found = dict(self.tensors)
        if self.head is not None:
            specs |= {f"head.{n}": s for n, s in self.head.tensors(shape, method.row_width(shape)).items()}
            found |= {f"head.{n}": t for n, t in self.head_tensors.items()}
        for name in (*specs, *found):
            have = tuple(found[name].shape) if name in found else None
            want = specs[name].shape if name in specs else None
            if have != want:
                raise ExchangeError(
                    f"the tensor {name!r} of the method {self.method.name} is {have or 'missing'}; this base needs "
                    f"{want or 'no such tensor'}."
                )
        method.check_values(shape, self.tensors)

    def method_on(self, stored: Mapping[str, Parent]) -> Method:
        """Return the method with the stored inlays in the place of the adapters that it names. Those that are not
        stored yet have their names as digests."""

        def parent(name: str) -> Parent:
            return stored.get(name) or Parent(name, name, 1, self.parents[name].method)

        return resolve(self.method, parent)
