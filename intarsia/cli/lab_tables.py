"""Tables of methods and comparisons, for the terminal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from intarsia.cli.console import out, table
from intarsia.formatting import number
from intarsia.lab.comparison_rows import baseline_row, comparison_columns, comparison_notes, comparison_rows, share
from intarsia.lab.cost import ASSUMED, ROWS, STEPS, TOKENS
from intarsia.methods import METHODS

if TYPE_CHECKING:
    from rich.console import RenderableType

    from intarsia.lab.catalogue import Catalogue, Listed
    from intarsia.lab.comparison import Comparison


WIDTH = 100  # most columns of the table of methods
NARROW = 92  # a narrower terminal gets no column of papers


def methods_table(found: Catalogue) -> list[RenderableType]:
    """Return the table, and notes that explain its columns."""
    columns = ["method", "paper", "what trains", "parameters", "of base", "merge", "mix", "step"]
    rows = [_methods_row(listed) for listed in found.methods]
    if out.width < NARROW:
        columns, rows = [c for c in columns if c != "paper"], [[row[0], *row[2:]] for row in rows]
    made = table(columns, rows, left=columns.index("parameters"))
    made.columns[columns.index("what trains")].no_wrap = False
    made.width = min(WIDTH, out.width)
    notes = [f"{m.name}: {m.reason}" for m in found.methods if m.reason is not None]
    notes += [
        f"base: {found.encoder}, {number(found.parameters)} parameters. A method's parameters do not include the head.",
        "merge: the task can be exported as a plain model. mix: rows of many tasks can share one pass.",
        f"step: the cost of a training step, {_measured(found) if found.measured else ASSUMED}.",
    ]
    if twice := [m.name for m in found.methods if m.steps == 2]:
        notes.append(f"{' and '.join(twice)} train in two phases: twice the given number of steps.")
    for name in dict.fromkeys(m.method["type"] for m in found.methods if METHODS[m.method["type"]].cached):
        notes.append(
            f"{name}: the base runs over the data once, forward only, at a third of the cost of one epoch of "
            "full fine-tuning; the training steps themselves cost almost nothing."
        )
    return [made, "", *(line for note in notes for line in _wrapped(note))]


def _measured(found: Catalogue) -> str:
    return (
        f"measured, full fine-tuning = 1 ({1000 * found.full_seconds:,.0f} ms): {ROWS} texts of {TOKENS} tokens, "
        f"median of {STEPS} steps, each timed next to a step of full fine-tuning"
    )


def _methods_row(m: Listed) -> list[str]:
    paper = re.sub(r" et al\.| & \S+", "", m.paper)
    if m.reason is not None or m.parameters is None or m.step is None:
        return [m.name, paper, m.trains, "not here,", "see", "below", "", ""]
    merge, mix = ("yes" if flag else "no" for flag in (m.mergeable, m.mixable))
    return [m.name, paper, m.trains, number(m.parameters), share(m.share), merge, mix, f"{m.step:.2f}"]


def _wrapped(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def comparison_table(found: Comparison) -> list[RenderableType]:
    """Return the table, and notes on failed methods and on the columns."""
    made = table(comparison_columns(found), comparison_rows(found))
    if found.baseline is not None:
        made.add_section()
        made.add_row(*baseline_row(found))
    return [made, "", *comparison_notes(found)]
