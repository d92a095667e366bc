"""The table of a suite: full and variable fine-tuning, adapters of swept and of fixed size, task by task."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from intarsia.lab.paper import names, plan, published
from intarsia.lab.paper.drawn import Sheet, percent
from intarsia.lab.paper.plan import Asked, Planned
from intarsia.lab.paper.selection import Chosen, Mean, Results, share, total
from intarsia.methods import Bottleneck

GROUPS = ("full", "variable", "adapters", "fixed")


def planned(asked: Asked, depth: int) -> list[Planned]:
    found = []
    for task in asked.tasks:
        found += plan.full(task, asked) + plan.variable(task, asked, depth) + plan.adapters(task, asked)
    return found


def chosen(results: Results, task: str, depth: int) -> dict[str, Chosen | None]:
    """The best of each group on one task."""
    asked, grid = results.asked, results.asked.values(task)
    swept = plan.adapters(task, asked)

    def has(sizes: Sequence[int]) -> Any:
        return lambda one: isinstance(one.method, Bottleneck) and one.method.size in sizes

    return {
        "full": results.choose(plan.full(task, asked)),
        "variable": results.choose(plan.variable(task, asked, depth)),
        "adapters": results.choose(swept, has(grid.sizes)),
        "fixed": results.choose(swept, has((grid.fixed,))),
    }


def sheet(results: Results, beside: published.Table, title: str, *, metrics: bool) -> Sheet:
    """`metrics`: a column for them, where the tasks have different ones."""
    asked, depth = results.asked, int(results.store.encoder["layers"])
    found = {task: chosen(results, task, depth) for task in asked.tasks}
    found = {task: groups for task, groups in found.items() if any(groups.values())}
    lines: list[tuple[str, dict[str, Mean | None]]] = []
    rows = []
    for task, groups in found.items():
        for name, extra in ((task, None), (published.MISMATCHED, "mismatched"))[: 2 if task == "glue/mnli" else 1]:
            scores = {g: _score(c, extra) for g, c in groups.items()}
            if extra is None or any(scores.values()):
                data = next(c.data for c in groups.values() if c)
                lines.append((name, scores))
                rows.append(_row(names.title(name, data), name, groups, scores, beside, metrics))
    whole = [line for line in lines if not _sampled(found[_trained(line[0])])]
    title_of_mean = "mean of these" if whole in ([], lines) else "mean, no samples"
    sums = _sums(title_of_mean, whole or lines, found, beside, metrics) if found else []
    fixed = asked.values(asked.tasks[0]).fixed
    columns = ["task", *(["metric"] * metrics), "full", "publ.", "variable", "n"]
    columns += ["publ."] * ("variable" in beside.rows) + ["adapters", "size", "publ.", f"size {fixed}"]
    columns += ["publ." if fixed == 64 else "publ. 64"] * ("fixed" in beside.rows)
    return Sheet(title, columns, [*rows, *sums], left=1 + metrics, sums=len(sums))


def _trained(task: str) -> str:
    """The task whose runs a row is of."""
    return "glue/mnli" if task == published.MISMATCHED else task


def _sampled(groups: dict[str, Chosen | None]) -> bool:
    return any(one.data.get("partial") for one in groups.values() if one)


def _score(one: Chosen | None, extra: str | None) -> Mean | None:
    if one is None:
        return None
    return one.score if extra is None else one.extra(extra)


def _row(
    title: str, task: str, groups: dict[str, Chosen | None], scores: dict[str, Mean | None], beside: published.Table,
    metrics: bool,
) -> list[str]:  # fmt: skip
    cells = [title, *([names.metric_title(names.metric(task)).partition(" ")[0]] * metrics)]
    for group in GROUPS:
        cells.append("–" if scores[group] is None else str(scores[group]))
        one = groups[group]
        if group in ("variable", "adapters"):
            size = getattr(one.method, "number" if group == "variable" else "size") if one else "–"
            cells.append(str(size))
        if group in beside.rows:
            score = beside.rows[group].scores.get(task)
            cells.append("–" if score is None else f"{score:.1f}")
    return cells


def _sums(
    title: str,
    lines: list[tuple[str, dict[str, Mean | None]]],
    found: dict[str, dict[str, Chosen | None]],
    beside: published.Table,
    metrics: bool,
) -> list[list[str]]:
    """The mean over these tasks, ours and the published; what they cost together, and each."""
    blank = [""] * metrics
    count = f"total, {len(found)} task{'s' * (len(found) > 1)}"
    mean, cost, part = ([name, *blank] for name in (title, count, "trained a task"))
    for group in GROUPS:
        ours = [scores[group] for _, scores in lines]
        mean.append("–" if None in ours else f"{100 * statistics.fmean(m.value for m in ours if m):.1f}")
        kept = [one for groups in found.values() if (one := groups[group]) is not None]
        cost.append(f"{total(kept, copies=group == 'full'):.2f}×" if len(kept) == len(found) else "–")
        part.append(percent(share(kept)) if len(kept) == len(found) else "–")
        if group in ("variable", "adapters"):
            for cells in (mean, cost, part):
                cells.append("")
        row = beside.rows.get(group)
        if row is not None:
            theirs = [row.scores[task] for task, _ in lines if task in row.scores]
            mean.append(f"{statistics.fmean(theirs):.1f}" if theirs else "–")
            cost.append("–" if row.total is None else f"{row.total:g}×")
            part.append("–" if row.share is None else percent(row.share))
    return [mean, cost, part]


def tried_note(asked: Asked, depth: int) -> str:
    """What n and size were chosen from."""
    numbers, sizes = set[int](), set[int]()
    for task in asked.tasks:
        numbers |= {getattr(one.method, "number", 0) for one in plan.variable(task, asked, depth)}
        sizes |= set(asked.values(task).sizes)
    listed = [", ".join(map(str, sorted(values))) for values in (numbers, sizes)]
    return (
        f"Chosen on validation, task by task: the top n layers from {listed[0]}, the adapters' size from {listed[1]}."
    )


def published_notes(beside: published.Table, many: int) -> list[str]:
    """What the published figures of all tasks are, which the table's mean over some of them does not show."""
    means = ", ".join(f"{name} {row.mean:.1f}" for name, row in beside.rows.items()).replace("fixed", "adapters 64")
    return [
        f"Published means over all {many} tasks: {means}. In the table both means are over the tasks shown; published "
        f"totals are of {many} tasks.",
        "Totals are the base and what each task trained, heads too; of full fine-tuning the copies alone, as the paper "
        "counts.",
    ]
