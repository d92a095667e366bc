"""Inlays without a head: a language, a domain, or an adapter from another system. They are parents of other inlays."""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.tasks.examples import StoredKind
from intarsia.tasks.heads import Head, Hidden, NoHead, Pooling
from intarsia.tasks.task_kind import TaskKind


@dataclass(frozen=True)
class Headless(TaskKind):
    """The task kind `none`: texts become vectors (`Bank.embed`), and nothing is predicted."""

    kind: StoredKind  # type: ignore[assignment]

    @property
    def outputs(self) -> int:
        return 0

    def head(self, pooling: Pooling, hidden: Hidden | None = None) -> Head:
        return NoHead(0, pooling)
