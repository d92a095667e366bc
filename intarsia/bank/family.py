"""Families: a composed inlay and the frozen inlays (its parents) on which it is built, which a bank finds by digest."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from intarsia.bank.entry import Entry
from intarsia.errors import IntarsiaError, MissingParent, Refused, UnknownTask, did_you_mean

if TYPE_CHECKING:
    from intarsia.bank.description import Description
    from intarsia.bank.inlay import Inlay
    from intarsia.encoder.encoder import Encoder
    from intarsia.methods import Method, Parent
    from intarsia.tasks.learned import Learned
    from intarsia.train.job import Job

LISTED = 5


class Store(Protocol):
    """What these functions need of a bank's folder."""

    def entry(self, name: str, version: int | None = None) -> Entry: ...
    def load(self, name: str, version: int | None = None) -> Inlay: ...
    def find(self, digest: str) -> Entry | None: ...
    def relatives(self, digests: Collection[str]) -> list[Entry]: ...


Loaded = MutableMapping[str, "Learned"]  # parents by digest; see `shared_parents`


def shared_parents() -> Loaded:
    """Return a mapping that holds a parent while an inlay that is built on it is in use, and no longer."""
    return WeakValueDictionary()


def parent_named(store: Store, name: str) -> Parent:
    """Return the frozen inlay that `task` (its served version) or `task@2` names."""
    from intarsia.methods import COMPOSITIONS, PRESETS, Parent, from_dict

    task, version = task_and_version(name)
    try:
        entry = store.entry(task, version)
    except UnknownTask as error:
        meant = "" if version is not None else did_you_mean(task, [*PRESETS, *COMPOSITIONS, *_sizes(task)])
        method = meant.replace("Did you mean", "If you mean a method: did you mean")
        raise UnknownTask(f"{error}{method}") from None
    header = entry.header
    check_parents(store, header, entry.version)
    return Parent(header.digest, entry.name, entry.version, from_dict(header.method))


def task_and_version(name: str) -> tuple[str, int | None]:
    """Return the parts of `task@2`; the version of `task` is None."""
    if not isinstance(name, str):
        raise IntarsiaError(f"expected the name of a task, such as 'topic' or 'topic@2'; found {name!r:.60}.")
    task, at, number = name.strip().partition("@")
    if at and not (task and number.isascii() and number.isdecimal()):
        raise IntarsiaError(f"{name!r} is not a task with a version; expected a form such as {task or 'task'}@2.")
    return task, int(number) if at else None


