"""The application, and the options that several commands share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intarsia.cli import checks, completion
from intarsia.errors import IntarsiaError, IntarsiaWarning
from intarsia.tasks.examples import KINDS

if TYPE_CHECKING:
    from intarsia.bank.bank import Bank
    from intarsia.tasks import TaskData

app = typer.Typer(
    name="intarsia",
    no_args_is_help=True,
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
TaskArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="The task's name in the bank.", show_default=False, autocompletion=completion.tasks
    ),
]
TextColumn = Annotated[str | None, typer.Option("--text", help="The column with the text.", show_default="detected")]
PairColumn = Annotated[str | None, typer.Option("--pair", help="The column with the second text of a pair.")]
LabelColumn = Annotated[str | None, typer.Option("--label", help="The column with the label.", show_default="detected")]
KindOption = Annotated[
    str | None,
    typer.Option(
        "--kind", help="label, labels (any of n), score, tags, span or words.", show_default="detected",
        callback=checks.one_of("--kind", KINDS), autocompletion=lambda: list(KINDS),
    ),
]  # fmt: skip
VersionOption = Annotated[
    int | None, typer.Option("--version", help="Another version of the task.", show_default="the served one")
]
SwapOption = Annotated[
    list[str] | None,
    typer.Option("--swap", metavar="PARENT=TASK", help="Let another inlay stand in for one that the task is built on."),
]
SepOption = Annotated[
    str | None,
    typer.Option(
        "--sep", metavar="CHARACTER", help="The separator of a .csv or .tsv file: ';' or tab.", show_default="detected"
    ),
]
EncodingOption = Annotated[
    str | None,
    typer.Option("--encoding", help="The encoding of a text file, such as latin-1.", show_default="detected"),
]
LogOption = Annotated[
    list[str] | None,
    typer.Option(
        "--log", metavar="TRACKER:PLACE", callback=checks.trackers,
        help="Log training to [cyan]tensorboard:runs/[/], [cyan]mlflow:runs.db[/] or [cyan]wandb:PROJECT[/]; "
        "may be repeated.",
    ),
]  # fmt: skip
DropOption = Annotated[bool, typer.Option("--drop-missing", help="Leave out rows without a text or a label.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress and no notes.")]
LimitOption = Annotated[int | None, typer.Option("--limit", help="Use at most this many training examples.")]
MaxBytesOption = Annotated[
    int | None,
    typer.Option(
        "--max-bytes", metavar="BYTES", show_default="2 GiB", envvar="INTARSIA_MAX_BYTES", rich_help_panel=ADVANCED,
        callback=lambda limit: _limit_content(limit),
        help="Refuse data files with more content than this, after decompression.",
    ),
]  # fmt: skip
PoolingOption = Annotated[
    str,
    typer.Option(
        "--pooling", help="Input of the head: mean, cls, pooler or trained-pooler.",
        callback=checks.one_of("--pooling", checks.POOLINGS), autocompletion=lambda: list(checks.POOLINGS),
    ),
]  # fmt: skip
LearnPoolingOption = Annotated[
    str | None,
    typer.Option(
        "--pooling", help="Input of the head: mean, cls, pooler or trained-pooler.", show_default="mean",
        callback=checks.one_of("--pooling", checks.POOLINGS), autocompletion=lambda: list(checks.POOLINGS),
    ),
]  # fmt: skip
StartOption = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="TASK", help="Continue from the weights of this task, or of TASK@VERSION.",
        show_default="start new", rich_help_panel=ADVANCED, autocompletion=completion.tasks,
    ),
]  # fmt: skip
MaxLengthOption = Annotated[
    int | None,
    typer.Option(
        help="Cut longer texts to this many tokens.",
        show_default="128; 384 for spans",
        callback=checks.setting("max_length"),
    ),
]
LearnLengthOption = Annotated[
    str | None,
    typer.Option(
        "--max-length", metavar="TOKENS|auto", show_default="128; 384 for spans", callback=checks.max_length,
        help="Cut longer texts to this many tokens; [cyan]auto[/] chooses by the data.",
    ),
]  # fmt: skip
ClassWeightsOption = Annotated[
    str | None,
    typer.Option(
        "--class-weights", metavar="balanced|LABEL=W,…", callback=checks.class_weights,
        help="Weights of the labels in the loss: [cyan]balanced[/], or a list such as [cyan]spam=5,ham=1[/].",
    ),
]  # fmt: skip
ThresholdOption = Annotated[
    float | None,
    typer.Option(
        "--threshold", help="The probability from which a label applies, for several labels of n.",
        show_default="one for each label, found on validation", callback=checks.setting("threshold"),
    ),
]  # fmt: skip
RateOption = Annotated[
    float | None,
    typer.Option(
        "--learning-rate", "--lr", help="The peak rate, after the warm-up.", show_default="the method's",
        callback=checks.setting("learning_rate"),
    ),
]  # fmt: skip
EpochsOption = Annotated[
    int | None,
    typer.Option(
        help="Passes over the training examples.", show_default="the method's", callback=checks.setting("epochs")
    ),
]
BatchOption = Annotated[
    int | None,
    typer.Option(help="Examples per step.", show_default="the method's", callback=checks.setting("batch_size")),
]
MetricOption = Annotated[
    str | None,
    typer.Option(
        help="What the best epoch is chosen by, such as f1-macro.", show_default="by kind", callback=checks.metric
    ),
]
TogetherOption = Annotated[
    int | None,
    typer.Option(
        help="Number of runs that share a pass.", show_default="as many as fit",
        callback=checks.at_least_one("--together"),
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
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1 …", callback=checks.device)]


PrecisionOption = Annotated[
    str | None,
    typer.Option(
        "--precision", show_default="bf16 on GPUs",
        help="Precision of the base: bf16, float32 or, on CPUs and not for training, int8.",
        callback=checks.one_of("--precision", checks.PRECISIONS),
    ),
]  # fmt: skip


def _limit_content(limit: int | None) -> int | None:
    from intarsia.tasks.content import set_content_limit

    set_content_limit(checks.at_least_one("--max-bytes")(limit))
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


def read_swap(given: list[str] | None) -> dict[str, str] | None:
    """Return the values of --swap: new tasks by parent."""
    for part in given or ():
        if not all(part.partition("=")):
            raise IntarsiaError(f"--swap: {part!r} is not PARENT=TASK, such as medical=legal.")
    return dict(part.split("=", 1) for part in given) if given else None


@contextmanager
def hushed(quiet: bool) -> Iterator[None]:
    """Print no notes if `quiet`."""
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore", IntarsiaWarning)
        yield


def about(task: TaskData) -> str:
    """Return a task's kind of output and its numbers of rows, in one line."""
    rows = ", ".join(f"{count:,} {part}" for part, count in task.source["rows"].items())
    dropped = task.source.get("dropped")
    left_out = f"; {dropped:,} row{'s' * (dropped != 1)} without a text or a label left out" if dropped else ""
    return f"{task.asks}; {rows} ({task.source['split']}){left_out}"


