"""The command line: every command is one call of the library."""

from __future__ import annotations

import io
import os
import sys
import warnings
from copy import copy
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from intarsia import files
from intarsia.cli.shared import app
from intarsia.errors import IntarsiaError, IntarsiaWarning
from intarsia.version import __version__

for _commands in (
    "tasks",
    "predict",
    "explain",
    "reports",
    "data",
    "lab",
    "paper",
    "bank",
    "weights",
    "exchange",
    "serve",
):  # the order of the help
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


def _app_for(command: str) -> typer.Typer:
    """Return the application with one command if `command` is its full name: Typer builds all commands it has."""
    named = [one for one in app.registered_commands if command in (one.name, getattr(one.callback, "__name__", None))]
    if not named:
        return app
    made = copy(app)
    made.registered_commands, made.registered_groups = named, []
    return made


def _check_arguments(arguments: list[str]) -> None:
    """Raise if an argument is not UTF-8: no text, name or path that an inlay describes could hold it."""
    for number, argument in enumerate(arguments, 1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            shown = argument.encode(errors="backslashreplace").decode()
            raise IntarsiaError(
                f"argument {number} is not valid UTF-8: {shown!r}. Give texts in UTF-8, and rename a file whose name "
                "is in another encoding."
            ) from None


def _notes(default: Any) -> Any:
    """Return a `warnings.showwarning` that prints Intarsia's own warnings as notes."""

    def show(message: Any, category: Any, *place: Any, **more: Any) -> None:
        if not issubclass(category, IntarsiaWarning):
            return default(message, category, *place, **more)
        from intarsia.cli import console

        return console.note(str(message))

    return show


def _fail(message: str) -> NoReturn:
    from intarsia.cli import console

    console.error(message)
    sys.exit(2)


def main() -> None:
    """Run the command line. An `IntarsiaError` becomes a message and exit code 2."""
    for stream in (sys.stdout, sys.stderr):  # a terminal's encoding may lack a character: print its number instead
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    warnings.simplefilter("always", IntarsiaWarning)
    warnings.showwarning = _notes(warnings.showwarning)
    try:
        try:
            _check_arguments(sys.argv[1:])
            _app_for(" ".join(sys.argv[1:2]))()
        except IntarsiaError as error:
            _fail(str(error))
        except BrokenPipeError:
            raise
        except OSError as error:
            path = Path(str(error.filename or "a file"))
            _fail(str(files.storage_error(error, path, doing="use", outcome="")))
        finally:
            sys.stdout.flush()  # flush here, because a failure during interpreter shutdown cannot be caught
    except BrokenPipeError:  # the reader has closed the pipe, as in `intarsia tasks --json | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