def swap_pairs(given: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Return the pairs of a parent and the task whose inlay takes its place."""
    if given is None:
        return ()
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for pair in given.items() for name in pair):
        raise IntarsiaError(f"swap: expected a mapping such as {{'medical': 'legal'}}, found {given!r:.60}.")
    return tuple(given.items())


def _sizes(name: str) -> list[str]:
    """Return the names of methods with the size at the end of `name`: `pfeifer-48` is close to `pfeiffer-48`."""
    from intarsia.methods import PRESETS

    size = name.rpartition("-")[2]
    return [f"{preset}-{size}" for preset, p in PRESETS.items() if p.size and size[:1].isdigit()]


def resolved(store: Store, method: Method) -> Method:
    """Return the method with the bank's inlays in the place of the names of tasks."""
    from intarsia.bank.schema import MOST_PARENTS
    from intarsia.methods import parents, resolve

    found = resolve(method, lambda name: parent_named(store, name))
    if (count := len(parents(found))) > MOST_PARENTS:
        raise IntarsiaError(f"the method is built on {count} inlays; expected at most {MOST_PARENTS}.")
    return found


def load_parents(store: Store, method: Method, encoder: Encoder, loaded: Loaded | None = None) -> dict[str, Learned]:
    """Return the frozen inlays on which a method is built, and those on which they are built, by digest.

    Those among `loaded` are taken from there; the others are added to it.
    """
    from intarsia.methods import parents

    held = shared_parents() if loaded is None else loaded
    found: dict[str, Learned] = {}
    for part in parents(method):
        _load(part, store, encoder, held, found)
    return found


def _load(part: Parent, store: Store, encoder: Encoder, held: Loaded, found: dict[str, Learned]) -> None:
    """Add a parent and those on which it is built to `found`, unless it has them."""
    from intarsia.methods import parents

    if part.digest in found:
        return
    above = parents(part.method)
    for other in above:
        _load(other, store, encoder, held, found)
    learned = held.get(part.digest)
    if learned is None:
        entry = store.find(part.digest)
        if entry is None:
            raise missing(f"A method that is built on {part}", [str(part)])
        own = {other.digest: found[other.digest] for other in above}
        learned = store.load(entry.name, entry.version).learned_on(encoder, own)
    found[part.digest] = held[part.digest] = learned


def with_parents(store: Store, job: Job, encoder: Encoder) -> Job:
    """Return the job with the bank's inlays in the place of the names of tasks in its method."""
    method = resolved(store, job.method)
    return dataclasses.replace(job, method=method, parents=load_parents(store, method, encoder))


def learned_on(
    store: Store,
    inlay: Inlay,
    encoder: Encoder,
    *,
    swapped: Mapping[str, Parent] | None = None,
    loaded: Loaded | None = None,
) -> Learned:
    """Return the part of an inlay that prediction needs, with its parents. `swapped`: see `swapped_parents`."""
    from intarsia.methods import from_dict, swap

    if not inlay.parents:
        return inlay.learned_on(encoder)
    if not swapped:
        check_parents(store, inlay)
    method = swap(from_dict(inlay.method), swapped or {})
    return inlay.learned_on(encoder, load_parents(store, method, encoder, loaded), method=method)


def swapped_parents(store: Store, name: str, header: Description, given: Mapping[str, str]) -> dict[str, Parent]:
    """Return the frozen inlays that take the places of an inlay's own parents, by the digests of those.

    `given` maps names of its parents (`medical`, `medical@2`) to names of tasks in the bank.
    """
    from intarsia.methods import from_dict
    from intarsia.methods.compose import direct_parents

    own = dict.fromkeys(direct_parents(from_dict(header.method)))
    if not own:
        raise IntarsiaError(
            f"{name!r} is not built on other inlays, so there is nothing to swap. A task that is learned with "
            "Stack or another composition has parents."
        )
    found: dict[str, Parent] = {}
    for old, new in given.items():
        matching = [part for part in own if old in (part.task, str(part))]
        if not matching:
            listed = ", ".join(map(str, own))
            raise IntarsiaError(
                f"{name!r} is not built on {old!r}.{did_you_mean(old, [p.task for p in own])} Its parents are: "
                f"{listed}."
            )
        found.update(dict.fromkeys((part.digest for part in matching), parent_named(store, new)))
    return found


def check_parents(store: Store, inlay: Description, version: int | None = None) -> None:
    """Raise if the bank lacks an inlay on which this one is built."""
    lost = [digest for digest in inlay.parents if store.find(digest) is None]
    if lost:
        shown = f"{inlay.name} version {version}" if version else f"The inlay {inlay.name!r}"
        raise missing(shown, [_named(inlay, digest) for digest in lost])


def missing(what: str, lost: Sequence[str]) -> MissingParent:
    return MissingParent(
        f"{what} cannot be used: the bank has no intact copy of {', '.join(lost)}, on which it is built. Copy that "
        "inlay from another bank or a backup (intarsia copy), or learn the task again."
    )


def _named(inlay: Description, digest: str) -> str:
    """Return a parent as the inlay's method names it, with the start of its digest."""
    from intarsia.methods import from_dict, parents

    try:
        part = next((part for part in parents(from_dict(inlay.method)) if part.digest == digest), None)
    except IntarsiaError:  # a method of another version of Intarsia
        part = None
    return f"{part or 'an inlay'} ({digest[:12]})"


@dataclass(frozen=True)
class Relatives:
    """The inlays on which one is built, and those that are built on it."""

    parents: dict[str, Entry | None]  # by name and version, as when it was learned; None: the bank has lost it
    children: tuple[Entry, ...]

    @property
    def lost(self) -> list[str]:
        return [name for name, entry in self.parents.items() if entry is None]


def relatives(store: Store, entry: Entry) -> Relatives:
    """Return the relatives of a version; those of a damaged file are not known."""
    digest = entry.header.digest if entry.state == "ok" else ""
    children = [other for other in store.relatives([digest]) if digest in other.header.parents] if digest else []
    return Relatives(parents_of(store, entry), tuple(children))


def parents_of(store: Store, entry: Entry) -> dict[str, Entry | None]:
    """Return the inlays on which a version is built, by name and version; None: the bank has lost it."""
    if entry.state != "ok":
        return {}
    return {_named(entry.header, digest): store.find(digest) for digest in entry.header.parents}


def unserved_parents(store: Store, served: Sequence[Entry]) -> list[Entry]:
    """Return the inlays on which served ones are built and that are not served themselves, each once."""
    intact = [entry for entry in served if entry.state == "ok"]
    known = {entry.header.digest for entry in intact}
    digests = dict.fromkeys(d for entry in intact for d in entry.header.parents if d not in known)
    return [entry for digest in digests if (entry := store.find(digest)) is not None]


def check_removal(store: Store, entries: Sequence[Entry]) -> None:
    """Raise if an inlay that stays in the bank is built on one of these, and the bank has no other copy of it."""
    lost = {entry.header.digest: f"{entry.name}@{entry.version}" for entry in entries if entry.state == "ok"}
    going = {(entry.name, entry.version) for entry in entries}
    stay = [entry for entry in store.relatives(lost) if (entry.name, entry.version) not in going]
    for copy in stay:  # a restored version has the digest of the older one
        lost.pop(copy.header.digest, None)
    built = [child for child in stay if not lost.keys().isdisjoint(child.header.parents)]
    if built:
        names = [f"{child.name} version {child.version}" for child in built]
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        needed = [shown for digest, shown in lost.items() if any(digest in c.header.parents for c in built)]
        verb = "is" if len(names) == 1 else "are"
        raise Refused(
            f"{', '.join(needed[:LISTED])} cannot be removed: {', '.join(names[:LISTED])}{more} {verb} built on it. "
            "Nothing was removed. Remove these first, or use --force (force=True): they cannot answer without it."
        )
