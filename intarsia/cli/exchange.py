"""Commands that exchange adapters with other libraries and with the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from intarsia import formatting
from intarsia.cli import checks
from intarsia.cli.shared import (
    BankOption,
    EncoderOption,
    JsonOption,
    TaskArgument,
    app,
    existing_bank,
    open_bank,
    resumable,
)
from intarsia.errors import IntarsiaError
from intarsia.exchange import EXPORTS, FORMATS
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


LicenseOption = Annotated[
    str | None, typer.Option("--license", help="The licence that the card states.", show_default="none stated")
]


@app.command(rich_help_panel=PANEL)
def export(
    name: TaskArgument,
    format: Annotated[
        str,
        typer.Option("--format", help=f"{', '.join(EXPORTS)}.", callback=checks.one_of("--format", EXPORTS)),
    ] = "merged",
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="The folder to create.", show_default=False)
    ] = None,
    merged: Annotated[
        Path | None,
        typer.Option(
            "--merged", metavar="DIR", help="The same as --format merged --output DIR.", show_default=False
        ),
    ] = None,
    version: Annotated[int | None, typer.Option(help="An older version.", show_default="the newest")] = None,
    license: LicenseOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a folder that is not empty.")] = False,
    bank: BankOption = Path("bank"),
    encoder: EncoderOption = None,
) -> None:  # fmt: skip
    """Export a task as a folder that works without Intarsia.

    merged: a plain transformers model with the task in its weights; `intarsia
    methods` lists the methods that can be merged. adapterhub, peft, sft: an
    adapter of that library. inlay: a bank with this task alone. What a format cannot express is refused with the
    reason. The folder is read back, and kept only if its answers are the bank's.
    """
    from intarsia.cli import console

    if (output is None) == (merged is None) or (merged is not None and format != "merged"):
        raise IntarsiaError("export needs a folder: --merged DIR, or --output DIR with --format peft or another.")
    folder = output or merged
    assert folder is not None
    done = existing_bank(bank, encoder).export(name, folder, version, format=format, license=license, force=force)
    if done.format == "inlay":
        console.say(f"Wrote {name} version {done.version} to {folder}, as a bank: {formatting.size(done.bytes)}.")
        return
    if done.format != "merged":
        console.say(
            f"Wrote {name} version {done.version} to {folder}: {done.format}, {formatting.size(done.bytes)}. Read "
            f"back, the answers to {done.probes} texts differ by at most {done.difference:.1e} of the largest value. "
            "README.md shows how to load it."
        )
        return
    head = f", head in {done.head} (see README.md)" if done.head else ""
    console.say(
        f"Wrote {name} version {done.version} to {folder}: {done.model}{head}, {formatting.size(done.bytes)}. "
        f"Check without Intarsia: the logits of {done.probes} texts differ by at most {done.difference:.1e} of the "
        "largest logit."
    )
    if done.head:
        console.note(
            'No class of transformers computes this task\'s head, so pipeline("text-classification") cannot open the '
            "folder; README.md shows how to use it. For a folder that it opens, learn with --pooling trained-pooler."
        )


@app.command(rich_help_panel=PANEL)
def push(
    name: TaskArgument,
    repo: Annotated[str, typer.Argument(metavar="OWNER/REPO", help="A repository of the hub.", show_default=False)],
    version: Annotated[int | None, typer.Option(help="Another version.", show_default="the served one")] = None,
    public: Annotated[bool, typer.Option("--public", help="If the repository is created: anyone may read it.")] = False,
    license: LicenseOption = None,
    bank: BankOption = Path("bank"),
) -> None:
    """Upload a task to the Hugging Face hub, with the inlays on which it is built and a card."""
    from intarsia.cli import console

    address = existing_bank(bank).push(name, repo, version, license=license, private=not public)
    console.say(f"Uploaded {name}: {address}")


@app.command(rich_help_panel=PANEL)
def pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The task's name in the bank.", show_default=False)],
    repo: Annotated[str, typer.Argument(metavar="OWNER/REPO", help="A repository of the hub.", show_default=False)],
    revision: Annotated[str | None, typer.Option("--revision", help="A branch, tag or commit.")] = None,
    bank: BankOption = Path("bank"),
    encoder: EncoderOption = None,
) -> None:
    """Download a task that push uploaded, with the inlays on which it is built. Its base must be the bank's."""
    from intarsia.cli import console

    entry = open_bank(bank, encoder).pull(name, repo, revision=revision)
    console.say(f"{name} version {entry.version} from {repo}: {entry.header.method['type']}.")
