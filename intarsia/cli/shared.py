"""The application, and the options that several commands have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from intarsia.bank.bank import Bank
    from intarsia.tasks import TaskData

app = typer.Typer(
    name="intarsia",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Many text tasks as small inlays over one frozen transformer.

    Each task is learned as a small file, beside a base that never changes. Learning one task never touches another,
    and one pass through the base answers all of them.

    [bold]A first task[/]: a CSV file with the columns [cyan]text[/] and [cyan]label[/]:

      intarsia learn spam spam.csv\n
      intarsia predict spam "You have won a prize!"\n
      intarsia tasks

    Bad input ends with exit code 2 and a message that says what to do; nothing is lost.""",
)

BankOption = Annotated[
    Path, typer.Option("--bank", "-b", envvar="INTARSIA_BANK", help="The bank's folder.", show_default=True)
]
EncoderOption = Annotated[
    str | None,
    typer.Option(
        "--encoder", "-e", show_default="the bank's own, or minilm",
        help="The frozen base: [cyan]minilm[/], a transformers folder, or a hub name. A bank remembers its own; name "
        "it to begin a bank, or when its folder has moved.",
    ),
]  # fmt: skip
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
TaskArgument = Annotated[str, typer.Argument(metavar="NAME", help="The task's name in the bank.", show_default=False)]
TextColumn = Annotated[str | None, typer.Option("--text", help="The column with the text.", show_default="found")]
PairColumn = Annotated[str | None, typer.Option("--pair", help="The column with the second text of a pair.")]
LabelColumn = Annotated[str | None, typer.Option("--label", help="The column with the label.", show_default="found")]
KindOption = Annotated[
    str | None,
    typer.Option("--kind", help="label, labels (several of n), score, tags, span or words.", show_default="found"),
]
LimitOption = Annotated[int | None, typer.Option("--limit", help="Learn from at most so many training examples.")]
PoolingOption = Annotated[
    str, typer.Option("--pooling", help="What the head reads: mean, cls, pooler or trained-pooler.")
]
MaxLengthOption = Annotated[
    int | None, typer.Option(help="Longer texts are cut to so many tokens.", show_default="128, for spans 384")
]
TrunkDropoutOption = Annotated[
    bool | None,
    typer.Option(
        "--trunk-dropout/--no-trunk-dropout", show_default="on",
        help="Dropout also below the lowest layer in which a method acts. Without it what is below is computed once "
        "and kept, which is faster for methods in upper layers ([cyan]--set layers=3-5[/]).",
    ),
]  # fmt: skip
OldTrunkDropoutOption = Annotated[
    bool | None, typer.Option("--prefix-dropout/--no-prefix-dropout", hidden=True)
]  # the name before 0.2
BiasCorrectionOption = Annotated[
    bool | None,
    typer.Option(
        "--bias-correction/--no-bias-correction", show_default="by the method's recipe; off in the paper's grids",
        help="Correct the optimizer's means for their start at 0: early steps are smaller, small data steadier.",
    ),
]  # fmt: skip
DeviceOption = Annotated[str, typer.Option("--device", help="Where to compute: cpu, cuda, cuda:1 …")]


PrecisionOption = Annotated[
    str | None,
    typer.Option("--precision", help="What the base computes in: bf16 or float32.", show_default="bf16 on GPUs"),
]


@contextmanager
def resumable() -> Iterator[None]:
    """For work that goes on where it was when it is started again."""
    try:
        yield
    except KeyboardInterrupt:
        from intarsia.cli import console

        console.err.print("Interrupted. The same command goes on from the last stored step.")
        raise typer.Exit(130) from None


def about(task: TaskData) -> str:
    """What a task asks for, and its rows."""
    rows = ", ".join(f"{count:,} {part}" for part, count in task.source["rows"].items())
    return f"{task.asks}; {rows} ({task.source['split']})"


def open_bank(bank: Path, encoder: str | None = None, device: str = "cpu", precision: str | None = None) -> Bank:
    from intarsia.bank.bank import Bank

    return Bank(bank, encoder, device=device, precision=precision)
