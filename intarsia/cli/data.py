"""Commands for public tasks: list and fetch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intarsia.cli.shared import JsonOption, app

if TYPE_CHECKING:
    from intarsia.tasks.suites import Fetched, SuiteTask

data = typer.Typer(
    name="data",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="List and fetch public tasks (GLUE, SQuAD, CoNLL-2003, …).",
)
app.add_typer(data, rich_help_panel="Tasks")

FolderOption = Annotated[
    Path | None,
    typer.Option("--data", envvar="INTARSIA_DATA", metavar="FOLDER", help="The data folder.", show_default="data"),
]


@data.command("list")
def list_(
    suite: Annotated[
        str | None,
        typer.Argument(metavar="SUITE", help="Only this suite, or this task ([cyan]glue/cola[/]).", show_default="all"),
    ] = None,
    folder: FolderOption = None,
    json: JsonOption = False,
) -> None:
    """List the public tasks and how many of their official rows are here.

    The suites are GLUE, SQuAD, the further classification tasks of Houlsby
    et al. (2019), CoNLL-2003 and Universal Dependencies. The state of a task is
    whole, partial (a sample) or missing.
    """
    from intarsia.cli import console
    from intarsia.cli.suite_tables import suites_table
    from intarsia.tasks.suites.folder import list_data

    found = list_data(suite, folder)
    if json:
        console.print_json({"folder": str(found.folder), "tasks": [status.to_dict() for status in found.tasks]})
    else:
        console.print_parts(suites_table(found.tasks, found.folder))


@data.command("fetch")
def fetch(
    name: Annotated[
        str,
        typer.Argument(
            metavar="SUITE[/TASK]", help="A suite, or one task of it ([cyan]glue/cola[/]).", show_default=False
        ),
    ],
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="hub|FOLDER",
            help="The hub, a folder with the official files, or another data folder.",
            show_default=False,
        ),
    ],
    to: Annotated[
        Path | None,
        typer.Option("--to", envvar="INTARSIA_DATA", metavar="FOLDER", help="The data folder.", show_default="data"),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Fetch public tasks into the data folder.

    The command converts the files, compares their row counts with the official
    sizes, and stores their hashes. A task with another row count is stored as a
    sample, under SUITE_partial. Complete tasks are not fetched again, so the same
    command resumes after an interruption.
    """
    from intarsia.cli import console
    from intarsia.tasks.suites import fetch as run

    with _progress(quiet=json) as (watch, ended):
        done = run(name, source, to, watch=watch, ended=ended)
    if json:
        console.print_json([fetched.to_dict() for fetched in done])


@contextmanager
def _progress(
    *, quiet: bool
) -> Iterator[tuple[Callable[[SuiteTask, str, int], None] | None, Callable[[Fetched], None] | None]]:
    """Print a line for each completed task; on a terminal, also show the task in progress."""
    from intarsia.cli import console

    def ended(fetched: Fetched) -> None:
        rows = ", ".join(f"{split} {rows:,}" for split, rows in fetched.rows.items())
        outcomes = {"whole": "whole", "partial": "partial", "kept": "already whole", "absent": "not found"}
        parts = [f"{fetched.task.full_name}: {outcomes[fetched.outcome]}", rows, fetched.notice]
        console.out.print(". ".join(part for part in parts if part), soft_wrap=True, markup=False)

    if quiet:
        yield None, None
    elif not console.err.is_terminal:
        yield None, ended
    else:
        with console.err.status("reading") as line:
            yield lambda task, split, rows: line.update(f"{task.full_name}: {split}, {rows:,} rows"), ended
