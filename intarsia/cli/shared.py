"""The application, and the options that several commands share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from intarsia.errors import IntarsiaError

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
    help="""Train many text tasks as small inlays over one frozen transformer.

    Each task is one small file; the base never changes. Learning a task does
    not affect other tasks. One pass through the base can serve all tasks.

    [bold]First task[/]: a CSV file with the columns [cyan]text[/] and [cyan]label[/]:

      intarsia learn spam spam.csv\n
      intarsia predict spam "You have won a prize!"\n
      intarsia tasks

    A user error ends with a message and exit code 2; stored tasks stay intact.""",
)

ADVANCED = "Advanced options"  # a panel of its own: its long names would narrow the help of all other options

BankOption = Annotated[
    Path, typer.Option("--bank", "-b", envvar="INTARSIA_BANK", help="The bank's folder.", show_default=True)
]
EncoderOption = Annotated[
    str | None,
    typer.Option(
        "--encoder", "-e", show_default="the bank's base, or minilm",
        help="The frozen base: [cyan]minilm[/], a transformers folder or a hub name. A bank stores its base; set this "
        "for a new bank, or if the base has moved.",
    ),
]  # fmt: skip
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TaskArgument = Annotated[str, typer.Argument(metavar="NAME", help="The task's name in the bank.", show_default=False)]
TextColumn = Annotated[str | None, typer.Option("--text", help="The column with the text.", show_default="detected")]
PairColumn = Annotated[str | None, typer.Option("--pair", help="The column with the second text of a pair.")]
LabelColumn = Annotated[str | None, typer.Option("--label", help="The column with the label.", show_default="detected")]
KindOption = Annotated[
    str | None,
    typer.Option("--kind", help="label, labels (any of n), score, tags, span or words.", show_default="detected"),
]
LimitOption = Annotated[int | None, typer.Option("--limit", help="Use at most this many training examples.")]
MaxBytesOption = Annotated[
    int | None,
    typer.Option(
        "--max-bytes", min=1, show_default="2 GiB", envvar="INTARSIA_MAX_BYTES", rich_help_panel=ADVANCED,
        callback=lambda limit: _limit_content(limit),
        help="Refuse data files with more content than this, after decompression.",
    ),
]  # fmt: skip
PoolingOption = Annotated[
    str, typer.Option("--pooling", help="Input of the head: mean, cls, pooler or trained-pooler.")
]
MaxLengthOption = Annotated[
    int | None, typer.Option(help="Cut longer texts to this many tokens.", show_default="128; 384 for spans")
]
LearnLengthOption = Annotated[
    str | None,
    typer.Option(
        "--max-length", metavar="TOKENS|auto", show_default="128; 384 for spans",
        help="Cut longer texts to this many tokens; [cyan]auto[/] chooses by the data.",
    ),
]  # fmt: skip
ClassWeightsOption = Annotated[
    str | None,
    typer.Option(
        "--class-weights", metavar="balanced|LABEL=W,…",
        help="Weights of the labels in the loss: [cyan]balanced[/], or a list such as [cyan]spam=5,ham=1[/].",
    ),
]  # fmt: skip
ThresholdOption = Annotated[
    float | None,
    typer.Option(
        "--threshold", help="The probability from which a label applies, for several labels of n.",
        show_default="one for each label, found on validation",
    ),
]  # fmt: skip
CalibrateOption = Annotated[
    bool,
    typer.Option(
        "--calibrate/--no-calibration", rich_help_panel=ADVANCED,
        help="Find a temperature on validation, so that probabilities mean what they say.",
    ),
]  # fmt: skip
TrunkDropoutOption = Annotated[
    bool | None,
    typer.Option(
        "--trunk-dropout/--no-trunk-dropout", show_default="on", rich_help_panel=ADVANCED,
        help="Apply dropout also in the trunk, the layers below the lowest trained place. Without it, the trunk's "
        "outputs are cached, which is faster for methods in upper layers.",
    ),
]  # fmt: skip
OldTrunkDropoutOption = Annotated[
    bool | None, typer.Option("--prefix-dropout/--no-prefix-dropout", hidden=True)
]  # the name before 0.2
BiasCorrectionOption = Annotated[
    bool | None,
    typer.Option(
        "--bias-correction/--no-bias-correction", show_default="the method's; off in the paper's grids",
        rich_help_panel=ADVANCED,
        help="Adam's bias correction: smaller first steps, more stable on small data.",
    ),
]  # fmt: skip
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1 …")]


PrecisionOption = Annotated[
    str | None,
    typer.Option("--precision", help="Precision of the base: bf16 or float32.", show_default="bf16 on GPUs"),
]


def _limit_content(limit: int | None) -> int | None:
    from intarsia.tasks.content import set_content_limit

    set_content_limit(limit)
    return limit


@contextmanager
def resumable() -> Iterator[None]:
    """Exit with code 130 at Ctrl-C (143 at SIGTERM, 129 at SIGHUP) and say that the command can be resumed."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        from intarsia.cli import console

        with suppress(OSError):  # the terminal may be closed
            console.err.print("Interrupted. Repeat the command to resume from the last checkpoint.")
        raise typer.Exit(128 + getattr(interrupt, "number", 2)) from None


def read_length(text: str | None) -> int | Literal["auto"] | None:
    """Return the value of --max-length."""
    if text is None or text == "auto":
        return cast(Literal["auto"] | None, text)
    try:
        return int(text)
    except ValueError:
        raise IntarsiaError(f"--max-length {text!r} is neither a number of tokens nor auto.") from None


def read_class_weights(text: str | None) -> str | dict[str, float] | None:
    """Return the value of --class-weights: a word, or weights by label."""
    if text is None or "=" not in text:
        return text
    weights = {}
    for part in text.split(","):
        label, _, weight = part.rpartition("=")
        try:
            weights[label.strip()] = float(weight)
        except ValueError:
            raise IntarsiaError(f"--class-weights: {part!r} is not LABEL=WEIGHT, such as spam=5.") from None
    return weights


def about(task: TaskData) -> str:
    """Return a task's kind of output and its numbers of rows, in one line."""
    rows = ", ".join(f"{count:,} {part}" for part, count in task.source["rows"].items())
    return f"{task.asks}; {rows} ({task.source['split']})"


def open_bank(bank: Path, encoder: str | None = None, device: str = "cpu", precision: str | None = None) -> Bank:
    from intarsia.bank.bank import Bank

    return Bank(bank, encoder, device=device, precision=precision)
