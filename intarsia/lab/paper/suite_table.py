"""The tables of a suite by task: no BERT, full and variable fine-tuning, adapters of selected and of fixed size."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from intarsia.lab.paper import names, no_bert, plan, published
from intarsia.lab.paper.experiment_report import ReportTable, percent
from intarsia.lab.paper.plan import ExperimentConfig, PlannedRun
from intarsia.lab.paper.selection import Mean, Results, SelectedSetting, share, total
from intarsia.methods import to_dict

Best = dict[str, SelectedSetting | no_bert.BaselineResult | None]  # the best result of each group
Line = tuple[str, dict[str, Mean | None]]  # a row's task, and its score for each group
TITLES = {no_bert.GROUP: "no BERT"}
WINNER = 48  # the maximum length of the name of a search's winner
OPTIONS = {"variable": "number", "adapters": "size"}  # the option selected besides learning rate and epochs


def planned_runs(config: ExperimentConfig, depth: int) -> list[PlannedRun]:
    """Return the runs of all groups for all tasks; `depth` is the number of layers."""
    planned = []
    for task in config.tasks:
        planned += plan.full(task, config) + plan.variable(task, config, depth) + plan.adapters(task, config)
    return planned


def chosen(results: Results, task: str, depth: int) -> Best:
    """Return the best result of each group on one task."""
    config, grid = results.config, results.config.task_grid(task)
    adapters = plan.adapters(task, config)

    def has(sizes: Sequence[int]) -> Any:
        return lambda run: to_dict(run.method)["size"] in sizes

    return {
        no_bert.GROUP: no_bert.stored_baseline(results, task),
        "full": results.select(plan.full(task, config)),
        "variable": results.select(plan.variable(task, config, depth)),
        "adapters": results.select(adapters, has(grid.sizes)),
        "fixed": results.select(adapters, has((grid.fixed_size,))),
    }


def _best_by_task(results: Results) -> dict[str, Best]:
    """Return the best results by task, for the tasks that have any result."""
    depth = int(results.store.encoder["layers"])
    all_tasks = {task: chosen(results, task, depth) for task in results.config.tasks}
    return {task: groups for task, groups in all_tasks.items() if any(groups.values())}


def score_table(
    results: Results, paper_table: published.PublishedTable, title: str, shown: Sequence[str], *, metrics: bool = False,
    sizes: bool = False,
) -> ReportTable:  # fmt: skip
    """Return the table of test scores, with the published scores next to them.

    `shown`: the groups. `metrics`: add a column with each task's metric. `sizes`: add columns for the selected number
    of layers and the selected size.
    """
    best_of = _best_by_task(results)
    options = OPTIONS if sizes else {}
    lines: list[Line] = []
    rows = []
    for task, groups in best_of.items():
        for name, extra in ((task, None), (published.MISMATCHED, "mismatched"))[: 2 if task == "glue/mnli" else 1]:
            scores = {group: _score(groups[group], extra) for group in shown}
            if extra is None or any(scores.values()):
                lines.append((name, scores))
                cells = [_title(name, groups), *([names.metric_title(names.metric(name)).partition(" ")[0]] * metrics)]
                for group in shown:
                    cells.append(str(scores[group] or "–"))
                    cells += [_option(groups[group], options[group])] if group in options else []
                    if group in paper_table.rows:
                        score = paper_table.rows[group].scores.get(name)
                        cells.append("–" if score is None else f"{score:.1f}")
                rows.append(cells)
    sums = [[row[0], *([""] * metrics), *row[1:]] for row in _sums(lines, best_of, paper_table, shown, options)]
    columns = ["task", *(["metric"] * metrics)]
    fixed = results.config.task_grid(results.config.tasks[0]).fixed_size
    for group in shown:
        columns.append(f"size {fixed}" if group == "fixed" else TITLES.get(group, group))
        columns += [{"number": "n"}.get(options[group], options[group])] if group in options else []
        columns += ["publ. 64" if group == "fixed" and fixed != 64 else "publ."] * (group in paper_table.rows)
    return ReportTable(title, columns, [*rows, *sums], left=1 + metrics, summary_rows=len(sums))


def selection_table(results: Results) -> list[ReportTable]:
    """Return a table of the selected settings of each task, for suites whose score table has no room for them."""
    best_of = _best_by_task(results)
    rows = []
    for task, groups in best_of.items():
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
    title = f"Selected on validation: model without BERT, top n layers, size of adapters; and the score of size {fixed}"
    return [ReportTable(title, ["task", "without BERT", "n", "size", f"size {fixed}"], rows, left=2)] if rows else []


def _cut(text: str, width: int) -> str:
    """Return the text, shortened to `width` characters."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _title(task: str, groups: Best) -> str:
    return names.title(task, next(result.data for result in groups.values() if result))


