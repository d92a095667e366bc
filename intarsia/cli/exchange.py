"""Commands that exchange adapters with other libraries and with the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from intarsia import formatting
from intarsia.cli import checks
from intarsia.cli.shared import BankOption, EncoderOption, JsonOption, app, open_bank, resumable
from intarsia.exchange import FORMATS
from intarsia.tasks.examples import KINDS

PANEL = "Exchange"


@app.command("import", rich_help_panel=PANEL)
def import_(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The task's name in the bank.", show_default=False)],
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="A folder, a file of tensors or, with --hub, owner/name.", show_default=False
        ),
    ],
    format: Annotated[
        str | None,
        typer.Option(
            "--format", help=f"{', '.join(FORMATS)}.", show_default="detected",
            callback=checks.one_of("--format", FORMATS),
        ),
    ] = None,
    hub: Annotated[bool, typer.Option("--hub", help="SOURCE is a repository of the hub.")] = False,
    revision: Annotated[str | None, typer.Option("--revision", help="With --hub: a branch, tag or commit.")] = None,
    labels: Annotated[
        str | None,
        typer.Option("--labels", metavar="A,B,…", help="The labels, in the order of the head's outputs."),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", help="label, labels (any of n), score, tags or span.", show_default="the file's",
            callback=checks.one_of("--kind", KINDS)),
    ] = None,
    headless: Annotated[bool, typer.Option("--headless", help="Leave out the head.")] = False,
    same: Annotated[
        bool,
        typer.Option(
            "--base-is-the-same", help="The file names its base otherwise, but its weights are the bank's base."
        ),
    ] = False,
    check: Annotated[
        str | None, typer.Option("--check", metavar="ROWS", help="Labelled rows, whose score is stored.")
    ] = None,
    serve_anyway: Annotated[
        bool, typer.Option("--serve-anyway", help="Serve it even if it scores worse than the served version.")
    ] = False,
    bank: BankOption = Path("bank"),
    encoder: EncoderOption = None,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Import an adapter of AdapterHub, peft or composable-sft as a task.

    Every flag and tensor of the file must have its place; else nothing is
    imported, and the message names what is left. No code of the file runs.
    """
    from intarsia.cli import console

    given = None if labels is None else [label.strip() for label in labels.split(",")]
    with resumable():
        entry = open_bank(bank, encoder).import_(
            name, source, format=format, hub=hub, revision=revision, labels=given, kind=kind, headless=headless,
            base_is_the_same=same, check=check, serve_anyway=serve_anyway,
        )  # fmt: skip
    if json:
        console.print_json(entry.to_dict())
        return
    header = entry.header
    origin = header.training["imported"]
    labels_text = ", ".join(header.labels) or ("no head" if header.kind == "none" else header.kind)
    console.say(
        f"Imported {name} version {entry.version} from {origin['source']} ({origin['library'] or origin['format']}): "
        f"{header.method['type']}, {formatting.number(header.parameters['total'])} parameters; {labels_text}."
    )
    for folded in origin.get("folded", ()):
        console.note(f"Computed into the tensors, exactly: {folded}.")
    for note in origin.get("notes", ()):
        console.note(f"{note}.")
    if given is None and header.labels and header.labels[0] == "LABEL_0":
        console.note("The file has no labels: they are numbered. Import it again with --labels to name them.")
    test = header.metrics.get("test")
    if test:
        console.say(f"{header.metrics['metric']} on {test['examples']} rows: {formatting.score(test['value'])}")
