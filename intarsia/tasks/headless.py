"""Inlays without a head: a language, a domain, or an adapter from another system. They are parents of other inlays."""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.errors import IntarsiaError
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


def check_answers(kind: str, name: str, doing: str = "predict") -> None:
    """Raise if an inlay of this kind has no head."""
    if kind == "none":
        raise IntarsiaError(
            f'{name!r} has no head, so it cannot {doing}. Learn a task over it: bank.learn("task", data, '
            f'Stack({name!r}, Pfeiffer(48))), or --method "stack({name}, pfeiffer-48)". It gives vectors without a '
            f"head: bank.embed(texts, {name!r})."
        )
