"""The description of an inlay: what its file says about it, beside the tensors."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from intarsia.tasks.learned import Interface


@dataclass(frozen=True, kw_only=True, eq=False)
class Description:
    """All fields of an inlay except its tensors, as plain JSON values."""

    name: str
    kind: str
    labels: tuple[str, ...]
    method: dict[str, Any]
    head: dict[str, Any]
    encoder: dict[str, str]
    parameters: dict[str, int]
    metrics: dict[str, Any]
    training: dict[str, Any]
    data: dict[str, Any]
    versions: dict[str, str]
    parents: tuple[str, ...]  # digests of the inlays that this inlay is composed of
    created: str  # ISO 8601, UTC

    @property
    def interface(self) -> Interface:
        """The task's interface: how texts become inputs and how outputs become predictions."""
        from intarsia.tasks.kind_registry import stored_kind
        from intarsia.tasks.learned import Interface

        task_kind = stored_kind(self.kind, tuple(self.labels), self.head)  # type: ignore[arg-type]
        return Interface(task_kind, bool(self.data.get("pairs")), self.training.get("max_length"))


FIELDS = tuple(field.name for field in fields(Description))
TUPLE_FIELDS = ("labels", "parents")
