"""Merging inlays of a bank into a new one (the arithmetic is in methods/merging.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from torch import Tensor

from intarsia import provenance
from intarsia.bank import family
from intarsia.bank.inlay import Inlay
from intarsia.bank.scored import store_score
from intarsia.bank.store import Store
from intarsia.encoder.slots import start
from intarsia.errors import IntarsiaError
from intarsia.methods import parents, to_dict
from intarsia.methods.merging import Merge, Merged, merge_method, merge_named
from intarsia.tasks.headless import Headless
from intarsia.tasks.learned import HEAD, METHOD, Learned

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder

NO_HEAD = "none"
TUNED = ("temperature", "thresholds")  # of one head: a merged head has its own calibration to find


@dataclass(frozen=True)
class _Source:
    inlay: Inlay
    version: int
    learned: Learned
    weight: float

    @property
    def shown(self) -> str:
        return f"{self.inlay.name}@{self.version}"

    @property
    def seed(self) -> int | None:
        """The seed from which its random values started, if it was trained here."""
        seed, training = self.inlay.training.get("seed"), self.inlay.training
        return seed if isinstance(seed, int) and not {"imported", "merged"} & training.keys() else None


def merged(
    store: Store,
    encoder: Encoder,
    name: str,
    weights: Mapping[str, float],
    how: str,
    *,
    head: str | None = None,
    check: Any = None,
    **options: Any,
) -> Inlay:
    """Return the merge of tasks with these weights; nothing is stored. `options`: the fields of `Merge`."""
    if not isinstance(weights, Mapping) or not weights:
        raise IntarsiaError("merge expects a mapping from tasks to weights, such as {'tone': 0.7, 'tone-de': 0.3}.")
    merge = Merge(tuple(float(weight) for weight in weights.values()), how, **options)
    sources = [_source(store, encoder, task, weight) for task, weight in weights.items()]
    began, common = _start(sources, encoder)
    own = [source.learned.method_tensors for source in sources]
    methods = [source.learned.method for source in sources]
    starts = {n.removeprefix(METHOD): t for n, t in began.items() if n.startswith(METHOD)}
    done = merge_method(merge, encoder.shape, methods, own, starts, common=common)
    chosen, head_tensors = _head(sources, head, merge, began if common else None)
    inlay = _inlay(name, sources, done, chosen, head_tensors, encoder, merge, head)
    learned = family.learned_on(store, inlay, encoder)
    if check is not None:
        if isinstance(learned.task_kind, Headless):
            raise IntarsiaError(f"{name!r} has no head, so it gives no answers to score. Leave out check.")
        store_score(inlay, learned, encoder, check)
    return inlay


def _source(store: Store, encoder: Encoder, task: str, weight: float) -> _Source:
    entry = store.entry(*family.task_and_version(task))
    inlay = store.load(entry.name, entry.version)
    return _Source(inlay, entry.version, family.learned_on(store, inlay, encoder), float(weight))


def _start(sources: Sequence[_Source], encoder: Encoder) -> tuple[dict[str, Tensor], bool]:
    """Return the values that the first inlay started with, and whether all others started with the same values."""
    specs = [_specs(source, encoder) for source in sources]
    seeds = {source.seed for source in sources}
    methods = [{name: spec for name, spec in own.items() if name.startswith(METHOD)} for own in specs]
    common = len(seeds) == 1 and None not in seeds and all(other == methods[0] for other in methods[1:])
    given = {HEAD + n: t for n, t in sources[0].learned.head.starts(encoder).items()}
    drawn = start({n: s for n, s in specs[0].items() if n not in given}, encoder, sources[0].seed or 0)
    return drawn | given, common


def _specs(source: _Source, encoder: Encoder) -> dict[str, Any]:
    """Return the specs of all tensors of an inlay, in the order in which training draws their values."""
    shape, method, head = encoder.shape, source.learned.method, source.learned.head
    specs = {METHOD + n: s for n, s in method.stored(shape).items()}
    return specs | {HEAD + n: s for n, s in head.tensors(shape, method.row_width(shape)).items()}


def _head(
    sources: Sequence[_Source], named: str | None, merge: Merge, began: Mapping[str, Tensor] | None
) -> tuple[Inlay | None, dict[str, Tensor]]:
    """Return the inlay whose kind, labels and pooling the result has (None: it has no head), and the head's tensors."""
    first = sources[0]
    if named == NO_HEAD or (named is None and all(source.inlay.kind == "none" for source in sources)):
        return None, {}
    if named is not None:
        found = [s for s in sources if named in (s.shown, s.inlay.name)]
        if not found or found[0].inlay.kind == "none":
            listed = ", ".join(s.shown for s in sources if s.inlay.kind != "none")
            raise IntarsiaError(f"head {named!r} is none of the merged tasks with a head: {listed or 'none has one'}.")
        return found[0].inlay, {HEAD + n: t for n, t in found[0].learned.head_tensors.items()}
    for other in sources[1:]:
        if _asks(other) != _asks(first):
            raise IntarsiaError(
                f"{first.shown} and {other.shown} differ in their kind, labels or pooling, so their heads cannot be "
                f"merged. Name the task whose head is used: head={first.inlay.name!r} (--head), or {NO_HEAD!r}."
            )
    tensors = [source.learned.head_tensors for source in sources]
    names = list(tensors[0])
    base = {n: (began[HEAD + n] if began is not None else 0 * tensors[0][n]) for n in names}
    made = merge_named(merge.of_sums(), names, tensors, base)
    untuned = {k: v for k, v in first.inlay.head.items() if k not in TUNED}
    return dataclasses.replace(first.inlay, head=untuned), {HEAD + n: t for n, t in made.items()}


