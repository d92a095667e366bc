"""The command that explains answers: which words carried them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from intarsia.cli import checks
from intarsia.cli.shared import (
    BankOption,
    DeviceOption,
    EncoderOption,
    JsonOption,
    PrecisionOption,
    TaskArgument,
    VersionOption,
    app,
    existing_bank,
    quick_start,
)
from intarsia.errors import IntarsiaError

METHODS = ("occlusion", "gradients")


@app.command(rich_help_panel="Tasks")
def explain(
    name: TaskArgument,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT…", help="Texts.", show_default=False)],
    by: Annotated[
        str,
        typer.Option(
            "--by", help="occlusion (leave each word out) or gradients (integrated gradients).",
            callback=checks.one_of("--by", METHODS), autocompletion=lambda: list(METHODS),
        ),
    ] = "occlusion",
    label: Annotated[
        str | None, typer.Option("--label", help="The label to explain.", show_default="the likeliest")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE.html", help="Write a page with the coloured texts.",
            callback=checks.output_file,
        ),
    ] = None,
    version: VersionOption = None,
    bank: BankOption = Path("bank"),
    encoder: EncoderOption = None,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = None,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Show which words of a text carried a task's answer.

    Effects are differences in the log odds of the label, or in the score. Words with an effect above 0 speak for it.

    Text pairs: separate the two texts by a tab.
    """
    from intarsia.cli import answers, console
    from intarsia.cli.explanation_table import explanation_parts

    opened = existing_bank(bank, encoder, device, precision)
    header = opened.show(name, version).header
    if output is not None and output.suffix not in (".html", ".htm"):
        raise IntarsiaError(f"--output {output}: the page is HTML; give a name that ends in .html.")
    from intarsia.serve.explain import check

    check(header.kind, header.labels, by, label, name)  # before the base is loaded
    asked = [row.text for rows in answers.of_arguments(texts, answers.Asked.of(header, None)) for row in rows]
    if None in asked:
        raise IntarsiaError(f"text {asked.index(None) + 1} is empty: it has no words to explain.")
    quick_start(opened, encoder, device)
    found = opened.explain(name, asked, by=by, label=label, version=version)  # type: ignore[arg-type]
    if output is not None:
        from intarsia import files
        from intarsia.serve.explanation import page

        files.replace(output, [page(found).encode()])
        console.err.print(f"Wrote {output}", markup=False)
    if json:
        console.print_json([explanation.to_dict() for explanation in found])
    elif output is None:
        for number, explanation in enumerate(found):
            console.print_parts([*([""] if number else []), *explanation_parts(explanation)])
