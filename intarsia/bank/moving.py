"""Moving an inlay to another base of the same shape.

Adapters, low-rank and sparse differences, prefixes and gains move as they are. Tensors that started as the base's own
(LayerNorms, biases, whole weights) move as differences: tensor - old base's + new base's.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from torch import Tensor

from intarsia import provenance
from intarsia.bank import family, succession
from intarsia.bank.entry import Entry
from intarsia.bank.inlay import Inlay
from intarsia.bank.scored import score_of
from intarsia.bank.store import Store
from intarsia.encoder.encoder import Encoder
from intarsia.encoder.shape import Shape
from intarsia.encoder.slots import start
from intarsia.encoder.spec import Spec
from intarsia.errors import IntarsiaError, IntarsiaWarning, Refused
from intarsia.methods import Method, Parent, from_dict, swap, to_dict
from intarsia.methods import parents as parents_of
from intarsia.methods.compose import direct_parents
from intarsia.methods.sparse import split
from intarsia.tasks.learned import HEAD, METHOD, Learned


class Side(NamedTuple):
    """A bank's folder, and its base."""

    store: Store
    encoder: Encoder


def check_rows(entry: Entry, check: Any) -> None:
    """Raise unless there are labelled rows for a task with a head, and none for one without."""
    if entry.header.kind != "none" and check is None:
        raise IntarsiaError(
            f"a moved inlay is scored on the new base before it is kept: give labelled rows of {entry.name!r} (check=, "
            "--check ROWS)."
        )
    if entry.header.kind == "none" and check is not None:
        raise IntarsiaError(f"{entry.name!r} has no head, so it gives no answers to score. Leave out check.")


def move(source: Side, target: Side, entry: Entry, check: Any, new_name: str, *, serve_anyway: bool) -> Entry:
    """Move a task, with the inlays on which it is built, and return its entry in the target."""
    inlay = source.store.load(entry.name, entry.version)
    old, new = source.encoder, target.encoder
    _check_bases(old, new)
    learned = family.learned_on(source.store, inlay, old)
    others = {part.digest: _moved_parent(source, target, part) for part in direct_parents(learned.method)}
    made, on_new = _moved(inlay, entry.version, learned, swap(learned.method, others), old, target)
    if check is not None:
        before, after = score_of(inlay, learned, old, check), score_of(made, on_new, new, check)
        made.training["moved"] |= {
            "metric": after["metric"],
            "old_score": before["test"]["value"],
            "new_score": after["test"]["value"],
        }
        made.metrics.update({"metric": after["metric"], "test": after["test"]})
        made.data["test_sha256"] = after["sha256"]
    made = dataclasses.replace(made, name=new_name)
    succession.warn_of_changes(target.store, new_name, made)
    return succession.add(target.store, made, encoder=new, serve_anyway=serve_anyway)


def _moved_parent(source: Side, target: Side, part: Parent) -> Parent:
    """Return a parent on the target's base: the one that was moved before, or a new one."""
    there = _moved_before(target.store, part.digest)
    if there is None:
        found = source.store.find(part.digest)
        if found is None:
            raise family.missing(f"A method that is built on {part}", [str(part)])
        inlay = source.store.load(found.name, found.version)
        learned = family.learned_on(source.store, inlay, source.encoder)
        others = {above.digest: _moved_parent(source, target, above) for above in direct_parents(learned.method)}
        made, _ = _moved(inlay, found.version, learned, swap(learned.method, others), source.encoder, target)
        serve = not target.store.has(made.name)
        there = target.store.add(made, encoder=target.encoder, serve=serve)
    return Parent(there.header.digest, there.name, there.version, from_dict(there.header.method))


def _moved_before(store: Store, digest: str) -> Entry | None:
    return next(
        (e for e in store.mentioning([digest]) if (e.header.training.get("moved") or {}).get("digest") == digest), None
    )


