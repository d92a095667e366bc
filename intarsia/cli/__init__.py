"""The command line: every command is one call of the library."""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from inspect import cleandoc
from typing import Annotated, Any

import typer

from intarsia.cli.shared import app
from intarsia.errors import IntarsiaError, IntarsiaWarning
from intarsia.version import __version__

for _commands in ("tasks", "predict", "data", "lab", "paper", "bank"):  # the order of the help
    import_module(f"intarsia.cli.{_commands}")


def _unwrapped(text: str) -> str:
    """Return a help text with each paragraph on one line: the terminal's width breaks the lines."""
    parts = [part.rstrip() for part in cleandoc(text).split("\n\n")]
    return "\n\n".join(part if part.startswith("  ") else " ".join(part.split()) for part in parts)


def _unwrap(typer_app: typer.Typer) -> None:
    if isinstance(typer_app.info.help, str):
        typer_app.info.help = _unwrapped(typer_app.info.help)
    for command in typer_app.registered_commands:
        command.help = _unwrapped(command.help or (command.callback.__doc__ if command.callback else None) or "")
    for group in typer_app.registered_groups:
        if group.typer_instance is not None:
            _unwrap(group.typer_instance)


_unwrap(app)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"intarsia {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _notes(default: Any) -> Any:
    """Return a `warnings.showwarning` that prints Intarsia's own warnings as notes."""

    def show(message: Any, category: Any, *place: Any, **more: Any) -> None:
        if not issubclass(category, IntarsiaWarning):
            return default(message, category, *place, **more)
        from intarsia.cli import console

        return console.note(str(message))

    return show


def main() -> None:
    """Run the command line. An `IntarsiaError` becomes a message and exit code 2."""
    from intarsia.cli import console

    warnings.simplefilter("always", IntarsiaWarning)
    warnings.showwarning = _notes(warnings.showwarning)
    try:
        try:
            app()
        except IntarsiaError as error:
            console.error(str(error))
            sys.exit(2)
        finally:
            sys.stdout.flush()  # flush here, because a failure during interpreter shutdown cannot be caught
    except BrokenPipeError:  # the reader has closed the pipe, as in `intarsia tasks --json | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
