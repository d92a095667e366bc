"""Whether a new version takes the place of the served one, and what its users should know before it does."""

from __future__ import annotations

import warnings
from typing import Any

from intarsia.bank.description import Description
from intarsia.bank.entry import Entry
from intarsia.bank.inlay import Inlay
from intarsia.bank.store import Store
from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaWarning, UnknownTask
from intarsia.formatting import score
from intarsia.tasks.examples import TaskData

LABELS_SHOWN = 8


def warn_of_changes(store: Store, name: str, new: TaskData | Inlay) -> None:
    """Warn before a new version of a task is learned or stored if it has another kind or other labels than the served
    one."""
    served = _served(store, name)
    if served is None:
        return
    old, changes = served.header, []
    if old.kind != new.kind:
        changes.append(f"is of the kind {new.kind} (until now {old.kind})")
    elif set(old.labels) != set(new.labels):
        gone, added = _listed(set(old.labels) - set(new.labels)), _listed(set(new.labels) - set(old.labels))
        both = [f"no longer has {'the labels' if ',' in gone else 'the label'} {gone}"] if gone else []
        both += [f"has the new {'labels' if ',' in added else 'label'} {added}"] if added else []
        changes += [" and ".join(both)]
    for change in changes:
        warnings.warn(
            f"the new version of {name!r} {change}. Programs that read the answers of {name!r} must expect this; "
            f"give it another name to keep version {served.version} served.",
            IntarsiaWarning,
            stacklevel=3,
        )


def add(store: Store, inlay: Inlay, *, encoder: Encoder | None = None, serve_anyway: bool = False) -> Entry:
    """Store a new version, and serve it unless it scores worse than the served one on the same test part."""
    served = _served(store, inlay.name)
    if served is None or serve_anyway or not _scores_worse(inlay, served.header):
        return store.add(inlay, encoder=encoder)
    entry = store.add(inlay, encoder=encoder, serve=False)
    old, new = served.header.metrics["test"], entry.header.metrics["test"]
    before, after = score(old["value"]), score(new["value"])
    if before == after:  # the difference is in further digits
        before, after = f"{100 * old['value']:.3f}", f"{100 * new['value']:.3f}"
    warnings.warn(
        f"{inlay.name} version {entry.version} is kept but not served: its {inlay.metrics['metric']}, {after}, is "
        f"below the {before} of version {served.version} on the same {new['examples']:,} test examples. To serve it "
        f"all the same: intarsia restore {inlay.name} {entry.version}, or learn with --serve-anyway.",
        IntarsiaWarning,
        stacklevel=4,
    )
    return entry


def _served(store: Store, name: str) -> Entry | None:
    """Return the served version of a task if there is one and it is intact."""
    try:
        entry = store.entry(name)
    except UnknownTask:
        return None
    return entry if entry.state == "ok" else None


def _scores_worse(new: Description, old: Description) -> bool:
    test, before = new.metrics.get("test"), old.metrics.get("test")
    if not test or not before or new.metrics.get("metric") != old.metrics.get("metric") or new.kind != old.kind:
        return False
    values = test.get("value"), before.get("value")  # None: the metric was not defined
    return None not in values and _same_test_part(new.data, old.data) and bool(values[0] < values[1])


def _same_test_part(new: dict[str, Any], old: dict[str, Any]) -> bool:
    if "test_sha256" in old:
        return bool(old["test_sha256"] == new.get("test_sha256"))
    return old.get("sha256") is not None and old["sha256"] == new.get("sha256")  # the hash of all parts


def _listed(labels: set[str]) -> str:
    shown = ", ".join(sorted(labels)[:LABELS_SHOWN])
    return shown + (f" … ({len(labels)})" if len(labels) > LABELS_SHOWN else "")
