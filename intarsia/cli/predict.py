"""The command that answers: texts in, answers out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intarsia.cli.shared import (
    BankOption,
    DeviceOption,
    EncoderOption,
    EncodingOption,
    PairColumn,
    PrecisionOption,
    QuietOption,
    SepOption,
    TaskArgument,
    TextColumn,
    ThresholdOption,
    VersionOption,
    app,
    existing_bank,
    quick_start,
)
from intarsia.errors import IntarsiaError

if TYPE_CHECKING:
    from intarsia.bank.bank import Bank
    from intarsia.serve.prediction import Prediction


@app.command(rich_help_panel="Tasks")
def predict(
    name: TaskArgument,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT…", help="Texts; by default, one per line from standard input.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Answer the rows of this data file, and keep its columns.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write to this file: .jsonl, .csv, .tsv, .json or .xlsx.",
            show_default="standard output",
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            help="jsonl, csv, tsv, json, xlsx or squad (question id → answer).",
            show_default="by file extension, else jsonl",
        ),
    ] = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    sep: SepOption = None,
    encoding: EncodingOption = None,
    context: Annotated[
        str | None, typer.Option(help="The context of the questions, for a span task.", show_default=False)
    ] = None,
    version: VersionOption = None,
    threshold: ThresholdOption = None,
    quiet: QuietOption = False,
    no_service: Annotated[
        bool, typer.Option("--no-service", help="Load the base here, even if a service runs over the bank.")
    ] = False,
    bank: BankOption = Path("bank"),
    encoder: EncoderOption = None,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = None,
) -> None:
    """Predict with a task, from arguments, standard input or a file.

    The command prints one JSON object per text, or CSV. Lines of standard input are answered at once, each with one
    line. A row without a text gets an empty answer. If a service runs over the bank, it answers.

    The input depends on the task's kind:

    Text pairs: separate the two texts by a tab.

    Tags: give a text, which is split at white space, or a JSON Lines file with lists of [cyan]tokens[/].

    Spans: give questions with [cyan]--context[/], or with a tab and the context after each question, or a SQuAD file.

    Words: give texts with mask tokens.
    """
    from intarsia.cli import answer_files, answers
    from intarsia.tasks.decoding import FileFormat

    answer_files.check_format(output, format)
    form = FileFormat.of(sep, encoding)
    if file is not None and texts:
        raise IntarsiaError("Texts were given both as arguments and with --file; use one of the two.")
    for option, value in (("--text", text), ("--pair", pair), ("--sep", sep), ("--encoding", encoding)):
        if file is None and value is not None:
            raise IntarsiaError(f"{option} describes a data file: give one with --file, or leave {option} out.")
    opened = existing_bank(bank, encoder, device, precision)
    header = opened.show(name, version).header
    asked = answers.Asked.of(header, context)
    writer = answer_files.Writer(name, header.kind, answer_files.chosen_format(output, format, header.kind), output)
    if file is not None:
        parts = answers.of_file(file, asked, text, pair, form)
    elif texts:
        parts = answers.of_arguments(texts, asked)
    else:
        parts = answers.of_standard_input(asked)
    ask: Callable[[list[Any]], Sequence[Prediction]] | None = None
    for rows in parts:
        given = [row.text for row in rows if row.text is not None]
        if given and ask is None:
            alone = no_service or any(option is not None for option in (version, encoder, precision)) or device != "cpu"
            ask = _service(bank, name) if not alone else None
            ask = ask or _base_here(opened, name, version, encoder, device)
        answered = ask(given) if ask is not None and given else []
        if threshold is not None:
            answered = [prediction.at_threshold(threshold) for prediction in answered]
        found = iter(answered)
        writer.take(rows, [None if row.text is None else next(found) for row in rows])
    writer.end(quiet=quiet)


def _service(bank: Path, name: str) -> Callable[[list[Any]], Sequence[Prediction]] | None:
    """Return the function that asks the service over a bank; None if none runs. It needs no PyTorch."""
    from intarsia.client import Client

    client = Client.for_bank(bank)
    return None if client is None else lambda texts: client.predict(name, texts)


def _base_here(
    bank: Bank, name: str, version: int | None, encoder: str | None, device: str
) -> Callable[[list[Any]], Sequence[Prediction]]:
    """Return the function that answers with the base loaded in this process."""
    quick_start(bank, encoder, device)
    return lambda texts: bank.predict(name, texts, version=version)
