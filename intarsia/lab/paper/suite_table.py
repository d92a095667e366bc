"""The tables of a suite, task by task: full and variable fine-tuning, adapters of swept and of fixed size, no BERT."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from intarsia.lab.paper import names, no_bert, plan, published
from intarsia.lab.paper.experiment_report import ReportTable, percent
from intarsia.lab.paper.plan import ExperimentConfig, PlannedRun
from intarsia.lab.paper.selection import Mean, Results, SelectedSetting, share, total
from intarsia.methods import to_dict

Best = dict[str, SelectedSetting | no_bert.BaselineResult | None]  # by group
Line = tuple[str, dict[str, Mean | None]]  # a row's task, and its score for each group
TITLES = {no_bert.GROUP: "no BERT"}
WINNER = 48  # characters of the candidate that won a search
OPTIONS = {"variable": "number", "adapters": "size"}  # what was chosen beside rate and epochs


def planned_runs(config: ExperimentConfig, depth: int) -> list[PlannedRun]:
    found = []
    for task in config.tasks:
        found += plan.full(task, config) + plan.variable(task, config, depth) + plan.adapters(task, config)
    return found


def chosen(results: Results, task: str, depth: int) -> Best:
    """The best of each group on one task."""
    config, grid = results.config, results.config.task_grid(task)
    swept = plan.adapters(task, config)

    def has(sizes: Sequence[int]) -> Any:
        return lambda one: to_dict(one.method)["size"] in sizes

    return {
        no_bert.GROUP: no_bert.stored_baseline(results, task),
        "full": results.select(plan.full(task, config)),
        "variable": results.select(plan.variable(task, config, depth)),
        "adapters": results.select(swept, has(grid.sizes)),
        "fixed": results.select(swept, has((grid.fixed_size,))),
    }


def _all_chosen(results: Results) -> dict[str, Best]:
    """Of the tasks of which there is anything."""
    depth = int(results.store.encoder["layers"])
    found = {task: chosen(results, task, depth) for task in results.config.tasks}
    return {task: groups for task, groups in found.items() if any(groups.values())}


def score_table(
    results: Results, beside: published.Table, title: str, shown: Sequence[str], *, metrics: bool = False,
    sizes: bool = False,
) -> ReportTable:  # fmt: skip
    """`shown`: the groups, each with its published figures. `metrics`: a column for them, where the tasks have
    different ones. `sizes`: columns for the number of layers and the size that were chosen."""
    found = _all_chosen(results)
    options = OPTIONS if sizes else {}
    lines: list[Line] = []
    rows = []
    for task, groups in found.items():
        for name, extra in ((task, None), (published.MISMATCHED, "mismatched"))[: 2 if task == "glue/mnli" else 1]:
            scores = {group: _score(groups[group], extra) for group in shown}
            if extra is None or any(scores.values()):
                lines.append((name, scores))
                cells = [_title(name, groups), *([names.metric_title(names.metric(name)).partition(" ")[0]] * metrics)]
                for group in shown:
                    cells.append(str(scores[group] or "–"))
                    cells += [_option(groups[group], options[group])] if group in options else []
                    if group in beside.rows:
                        score = beside.rows[group].scores.get(name)
                        cells.append("–" if score is None else f"{score:.1f}")
                rows.append(cells)
    sums = [[row[0], *([""] * metrics), *row[1:]] for row in _sums(lines, found, beside, shown, options)]
    columns = ["task", *(["metric"] * metrics)]
    fixed = results.config.task_grid(results.config.tasks[0]).fixed_size
    for group in shown:
        columns.append(f"size {fixed}" if group == "fixed" else TITLES.get(group, group))
        columns += [{"number": "n"}.get(options[group], options[group])] if group in options else []
        columns += ["publ. 64" if group == "fixed" and fixed != 64 else "publ."] * (group in beside.rows)
    return ReportTable(title, columns, [*rows, *sums], left=1 + metrics, summary_rows=len(sums))


def selection_table(results: Results) -> list[ReportTable]:
    """What was chosen for each task, where the table of scores has no room for it."""
    found = _all_chosen(results)
    rows = []
    for task, groups in found.items():
        searched = groups[no_bert.GROUP]
        rows.append(
            [
                _title(task, groups),
                _cut(searched.winner_summary, WINNER) if isinstance(searched, no_bert.BaselineResult) else "–",
                *(_option(groups[group], option) for group, option in OPTIONS.items()),
                str(_score(groups["fixed"], None) or "–"),
            ]
        )  # fmt: skip
    fixed = results.config.task_grid(results.config.tasks[0]).fixed_size
    title = f"Chosen on validation: without BERT, the top n layers, the adapters' size; and the score with size {fixed}"
    return [ReportTable(title, ["task", "without BERT", "n", "size", f"size {fixed}"], rows, left=2)] if rows else []


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _title(task: str, groups: Best) -> str:
    return names.title(task, next(one.data for one in groups.values() if one))


def _option(one: Any, name: str) -> str:
    return "–" if one is None else str(to_dict(one.method)[name])


def _trained(task: str) -> str:
    """The task whose runs a row is of."""
    return "glue/mnli" if task == published.MISMATCHED else task


def _sampled(groups: Best) -> bool:
    return any(one.data.get("partial") for one in groups.values() if one)


def _score(one: SelectedSetting | no_bert.BaselineResult | None, extra: str | None) -> Mean | None:
    if one is None or extra is None:
        return None if one is None else one.score
    return one.extra(extra) if isinstance(one, SelectedSetting) else None


def _sums(
    lines: list[Line], found: dict[str, Best], beside: published.Table, shown: Sequence[str], options: dict[str, str]
) -> list[list[str]]:
    """The mean over these tasks, ours and the published; what they cost together, and each."""
    if not lines:
        return []
    whole = [line for line in lines if not _sampled(found[_trained(line[0])])]
    mean = ["mean of these" if whole in ([], lines) else "mean, no samples"]
    cost, part = [f"total, {len(found)} task{'s' * (len(found) > 1)}"], ["trained a task"]
    lines = whole or lines
    for group in shown:
        ours = [scores[group] for _, scores in lines]
        mean.append("–" if None in ours else f"{100 * statistics.fmean(m.value for m in ours if m):.1f}")
        kept = [one for groups in found.values() if isinstance(one := groups[group], SelectedSetting)]
        there = len(kept) == len(found)
        cost.append(f"{total(kept, copies=group == 'full'):.2f}×" if there else "–")
        part.append(percent(share(kept)) if there else "–")
        if group in options:
            for cells in (mean, cost, part):
                cells.append("")
        row = beside.rows.get(group)
        if row is not None:
            theirs = [row.scores[task] for task, _ in lines if task in row.scores]
            mean.append(f"{statistics.fmean(theirs):.1f}" if theirs else "–")
            cost.append("–" if row.total is None else f"{row.total:g}×")
            part.append("–" if row.share is None else percent(row.share))
    return [mean, cost, part]


def tried_note(results: Results, depth: int) -> str:
    """What n and size were chosen from, as far as there are runs of them."""
    config = results.config
    tried: dict[str, set[int]] = {group: set() for group in OPTIONS}
    for task in config.tasks:
        for one in (*plan.variable(task, config, depth), *plan.adapters(task, config)):
            if results.record(one):
                tried[one.group].add(to_dict(one.method)[OPTIONS[one.group]])
    listed = [", ".join(map(str, sorted(values))) or "none" for values in tried.values()]
    return (
        f"Chosen on validation, task by task: the top n layers from {listed[0]}, the adapters' size from {listed[1]}."
    )


def published_notes(beside: published.Table, many: int) -> list[str]:
    """What the published figures of all tasks are, which the table's mean over some of them does not show."""
    titles = {**TITLES, "fixed": "adapters 64"}
    means = ", ".join(f"{titles.get(group, group)} {row.mean:.1f}" for group, row in beside.rows.items())
    return [
        f"Published means over all {many} tasks: {means}. In the table both means are over the tasks shown; published "
        f"totals are of {many} tasks.",
        "Totals are the base and what each task trained, heads too; of full fine-tuning the copies alone, as the paper "
        "counts.",
    ]
