"""The command line: every command is one call of the library."""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from typing import Annotated, Any

import typer

from intarsia.cli.shared import app
from intarsia.errors import IntarsiaError, IntarsiaWarning
from intarsia.version import __version__

for _commands in ("tasks", "data", "lab", "paper", "bank"):  # the order of the help
    import_module(f"intarsia.cli.{_commands}")


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
