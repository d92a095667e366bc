"""The command that answers: texts in, answers out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intarsia.cli import completion
from intarsia.cli.shared import (
    BankOption,
    DeviceOption,
    EncoderOption,
    EncodingOption,
    PairColumn,
    PrecisionOption,
    QuietOption,
    SepOption,
    SwapOption,
    TextColumn,
    ThresholdOption,
    VersionOption,
    app,
    check_takes_threshold,
    existing_bank,
    hushed,
    quick_start,
    read_swap,
)
from intarsia.errors import IntarsiaError

if TYPE_CHECKING:
    from intarsia.bank.bank import Bank
    from intarsia.serve.parallel import Parallel

Ask = Callable[[list[Any]], Sequence[Any]]  # texts → a prediction for each, or a mapping from task to prediction


@app.command(rich_help_panel="Tasks")
def predict(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME[,NAME…]", help="The task's name in the bank, or several: each answers each text.",
            show_default=False, autocompletion=completion.tasks,
        ),
    ],
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
    swap: SwapOption = None,
    quiet: QuietOption = False,
    no_service: Annotated[
        bool, typer.Option("--no-service", help="Load the base here, even if a service runs over the bank.")
    ] = False,
    bank: BankOption = Path("bank"),
    encoder: EncoderOption = None,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = None,
) -> None:  # fmt: skip
    """Predict with a task, from arguments, standard input or a file.

    The command prints one JSON object per text, or CSV. Lines of standard input are answered at once, each with one
    line. A row without a text gets an empty answer. If a service runs over the bank, it answers.

    The input depends on the task's kind:

    Text pairs: separate the two texts by a tab.

    Tags: give a text, which is split at white space, or a JSON Lines file with lists of [cyan]tokens[/].

    Several tasks, as in [cyan]topic,tone@2[/], answer each text together. Each must read the same kind of texts.

    Spans: give questions with [cyan]--context[/], or with a tab and the context after each question, or a SQuAD file.

    Words: give texts with mask tokens.
    """
    from intarsia.cli import answer_files, answers, parallel_answers
    from intarsia.tasks.decoding import FileFormat

    answer_files.check_format(output, format)
    form = FileFormat.of(sep, encoding)
    if file is not None and texts:
        raise IntarsiaError("Texts were given both as arguments and with --file; use one of the two.")
    for option, value in (("--text", text), ("--pair", pair), ("--sep", sep), ("--encoding", encoding)):
        if file is None and value is not None:
            raise IntarsiaError(f"{option} describes a data file: give one with --file, or leave {option} out.")
    swapped = read_swap(swap)
    opened = existing_bank(bank, encoder, device, precision)
    if threshold is not None and "," not in name:
        check_takes_threshold(opened.show(name, version).header.kind, name)
    several = parallel_answers.tasks_of(name, version=version, threshold=threshold, swap=swapped)
    header = opened.show(name, version).header if several is None else parallel_answers.header_of_all(opened, several)
    asked = answers.Asked.of(header, context)
    written = answer_files.chosen_format(output, format, header.kind if several is None else "several")
    writer: answer_files.Writer = answer_files.Writer(name, header.kind, written, output)
    if several is not None:
        writer = parallel_answers.ParallelWriter(several, written, output)
    if file is not None:
        parts = answers.of_file(file, asked, text, pair, form)
    elif texts:
        parts = answers.of_arguments(texts, asked)
    else:
        parts = answers.of_standard_input(asked)
    ask: Ask | None = None
    with hushed(quiet):
        for rows in parts:
            given = [row.text for row in rows if row.text is not None]
            if given and ask is None:
                given_here = (version, encoder, precision, swapped)
                alone = no_service or any(option is not None for option in given_here) or device != "cpu" or "@" in name
                ask = _service(bank, several or name) if not alone else None
                ask = ask or _base_here(opened, several or name, version, swapped, encoder, device)
            answered = ask(given) if ask is not None and given else []
            if threshold is not None:
                answered = [prediction.at_threshold(threshold) for prediction in answered]
            found = iter(answered)
            writer.take(rows, [None if row.text is None else next(found) for row in rows])
    writer.end(quiet=quiet)


def _service(bank: Path, task: str | Parallel) -> Ask | None:
    """Return the function that asks the service over a bank; None if none runs. It needs no PyTorch."""
    from intarsia.cli import parallel_answers
    from intarsia.client import Client

    client = Client.for_bank(bank)
    if client is None:
        return None
    if not isinstance(task, str):
        return parallel_answers.of_service(client, task)
    return lambda texts: client.predict(task, texts)


def _base_here(
    bank: Bank,
    task: str | Parallel,
    version: int | None,
    swap: dict[str, str] | None,
    encoder: str | None,
    device: str,
) -> Ask:
    """Return the function that answers with the base loaded in this process."""
    quick_start(bank, encoder, device)
    if not isinstance(task, str):
        return lambda texts: bank.predict(task, texts)
    return lambda texts: bank.predict(task, texts, version=version, swap=swap)
