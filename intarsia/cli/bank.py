"""Commands that look after a bank."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from intarsia import formatting
from intarsia.cli.shared import (
    BankOption,
    EncoderOption,
    JsonOption,
    TaskArgument,
    app,
    open_bank,
)


@app.command(rich_help_panel="The bank")
def tasks(bank: BankOption = Path("bank"), json: JsonOption = False) -> None:
    """List the tasks and what they cost: trained parameters, bytes, multiples of the base."""
    from intarsia.cli import console
    from intarsia.cli.tables import tasks_dict, tasks_table

    opened = open_bank(bank)
    entries = opened.tasks()
    if json:
        console.print_json(tasks_dict(opened) if entries else {"tasks": []})
    elif not entries:
        console.say(f"The bank {bank} holds no task yet. Learn one: intarsia learn NAME DATA")
    else:
        for part in tasks_table(opened):
            console.say(part) if isinstance(part, str) else console.out.print(part)


@app.command(rich_help_panel="The bank")
def show(
    name: TaskArgument,
    version: Annotated[int | None, typer.Option(help="An older version.", show_default="the newest")] = None,
    bank: BankOption = Path("bank"),
    json: JsonOption = False,
) -> None:
    """Show all that is known of a task: labels, method, head, scores, training, data, versions."""
    from intarsia.cli import console
    from intarsia.cli.tables import entry_dict, show_table

    opened = open_bank(bank)
    entry = opened.show(name, version)
    console.print_json(entry_dict(entry)) if json else console.out.print(show_table(entry, opened.versions(name)))


@app.command(rich_help_panel="The bank")
def remove(
    name: TaskArgument,
    version: Annotated[int | None, typer.Option(help="Only this version.", show_default="all")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bank: BankOption = Path("bank"),
) -> None:
    """Delete a task, or one version of it."""
    from intarsia.cli import console

    opened = open_bank(bank)
    count = len(opened.versions(name)) if version is None else 1
    what = (
        f"task {name} with its {count} version{'s' * (count > 1)}"
        if version is None
        else f"version {version} of {name}"
    )
    if not yes and not typer.confirm(f"Delete {what} from {bank}? This cannot be undone."):
        raise typer.Exit(1)
    opened.remove(name, version)
    console.say(f"Deleted {what}.")


@app.command(rich_help_panel="The bank")
def restore(
    name: TaskArgument,
    version: Annotated[
        int, typer.Argument(metavar="VERSION", help="The older version to serve again.", show_default=False)
    ],
    bank: BankOption = Path("bank"),
) -> None:
    """Serve an older version again: its bytes become the newest version."""
    from intarsia.cli import console

    entry = open_bank(bank).restore(name, version)
    console.say(f"{name}: version {version} is served again, as version {entry.version}.")


@app.command(rich_help_panel="The bank")
def export(
    name: TaskArgument,
    merged: Annotated[
        Path, typer.Option("--merged", metavar="DIR", help="The folder to write, a new one.", show_default=False)
    ],
    version: Annotated[int | None, typer.Option(help="An older version.", show_default="the newest")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a folder that is not empty.")] = False,
    bank: BankOption = Path("bank"),
    encoder: EncoderOption = None,
) -> None:
    """Write a task as a plain transformers folder that needs no Intarsia.

    For methods that can be merged into the base's weights; `intarsia methods` lists them. The folder is read back
    with transformers alone, and kept only if its logits are the bank's.
    """
    from intarsia.cli import console

    done = open_bank(bank, encoder).export(name, merged, version, force=force)
    beside = f", its head in {done.head} (README.md says how to use it)" if done.head else ""
    console.say(
        f"{name} version {done.version} written to {merged}: {done.model}{beside}, {formatting.size(done.bytes)}. "
        f"Read back without Intarsia, logits of {done.probes} texts differ by at most {done.difference:.1e} of the "
        "largest."
    )


@app.command(rich_help_panel="The bank")
def verify(
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Make the index anew, from the files alone.")] = False,
    bank: BankOption = Path("bank"),
    json: JsonOption = False,
) -> None:
    """Read every inlay whole and check its digest, its base and its place; name what is damaged (exit code 1).

    Runs that have not ended are named too, with what they take on the disk.
    """
    from intarsia.cli import console

    opened = open_bank(bank)
    problems, unfinished = opened.verify(rebuild=rebuild), opened.unfinished()
    count = sum(len(opened.versions(e.name)) for e in opened.tasks())
    if json:
        rows: list[dict[str, Any]] = [{"file": str(p.path), "reason": p.reason} for p in problems]
        runs: list[dict[str, Any]] = [{"task": u.name, "folder": str(u.path), "bytes": u.bytes} for u in unfinished]
        console.print_json({"files": count, "problems": rows, "unfinished": runs})
    else:
        for problem in problems:
            console.error(problem.reason)
        console.say(f"{count} files read, {len(problems)} damaged.")
        for run in unfinished:
            console.say(
                f"{run.name}: a run has not ended; its state is {run.path} ({formatting.size(run.bytes)}). "
                "The same `intarsia learn` goes on with it; if none is wanted, delete the folder."
            )
    if problems:
        raise typer.Exit(1)
