"""Copying an inlay to another bank over the same base, with all inlays on which it is built."""

from __future__ import annotations

from intarsia.bank.entry import Entry
from intarsia.bank.family import check_parents
from intarsia.bank.inlay import decode, read_content
from intarsia.bank.store import Store
from intarsia.errors import Refused


def copy_family(source: Store, target: Store, name: str, version: int | None = None) -> list[Entry]:
    """Copy an inlay and its parents, and return their entries in the target: the parents first.

    What the target has already, by digest, is not stored twice. A parent whose task the target has with other versions
    becomes a further version that is not served.
    """
    if source.folder.resolve() == target.folder.resolve():
        raise Refused(f"The bank at {source.folder} cannot be copied into itself. Name another bank.")
    entry = source.entry(name, version)
    header = entry.header
    check_parents(source, header, entry.version)
    target.check_base(header.encoder)  # before anything is written
    family = [found for digest in reversed(header.parents) if (found := source.find(digest)) is not None]
    for member in (*family, entry):
        target.check_name(member.name)
    target.bind({**header.encoder, "parameters": header.parameters["base"]})
    copied = [_copied(member, target, parent=True) for member in family]
    return [*copied, _copied(entry, target, parent=False)]


def _copied(entry: Entry, target: Store, *, parent: bool) -> Entry:
    there = target.find(entry.header.digest)
    if there is not None:
        return there
    content = read_content(entry.path)
    decode(content, entry.path).check(entry.path)
    return target.add_content(entry.name, content, serve=not (parent and target.has(entry.name)))
