"""Commands that write reports: a page for one task, and a learning curve."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intarsia.cli import checks, completion
from intarsia.cli.shared import (
    BankOption,
    BatchOption,
    DeviceOption,
    DropOption,
    EncoderOption,
    EncodingOption,
    EpochsOption,
    JsonOption,
    KindOption,
    LabelColumn,
    LearnLengthOption,
    MetricOption,
    PairColumn,
    PoolingOption,
    PrecisionOption,
    QuietOption,
    RateOption,
    SepOption,
    TaskArgument,
    TextColumn,
    TogetherOption,
    VersionOption,
    about,
    app,
    existing_bank,
    hushed,
    resumable,
)
from intarsia.errors import IntarsiaError

if TYPE_CHECKING:
    from intarsia.train.runner import RunnerEvent


@app.command(rich_help_panel="Tasks")
def report(
    name: TaskArgument,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA", help="Labelled data to score the task on.", show_default="the task's own test part",
            autocompletion=completion.data,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="The folder.", show_default="report-NAME",
            callback=checks.output_folder,
        ),
    ] = None,
    version: VersionOption = None,
    mistakes: Annotated[int, typer.Option("--mistakes", help="List this many of the worst mistakes.")] = 20,
    bank: BankOption = Path("bank"),
    encoder: EncoderOption = None,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = None,
) -> None:  # fmt: skip
    """Write a page about a task (index.html) and its model card (README.md).

    The page has the data, training curves, scores, confusions, calibration,
    the worst mistakes with their texts, cost and provenance. It is one file and
    loads nothing. The model card is in the format of the Hugging Face hub.
    """
    from intarsia.cli import console
    from intarsia.lab.task_report import write_report

    opened = existing_bank(bank, encoder, device, precision)
    opened.show(name, version)
    folder = output or Path(f"report-{name}")
    paths = write_report(opened, name, folder, data, version=version, mistakes=mistakes)
    console.say(f"Wrote {' and '.join(str(path) for path in paths)}")


@app.command("learning-curve", rich_help_panel="Tasks")
def learning_curve(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="Labelled data, as for [cyan]learn[/].", show_default=False,
            autocompletion=completion.data,
        ),
    ],
    sizes: Annotated[
        str | None,
        typer.Option(
            help="Numbers of training rows, separated by commas; [cyan]all[/] is all rows.",
            show_default="50, 100, 200 … all", callback=lambda text: _sizes(text) and text,
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="Runs of each size, with the seeds 0, 1, 2 …", callback=checks.at_least_one("--seeds"))
    ] = 3,
    method: Annotated[
        str | None,
        typer.Option(
            "--method", "-m", help="The method and its size.", show_default="houlsby-64", callback=checks.method,
            autocompletion=completion.methods,
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="The folder for results and the figure.",
            callback=checks.output_folder,
        ),
    ] = Path("learning-curve"),
    encoder: EncoderOption = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    kind: KindOption = None,
    sep: SepOption = None,
    encoding: EncodingOption = None,
    drop_missing: DropOption = False,
    pooling: PoolingOption = "mean",
    learning_rate: RateOption = None,
    epochs: EpochsOption = None,
    batch_size: BatchOption = None,
    max_length: LearnLengthOption = None,
    metric: MetricOption = None,
    together: TogetherOption = None,
    device: DeviceOption = "cpu",
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Find out how many labels are enough: the test score over the number of training rows.

    All sizes and seeds train in one queue and share passes. The folder gets
    learning-curve.json and learning-curve.png. The same command resumes after
    an interruption.
    """
    import shlex

    from intarsia.cli import console
    from intarsia.formatting import score, seconds
    from intarsia.methods import parse
    from intarsia.tasks.named import load_named

    quiet = quiet or json
    with hushed(quiet):
        task = load_named(
            data, text=text, pair=pair, label=label, kind=kind, sep=sep, encoding=encoding, drop_missing=drop_missing
        )
    if not quiet:
        console.err.print(about(task), markup=False)
    from intarsia.encoder.encoder import Encoder
    from intarsia.encoder.sources import EMBEDDED
    from intarsia.lab.learning_curve import FILES
    from intarsia.lab.learning_curve import learning_curve as run
    from intarsia.tasks.kind_registry import default_length
    from intarsia.tasks.lengths import propose

    base = Encoder.load(encoder or EMBEDDED, device=device)
    length = checks.read_length(max_length)
    if length == "auto":
        length = propose(task, base, default_length(task.kind)).tokens
    command = shlex.join(["intarsia", *sys.argv[1:]])
    with resumable(), hushed(quiet):
        curve = run(
            task, _sizes(sizes), parse(method) if method else None, seeds=seeds, encoder=base, folder=output,
            pooling=pooling, metric=metric, together=together, command=command,  # type: ignore[arg-type]
            watch=None if quiet else _Lines(), learning_rate=learning_rate, epochs=epochs, batch_size=batch_size,
            max_length=length,
        )  # fmt: skip
    if json:
        console.print_json(curve.to_dict())
        return
    rows = [
        [f"{p.rows:,}", score(p.score), f"{score(p.low)}–{score(p.high)}", seconds(p.seconds)] for p in curve.points
    ]
    bounds = "mean ± standard error" if seeds > 1 else "95 % interval"
    console.out.print(console.table(["training rows", f"test {curve.metric}", bounds, "time of a run"], rows, left=0))
    for problem in curve.problems:
        console.error(problem)
    console.say(f"{curve.advice}\nWrote {' and '.join(str(output / name) for name in FILES)}".strip())


class _Lines:
    """Prints a line for each run that ends."""

    def __init__(self) -> None:
        self.runs = self.ended = 0

    def __call__(self, event: RunnerEvent) -> None:
        from intarsia.cli import console
        from intarsia.formatting import score

        self.runs = len(event.planned) if event.planned is not None else self.runs
        if event.job is None or event.result is None:
            return
        self.ended += 1
        dev = "failed" if event.result.dev is None else f"validation {score(event.result.dev)}"
        rows, seed = len(event.job.data.train), event.job.settings.seed
        console.err.print(f"{self.ended} of {self.runs}: {rows:,} rows, seed {seed}: {dev}", markup=False)


def _sizes(text: str | None) -> list[int | str]:
    """Return the value of --sizes."""
    found: list[int | str] = []
    for part in (text or "").split(","):
        if part.strip() == "all":
            found.append("all")
        elif part.strip():
            try:
                found.append(int(part))
            except ValueError:
                raise IntarsiaError(f"--sizes: {part.strip()!r} is neither a number of rows nor all.") from None
    return found
