"""Importing an adapter of another library into a bank: bound to the base, checked, and stored as an inlay."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from intarsia import provenance
from intarsia.bank import succession
from intarsia.bank.entry import Entry
from intarsia.bank.inlay import Inlay
from intarsia.bank.scored import store_score
from intarsia.bank.store import Store
from intarsia.encoder.packed import pack
from intarsia.encoder.routed import Group
from intarsia.errors import ExchangeError
from intarsia.exchange.adapter import HEADLESS, Adapter
from intarsia.exchange.reading import read_adapter
from intarsia.exchange.source import Source
from intarsia.methods import Parent, parents, to_dict
from intarsia.methods.held import Held, parts_of
from intarsia.tasks.heads import pool, pooler_instead

if TYPE_CHECKING:
    from intarsia.encoder.encoder import Encoder
    from intarsia.encoder.packed import Batch
    from intarsia.tasks.learned import Learned

PROBES = ("A first text.", "Another text, of more words than the first one has.")


def add_imported(
    store: Store,
    name: str,
    source: str | Path,
    encoder: Encoder,
    *,
    format: str | None = None,
    labels: Sequence[str] | None = None,
    kind: str | None = None,
    headless: bool = False,
    base_is_the_same: bool = False,
    revision: str | None = None,
    hub: bool = False,
    check: Any = None,
    serve_anyway: bool = False,
) -> Entry:
    """Store the inlay of a foreign folder or of a repository on the hub. The adapters of a composition are stored as
    inlays of their own, named NAME-ADAPTER; if a step fails, they are removed again."""
    found, commit = _opened(source, hub, revision)
    used, adapter = read_adapter(found, encoder, format, base_is_the_same=base_is_the_same, headless=headless)
    adapter = adapter.with_labels(tuple(labels) if labels is not None else None, kind)
    origin = {
        "format": used,
        "source": found.name,
        "sha256": found.sha256,
        **({"commit": commit} if commit else {}),
        "library": adapter.library,
        "base": adapter.base,
        **({"folded": list(adapter.folded)} if adapter.folded else {}),
        **({"notes": list(adapter.notes)} if adapter.notes else {}),
    }
    training = {"imported": origin}
    parts = {part: _part(name, part, parent, encoder, training) for part, parent in adapter.parents.items()}
    for inlay in parts.values():
        store.check_name(inlay.name)
    learned = {part: inlay.learned_on(encoder) for part, inlay in parts.items()}
    inlay = inlay_of_adapter(name, adapter, encoder, training)
    check_first_answer(inlay, encoder, learned)
    if check is not None:
        _store_score(inlay, encoder, check, learned)
    stored: dict[str, Parent] = {}
    try:
        for part, own in parts.items():
            entry = store.add(own, encoder=encoder)
            stored[part] = Parent(entry.header.digest, entry.name, entry.version, adapter.parents[part].method)
        final = inlay_of_adapter(name, adapter, encoder, training, stored)
        final.metrics.update(inlay.metrics)
        final.data.update(inlay.data)
        succession.warn_of_changes(store, name, final)
        return succession.add(store, final, encoder=encoder, serve_anyway=serve_anyway)
    except BaseException:
        for parent in stored.values():
            store.remove(parent.task, parent.version, force=True)
        raise


def _part(name: str, part: str, adapter: Adapter, encoder: Encoder, training: Mapping[str, Any]) -> Inlay:
    """Return an adapter of a composition as an inlay without a head."""
    own = re.sub(r"[^A-Za-z0-9._-]", "_", f"{name}-{part}")[:64]
    return inlay_of_adapter(own, adapter, encoder, training)


def inlay_of_adapter(
    name: str,
    adapter: Adapter,
    encoder: Encoder,
    training: Mapping[str, Any],
    stored: Mapping[str, Parent] | None = None,
) -> Inlay:
    """Return an adapter as an inlay of the bank's base. `stored` are the inlays of the adapters that it names; without
    them, the inlay cannot be stored, but answers."""
    shape, own = encoder.shape, adapter.method_on(stored or {})
    method = own.count(shape)
    head = adapter.head.count(shape, own.row_width(shape)) if adapter.head else 0
    stored_head = adapter.head.to_dict() if adapter.head else {"outputs": 0, "pooling": adapter.pooling}
    limit = min(adapter.max_length or encoder.max_length, encoder.max_length)
    return Inlay(
        name=name,
        kind=adapter.kind,
        labels=adapter.labels,
        method=to_dict(own),
        head={**stored_head, **adapter.stored_head},
        encoder={k: v for k, v in encoder.description.items() if k != "parameters"},
        tensors={
            **{f"method.{k}": v for k, v in adapter.tensors.items()},
            **{f"head.{k}": v for k, v in adapter.head_tensors.items()},
        },
        parameters={"method": method, "head": head, "total": method + head, "base": shape.parameters},
        metrics={},
        training={"max_length": limit, **training},
        data={"pairs": adapter.pairs},
        versions=provenance.versions(),
        parents=tuple(parent.digest for parent in parents(own)),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def check_first_answer(inlay: Inlay, encoder: Encoder, parts: Mapping[str, Learned] | None = None) -> None:
    """Raise unless the first answers are finite numbers: finite weights can still overflow. `parts`: see `answers`."""
    if encoder.tokenizer is None:
        raise ExchangeError("the bank's base has no tokenizer, so the import cannot compute a first answer.")
    batch = pack(encoder.tokenize(PROBES, max_length=inlay.interface.max_length), encoder.device)
    states, outputs = answers(inlay, encoder, batch, parts)
    if not (bool(states.isfinite().all()) and bool(outputs.isfinite().all())):
        raise ExchangeError(
            f"the first answers of {inlay.name!r} contain NaN or infinity, so nothing was imported. The adapter's "
            "values are too large, or its scale is wrong."
        )


@torch.no_grad()
def answers(
    inlay: Inlay, encoder: Encoder, batch: Batch, parts: Mapping[str, Learned] | None = None
) -> tuple[Tensor, Tensor]:
    """Return the last states [N, d] of a batch through an inlay, and the head's logits (without a head the states).
    `parts` are the inlays on which it is built, by digest."""
    learned = inlay.learned_on(encoder, parts)
    method, tensors, shape = learned.method, learned.method_tensors, encoder.shape
    tensors = {name: tensor.to(encoder.device) for name, tensor in tensors.items()}
    weights: dict[str, Tensor] = {}
    groups = []
    if method.changes_base:
        weights = method.weights(method.phases(shape)[-1].name, shape, tensors, tensors, encoder.weights)
    else:
        held = _held(learned, encoder)
        own = parts_of([held], shape)
        groups = [Group(method, method.places(shape), held.tensors, 0, (0,), (batch.rows,), own)]
    states = encoder.forward(batch, groups, weights=weights)
    if inlay.kind == HEADLESS:
        return states, states
    rows = pool(states, batch, learned.head.pooling)
    head = {name: tensor.to(encoder.device) for name, tensor in learned.head_tensors.items()}
    pooler = pooler_instead(encoder, tensors, weights)
    return states, learned.head.logits(head, rows, encoder, pooler=pooler, weights=weights)


def _held(learned: Learned, encoder: Encoder) -> Held:
    """Return an inlay in a slot of its own, with those on which it is built."""
    tensors = {name: tensor[None].to(encoder.device) for name, tensor in learned.method_tensors.items()}
    below = {part.digest: _held(learned.parents[part.digest], encoder) for part in parents(learned.method)}
    return Held(learned.method, tensors, 0, below)


def _opened(source: str | Path, hub: bool, revision: str | None) -> tuple[Source, str | None]:
    if not hub:
        return Source(source), None
    from intarsia.exchange.hub import download

    folder, commit = download(str(source), revision)
    return Source(folder, f"hub:{source}"), commit


def _store_score(inlay: Inlay, encoder: Encoder, rows: Any, parts: Mapping[str, Learned]) -> None:
    """Score the inlay on labelled rows and store the score as that of its test part."""
    if inlay.kind == HEADLESS:
        raise ExchangeError("--check needs a head: the adapter has none, so it gives no answers to score.")
    store_score(inlay, inlay.learned_on(encoder, parts), encoder, rows)
