"""Commands about public tasks: what is here, and getting more."""

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
    help="Public tasks: GLUE, SQuAD, the paper's further tasks, CoNLL-2003, Universal Dependencies.",
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
    """List the tasks of the suites: rows here against the official sizes; whole, partial (a sample) or missing."""
    from intarsia.cli import console
    from intarsia.cli.suite_tables import suites_table
    from intarsia.tasks.suites.folder import list_data

    found = list_data(suite, folder)
    if json:
        console.print_json({"folder": str(found.folder), "tasks": [one.to_dict() for one in found.tasks]})
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
    """Fetch tasks into the data folder: converted, counted against the official sizes, hashed.

    What has another number of rows than the official task is stored as a sample, under SUITE_partial. Tasks that are
    there whole are kept, so that the same command goes on after an interruption.
    """
    from intarsia.cli import console
    from intarsia.tasks.suites import fetch as run

    with _progress(quiet=json) as (watch, ended):
        done = run(name, source, to, watch=watch, ended=ended)
    if json:
        console.print_json([one.to_dict() for one in done])


@contextmanager
def _progress(
    *, quiet: bool
) -> Iterator[tuple[Callable[[SuiteTask, str, int], None] | None, Callable[[Fetched], None] | None]]:
    """A line for each task that has ended; on a terminal, also what is being read."""
    from intarsia.cli import console

    def ended(one: Fetched) -> None:
        rows = ", ".join(f"{split} {rows:,}" for split, rows in one.rows.items())
        what = {"whole": "whole", "partial": "partial", "kept": "whole already", "absent": "not found"}[one.outcome]
        parts = [f"{one.task.full_name}: {what}", rows, one.notice]
        console.out.print(". ".join(part for part in parts if part), soft_wrap=True, markup=False)

    if quiet:
        yield None, None
    elif not console.err.is_terminal:
        yield None, ended
    else:
        with console.err.status("reading") as line:
            yield lambda task, split, rows: line.update(f"{task.full_name}: {split}, {rows:,} rows"), ended