def check_takes_threshold(kind: str, name: str) -> None:
    if kind != "labels":
        raise IntarsiaError(f"--threshold is for tasks with several labels of n; {name} is of the kind {kind}.")


def existing_bank(bank: Path, encoder: str | None = None, device: str = "cpu", precision: str | None = None) -> Bank:
    """Open a bank that must be there."""
    missing = (
        f"There is no bank at {bank}. Name its folder with --bank, or learn a first task: intarsia learn NAME DATA."
    )
    if not bank.exists():
        raise IntarsiaError(missing)
    opened = open_bank(bank, encoder, device, precision)
    if not opened.store.exists:
        raise IntarsiaError(missing)
    return opened


def open_bank(bank: Path, encoder: str | None = None, device: str = "cpu", precision: str | None = None) -> Bank:
    from intarsia.bank.bank import Bank

    return Bank(bank, encoder, device=device, precision=precision)


def driver_bank(
    ray: str | None, bank: Path, encoder: str | None = None, device: str = "cpu", precision: str | None = None
) -> Bank:
    """Open a bank to train in. With --ray this process only directs: its base stays on the CPU."""
    return open_bank(bank, encoder, device, precision) if ray is None else open_bank(bank, encoder)


def quick_start(bank: Bank, encoder: str | None, device: str) -> None:
    """Load the base on a CPU, without importing what a frozen encoder never runs."""
    from intarsia.encoder.quick_import import quick_imports

    if device == "cpu":
        os.environ.setdefault("INTARSIA_COMPILE", "built")  # a compiler takes longer than the answer
        # The bank loads a base that fails here again, and explains what is wrong with it.
        with suppress(Exception), quick_imports(encoder or (bank.store.encoder or {}).get("name")):
            bank.encoder  # noqa: B018