def _option(result: Any, name: str) -> str:
    return "–" if result is None else str(to_dict(result.method)[name])


def _trained(task: str) -> str:
    """Return the task on which a row's runs were trained."""
    return "glue/mnli" if task == published.MISMATCHED else task


def _sampled(groups: Best) -> bool:
    return any(result.data.get("partial") for result in groups.values() if result)


def _score(result: SelectedSetting | no_bert.BaselineResult | None, extra: str | None) -> Mean | None:
    """Return the test score of a result, or its additional score `extra`."""
    if result is None or extra is None:
        return None if result is None else result.score
    return result.extra(extra) if isinstance(result, SelectedSetting) else None


def _sums(
    lines: list[Line],
    best_of: dict[str, Best],
    paper_table: published.PublishedTable,
    shown: Sequence[str],
    options: dict[str, str],
) -> list[list[str]]:
    """Return the summary rows: the means (measured and published), the total size, and the trained share per task."""
    if not lines:
        return []
    complete = [line for line in lines if not _sampled(best_of[_trained(line[0])])]
    mean = ["mean of shown" if complete in ([], lines) else "mean, no samples"]
    cost, part = [f"total, {len(best_of)} task{'s' * (len(best_of) > 1)}"], ["trained per task"]
    lines = complete or lines
    for group in shown:
        ours = [scores[group] for _, scores in lines]
        mean.append("–" if None in ours else f"{100 * statistics.fmean(m.value for m in ours if m):.1f}")
        selected = [best for groups in best_of.values() if isinstance(best := groups[group], SelectedSetting)]
        all_tasks = len(selected) == len(best_of)
        cost.append(f"{total(selected, copies=group == 'full'):.2f}×" if all_tasks else "–")
        part.append(percent(share(selected)) if all_tasks else "–")
        if group in options:
            for cells in (mean, cost, part):
                cells.append("")
        row = paper_table.rows.get(group)
        if row is not None:
            theirs = [row.scores[task] for task, _ in lines if task in row.scores]
            mean.append(f"{statistics.fmean(theirs):.1f}" if theirs else "–")
            cost.append("–" if row.total is None else f"{row.total:g}×")
            part.append("–" if row.share is None else percent(row.share))
    return [mean, cost, part]


def tried_note(results: Results, depth: int) -> str:
    """Return a note that lists the numbers of layers and the sizes that have runs."""
    config = results.config
    tried: dict[str, set[int]] = {group: set() for group in OPTIONS}
    for task in config.tasks:
        for run in (*plan.variable(task, config, depth), *plan.adapters(task, config)):
            if results.record(run):
                tried[run.group].add(to_dict(run.method)[OPTIONS[run.group]])
    listed = [", ".join(map(str, sorted(values))) or "none" for values in tried.values()]
    return (
        f"Selected on validation for each task: the top n layers from {listed[0]}, the adapters' size from {listed[1]}."
    )


def published_notes(paper_table: published.PublishedTable, count: int) -> list[str]:
    """Return notes on the published scores over all tasks; the table's means cover only the tasks shown."""
    titles = {**TITLES, "fixed": "adapters 64"}
    means = ", ".join(f"{titles.get(group, group)} {row.mean:.1f}" for group, row in paper_table.rows.items())
    return [
        f"Published means over all {count} tasks: {means}. Both means in the table cover the tasks shown; the "
        f"published totals cover {count} tasks.",
        "A total counts the base and the trained parameters of every task, heads included. For full fine-tuning it "
        "counts only the copies, as the paper does.",
    ]