def _asks(source: _Source) -> Any:
    """Return what the heads of two inlays must agree in."""
    inlay = source.inlay
    head = {key: value for key, value in inlay.head.items() if key not in TUNED}
    return inlay.kind, inlay.labels, head, bool(inlay.data.get("pairs"))


def _inlay(
    name: str,
    sources: Sequence[_Source],
    done: Merged,
    chosen: Inlay | None,
    head_tensors: dict[str, Tensor],
    encoder: Encoder,
    merge: Merge,
    head: str | None,
) -> Inlay:
    count = done.method.count(encoder.shape)
    of_head = sum(tensor.numel() for tensor in head_tensors.values())
    lengths = [length for s in sources if (length := s.inlay.training.get("max_length")) is not None]
    used = {k: v for k, v in dataclasses.asdict(merge).items() if k not in ("weights", "how")}
    relevant = {"ties": ("scale", "density"), "dare": ("scale", "drop", "seed"), "linear": ()}.get(
        merge.how, ("scale",)
    )
    origin = {
        "how": merge.how,
        "from": [
            {"name": s.inlay.name, "version": s.version, "digest": s.inlay.digest, "weight": s.weight} for s in sources
        ],
        **{k: v for k, v in used.items() if k in relevant},
        "head": NO_HEAD if chosen is None else head or "merged",
        **({} if done.lost is None else {"relative_error": done.lost}),
    }  # fmt: skip
    return Inlay(
        name=name,
        kind="none" if chosen is None else chosen.kind,
        labels=() if chosen is None else chosen.labels,
        method=to_dict(done.method),
        head={"outputs": 0, "pooling": "mean"} if chosen is None else chosen.head,
        encoder={k: v for k, v in encoder.description.items() if k != "parameters"},
        tensors={**{METHOD + n: t.contiguous() for n, t in done.tensors.items()}, **head_tensors},
        parameters={"method": count, "head": of_head, "total": count + of_head, "base": encoder.shape.parameters},
        metrics={},
        training={**({"max_length": max(lengths)} if lengths else {}), "merged": origin},
        data={} if chosen is None else {k: chosen.data[k] for k in ("pairs", "columns") if k in chosen.data},
        versions=provenance.versions(),
        parents=tuple(parent.digest for parent in parents(done.method)),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
