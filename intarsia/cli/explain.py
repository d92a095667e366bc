"""The command that explains answers: which words carried them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

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
from intarsia.formatting import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from intarsia.serve.explanation import Explanation

SHOWN, WIDTH = 10, 24  # words of a table, characters of a bar
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
        Path | None, typer.Option("--output", "-o", metavar="FILE.html", help="Write a page with the coloured texts.")
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


def explanation_parts(found: Explanation) -> list[RenderableType]:
    """Return an explanation for the terminal: the coloured text, and the words with the largest effects."""
    from intarsia.cli import console

    parts: list[RenderableType] = [
        f"{found.task}: {found.named} ({found.unit} {found.value:+.2f}, by {found.by})",
        _coloured(found, "text", found.text),
    ]
    if found.pair is not None:
        parts.append(_coloured(found, "pair", found.pair))
    occluded = found.by == "occlusion"
    rows: list[list[str | Text]] = [
        [
            word.word if found.pair is None else f"{word.word} ({word.field})",
            _bar(word.effect / found.largest if found.largest else 0.0),
            f"{word.effect:+.3f}",
            *([f"{word.without:.4f}"] if word.without is not None else []),
        ]
        for word in found.strongest(SHOWN)
    ]
    columns = ["word", "", "effect", *(["without it"] if occluded else [])]
    parts += ["", console.table(columns, rows, left=2)]
    if len(found.words) > SHOWN:
        parts.append(f"… and {len(found.words) - SHOWN} words with smaller effects")
    if found.unread:
        parts.append(f"{found.unread} words are beyond the task's maximum length and were not read.")
    if (
        found.error is not None
        and found.baseline is not None
        and abs(found.error) > abs(0.05 * (found.value - found.baseline))
    ):
        parts.append(f"The effects are rough: their sum is off by {found.error:+.3f}.")
    return parts


def _coloured(found: Explanation, field: str, text: str) -> Text:
    drawn, at = Text(), 0
    for word in (w for w in found.words if w.field == field):
        drawn.append(printable(text[at : word.start]))
        share = abs(word.effect) / found.largest if found.largest else 0.0
        colour = "green" if word.effect > 0 else "red"
        style = f"bold reverse {colour}" if share > 0.5 else colour if share > 0.15 else ""
        drawn.append(printable(text[word.start : word.end]), style=style)
        at = word.end
    drawn.append(printable(text[at:]))
    return drawn


def _bar(share: float) -> Text:
    return Text("█" * max(1, round(WIDTH * abs(share))), style="green" if share > 0 else "red") if share else Text("")