def _moved(
    inlay: Inlay, version: int, learned: Learned, method: Method, old: Encoder, target: Side
) -> tuple[Inlay, Learned]:
    """Return an inlay on the target's base, with `method` in the place of its own, which has the old parents."""
    new = target.encoder
    same_words = _check_words(inlay, learned, old, new)
    shape = new.shape
    method.check(shape)
    specs = {METHOD + n: spec for n, spec in method.stored(shape).items()}
    specs |= {HEAD + n: spec for n, spec in learned.head.tensors(shape, method.row_width(shape)).items()}
    origin = {
        "name": inlay.name,
        "version": version,
        "digest": inlay.digest,
        "from": {"name": old.name, "fingerprint": old.fingerprint},
        "to": {"name": new.name, "fingerprint": new.fingerprint},
        "same_vocabulary": same_words,
    }
    made = dataclasses.replace(
        inlay,
        method=to_dict(method),
        encoder={k: v for k, v in new.description.items() if k != "parameters"},
        tensors=moved_tensors(inlay.tensors, specs, old, new),
        parameters={**inlay.parameters, "base": shape.parameters},
        metrics={k: v for k, v in inlay.metrics.items() if k == "metric"},
        training={**inlay.training, "moved": origin},
        data={k: v for k, v in inlay.data.items() if k != "test_sha256"},
        versions=provenance.versions(),
        parents=tuple(part.digest for part in parents_of(method)),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        digest="",
    )
    return made, family.learned_on(target.store, made, new)


def moved_tensors(
    tensors: Mapping[str, Tensor], specs: Mapping[str, Spec], old: Encoder, new: Encoder
) -> dict[str, Tensor]:
    """Return the tensors on the new base: as they are, or as differences from the old base's."""
    absolute = {name: spec for name, spec in specs.items() if spec.start == "base" and name in tensors}
    before, after = start(absolute, old, 0), start(absolute, new, 0)
    return {
        name: t - before[name].to(t.device) + after[name].to(t.device) if name in absolute else t
        for name, t in tensors.items()
    }


def _check_bases(old: Encoder, new: Encoder) -> None:
    if old.fingerprint == new.fingerprint:
        raise Refused("both banks have the same base, so nothing needs to be moved. Copy the task (intarsia copy).")
    differing = next((part for part in _sizes(old.shape) if _sizes(old.shape)[part] != _sizes(new.shape)[part]), None)
    if differing is not None:
        a, b = _sizes(old.shape)[differing], _sizes(new.shape)[differing]
        shown = f": {a} and {b}" if isinstance(a, int | str) else ""
        raise Refused(
            f"the bases have different shapes: {old.name} and {new.name} differ in their {differing}{shown}. An inlay "
            "moves only to a base of the same shape."
        )


def _sizes(shape: Shape) -> dict[str, Any]:
    return {
        "family": shape.family, "layers": shape.layers, "width": shape.width, "heads": shape.heads,
        "linear layers": shape.linears, "norms": shape.norms,
    }  # fmt: skip


def _check_words(inlay: Inlay, learned: Learned, old: Encoder, new: Encoder) -> bool:
    """Return whether both bases have one vocabulary; raise if they do not and the inlay depends on it."""
    if _vocabulary(old) == _vocabulary(new):
        return True
    if inlay.kind == "words" or _trains_words(learned, old.shape):
        what = "predicts words" if inlay.kind == "words" else "changes the word embeddings"
        raise Refused(
            f"{inlay.name!r} {what}, and the bases {old.name} and {new.name} have different vocabularies. Move it to a "
            "base with the same vocabulary, or learn it there."
        )
    warnings.warn(
        f"the bases {old.name} and {new.name} have different vocabularies: {inlay.name!r} reads its texts in other "
        "tokens than those it was trained on.",
        IntarsiaWarning,
        stacklevel=5,
    )
    return False


def _vocabulary(encoder: Encoder) -> Any:
    return None if encoder.tokenizer is None else encoder.tokenizer.get_vocab()


def _trains_words(learned: Learned, shape: Shape) -> bool:
    method, own = learned.method, learned.method_tensors
    trained = list(method.trained(shape))
    if "index" in own:
        trained = [weight for weight, _, _ in split(trained, own["index"])]
    return shape.words.name in {weight.name for weight in trained}
