"""Commands that manage a bank."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from intarsia import formatting
from intarsia.cli import completion
from intarsia.cli.shared import (
    BankOption,
    EncoderOption,
    JsonOption,
    TaskArgument,
    app,
    existing_bank,
)


@app.command(rich_help_panel="The bank")
def tasks(bank: BankOption = Path("bank"), json: JsonOption = False) -> None:
    """List the tasks: scores, trained parameters, file sizes."""
    from intarsia.cli import console
    from intarsia.cli.tables import tasks_dict, tasks_table

    opened = existing_bank(bank)
    entries = opened.tasks()
    if json:
        console.print_json(tasks_dict(opened) if entries else {"tasks": []})
    elif not entries:
        console.say(f"The bank {bank} holds no task yet. To learn one: intarsia learn NAME DATA")
    else:
        console.print_parts(tasks_table(opened))


@app.command(rich_help_panel="The bank")
def show(
    name: TaskArgument,
    version: Annotated[int | None, typer.Option(help="Another version.", show_default="the served one")] = None,
    bank: BankOption = Path("bank"),
    json: JsonOption = False,
) -> None:
    """Show one task: labels, scores, method, training, versions."""
    from intarsia.cli import console
    from intarsia.cli.tables import show_dict, show_table

    opened = existing_bank(bank)
    entry, found = opened.show(name, version), opened.relatives(name, version)
    if json:
        console.print_json(show_dict(entry, found))
    else:
        console.out.print(show_table(entry, opened.versions(name), found))


@app.command(rich_help_panel="The bank")
def remove(
    name: TaskArgument,
    version: Annotated[int | None, typer.Option(help="Only this version.", show_default="all")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without confirmation.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Delete it even if other inlays are built on it.")] = False,
    bank: BankOption = Path("bank"),
) -> None:
    """Delete a task, or one version of it.

    An inlay on which others are built stays, unless `--force` is given.
    """
    from intarsia.bank.family import check_removal
    from intarsia.cli import console

    opened = existing_bank(bank)
    entries = opened.versions(name) if version is None else [opened.show(name, version)]
    if not force:
        check_removal(opened.store, entries)  # before the question
    count = len(entries)
    target = (
        f"task {name} with its {count} version{'s' * (count > 1)}"
        if version is None
        else f"version {version} of {name}"
    )
    if not yes and not typer.confirm(f"Delete {target} from {bank}? This cannot be undone."):
        raise typer.Exit(1)
    opened.remove(name, version, force=force)
    console.say(f"Deleted {target}.")


@app.command(rich_help_panel="The bank")
def discard(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The task's name.", show_default=False, autocompletion=completion.unfinished
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without confirmation.")] = False,
    bank: BankOption = Path("bank"),
) -> None:
    """Delete the checkpoints of a task's unfinished training runs. Its stored versions stay."""
    from intarsia.cli import console

    opened = existing_bank(bank)
    found = [run for run in opened.unfinished() if run.name == name]
    size = formatting.size(sum(run.bytes for run in found))
    if found and not yes and not typer.confirm(f"Delete the checkpoints of {name} ({size})? This cannot be undone."):
        raise typer.Exit(1)
    opened.discard(name)
    console.say(f"Discarded the unfinished training of {name} ({size}).")


@app.command(rich_help_panel="The bank")
def restore(
    name: TaskArgument,
    version: Annotated[int, typer.Argument(metavar="VERSION", help="The version to restore.", show_default=False)],
    bank: BankOption = Path("bank"),
) -> None:
    """Restore an older version: copy it to a new version number."""
    from intarsia.cli import console

    entry = existing_bank(bank).restore(name, version)
    console.say(f"{name}: restored version {version} as version {entry.version}.")


@app.command(rich_help_panel="The bank")
def copy(
    name: TaskArgument,
    to: Annotated[Path, typer.Option("--to", metavar="BANK", help="The other bank's folder.", show_default=False)],
    version: Annotated[int | None, typer.Option(help="Another version.", show_default="the served one")] = None,
    bank: BankOption = Path("bank"),
) -> None:
    """Copy a task to another bank over the same base, with all inlays on which it is built."""
    from intarsia.cli import console

    *parents, entry = existing_bank(bank).copy(name, to, version)
    built_on = f", with {', '.join(f'{p.name}@{p.version}' for p in parents)}" if parents else ""
    console.say(f"{to} has {name} as version {entry.version}{built_on}.")


@app.command(rich_help_panel="The bank")
def verify(
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Also rebuild the index from the files.")] = False,
    bank: BankOption = Path("bank"),
    encoder: EncoderOption = None,
    json: JsonOption = False,
) -> None:
    """Check every inlay file; exit with code 1 if a file is damaged, misplaced, or has lost a parent.

    The command checks each file's digest, description, base and folder, and
    compares its tensors with the base. It also lists unfinished training runs
    and the disk space of their checkpoints.
    """
    from intarsia.cli import console

    opened = existing_bank(bank, encoder)
    problems, unfinished = opened.verify(rebuild=rebuild), opened.unfinished()
    count = sum(len(opened.versions(e.name)) for e in opened.tasks())
    if json:
        rows: list[dict[str, Any]] = [{"file": str(p.path), "state": p.state, "reason": p.reason} for p in problems]
        runs: list[dict[str, Any]] = [{"task": u.name, "folder": str(u.path), "bytes": u.bytes} for u in unfinished]
        console.print_json({"files": count, "problems": rows, "unfinished": runs})
    else:
        for problem in problems:
            console.error(problem.reason)
        others = {state: sum(p.state == state for p in problems) for state in ("misplaced", "incomplete")}
        more = "".join(f", {number} {state}" for state, number in others.items() if number)
        console.say(f"Checked {count} file{'s' * (count != 1)}: {len(problems) - sum(others.values())} damaged{more}.")
        if count and opened.base_at_hand() is None:
            console.say("The base was not found on this machine: the tensors were not compared with it (--encoder).")
        for run in unfinished:
            console.say(
                f"{run.name}: unfinished training run, checkpoint in {run.path} ({formatting.size(run.bytes)}). "
                f"Repeat its command to resume it, or discard it: intarsia discard {run.name}"
            )
    if problems:
        raise typer.Exit(1)
