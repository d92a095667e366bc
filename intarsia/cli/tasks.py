"""Commands that learn, predict and evaluate tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from intarsia.cli.shared import (
    BankOption,
    BiasCorrectionOption,
    CalibrateOption,
    ClassWeightsOption,
    DeviceOption,
    EncoderOption,
    JsonOption,
    KindOption,
    LabelColumn,
    LearnLengthOption,
    LimitOption,
    MaxBytesOption,
    OldTrunkDropoutOption,
    PairColumn,
    PoolingOption,
    PrecisionOption,
    TaskArgument,
    TextColumn,
    ThresholdOption,
    TrunkDropoutOption,
    about,
    app,
    open_bank,
    read_class_weights,
    read_length,
    resumable,
)
from intarsia.errors import IntarsiaError

MethodOption = Annotated[
    str | None,
    typer.Option(
        "--method", "-m", show_default="houlsby-64",
        help="The method and its size; [cyan]intarsia methods[/] lists them.",
    ),
]  # fmt: skip
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A method option, such as layers=3-5 or std=0.001."),
]
RateOption = Annotated[
    float | None,
    typer.Option("--learning-rate", "--lr", help="The peak rate, after the warm-up.", show_default="the method's"),
]
EpochsOption = Annotated[
    int | None, typer.Option(help="Passes over the training examples.", show_default="the method's")
]
BatchOption = Annotated[int | None, typer.Option(help="Examples per step.", show_default="the method's")]
PatienceOption = Annotated[int | None, typer.Option(help="Stop after this many epochs without a better score.")]
MetricOption = Annotated[
    str | None,
    typer.Option(
        help="accuracy, f1, f1:LABEL, f1-macro, f1-micro, precision, recall, auc, average-precision, matthews, "
        "pearson, spearman, f1-entities, exact-match, likelihood …",
        show_default="by kind",
    ),
]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Restart an interrupted run instead of resuming it.")]
ServeAnywayOption = Annotated[
    bool,
    typer.Option("--serve-anyway", help="Serve the new version even if it scores worse on the same test part."),
]
VersionOption = Annotated[
    int | None, typer.Option("--version", help="Another version of the task.", show_default="the served one")
]
SweepOption = Annotated[
    bool | None,
    typer.Option(
        "--sweep/--no-sweep",
        show_default="on a GPU, if it costs little more than one run",
        help="Try the small grid (three sizes, three learning rates) and keep the best by validation score.",
    ),
]


@app.command(rich_help_panel="Tasks")
def learn(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for the task.", show_default=False)],
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A file (.csv .tsv .jsonl .parquet .txt, SQuAD's .json, also .gz .zst), a folder with train/dev/test "
            "files, or a hub data set as [cyan]owner/name[/] or [cyan]owner/name:config[/].",
            show_default=False,
        ),
    ],
    bank: BankOption = Path("bank"),
    encoder: EncoderOption = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    kind: KindOption = None,
    limit: LimitOption = None,
    method: MethodOption = None,
    option: SetOption = None,
    pooling: PoolingOption = "mean",
    learning_rate: RateOption = None,
    epochs: EpochsOption = None,
    batch_size: BatchOption = None,
    max_length: LearnLengthOption = None,
    patience: PatienceOption = None,
    metric: MetricOption = None,
    class_weights: ClassWeightsOption = None,
    threshold: ThresholdOption = None,
    calibrate: CalibrateOption = True,
    trunk_dropout: TrunkDropoutOption = None,
    prefix_dropout: OldTrunkDropoutOption = None,
    bias_correction: BiasCorrectionOption = None,
    seed: Annotated[int, typer.Option(help="Seed of the split, initial weights, batch order and dropout.")] = 0,
    max_bytes: MaxBytesOption = None,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = None,
    fresh: FreshOption = False,
    sweep: SweepOption = None,
    serve_anyway: ServeAnywayOption = False,
    json: JsonOption = False,
) -> None:
    """Learn a task from labelled texts, or from plain text with some words hidden ([cyan]--kind words[/]).

    The bank keeps the epoch with the best validation score. The command prints its test score with a 95 % interval.
    Data without parts is split 80/10/10: stratified, and equal texts go to the same part.
    The same command resumes an interrupted or killed run.
    """  # fmt: skip
    opened = open_bank(bank, encoder, device, precision)
    opened.store.check_name(name)
    opened.store.check_writable(name)  # before data and base are loaded, which may take long
    from intarsia.cli import console
    from intarsia.cli.sweep_table import learning_progress
    from intarsia.methods import parse
    from intarsia.tasks import load_data

    chosen = parse(method or "houlsby-64", option or ()) if method or option else None
    task = load_data(data, text=text, pair=pair, label=label, kind=kind, limit=limit, seed=seed)  # type: ignore[arg-type]
    settings = {
        "learning_rate": learning_rate, "epochs": epochs, "batch_size": batch_size, "patience": patience,
        "max_length": read_length(max_length), "metric": metric, "bias_correction": bias_correction, "seed": seed,
        "class_weights": read_class_weights(class_weights), "threshold": threshold,
        "calibrate": None if calibrate else False,
        "trunk_dropout": prefix_dropout if trunk_dropout is None else trunk_dropout,
    }  # fmt: skip
    if not json:
        console.err.print(f"{name}: {about(task)}", markup=False)
    if settings["max_length"] == "auto":
        chosen_length = opened.propose_length(task)
        settings["max_length"] = chosen_length.tokens
        if not json:
            console.err.print(f"{name}: max length {chosen_length}", markup=False)
    with resumable(), learning_progress(name, quiet=json, explain_grid=sweep is None) as events:
        entry = opened.learn(
            name, task, chosen, pooling=pooling, settings=settings, sweep=sweep, events=events, fresh=fresh,  # type: ignore[arg-type]
            serve_anyway=serve_anyway,
        )  # fmt: skip
    from intarsia.cli.tables import entry_dict, learned

    console.print_json(entry_dict(entry)) if json else console.say(learned(entry))


@app.command(rich_help_panel="Tasks")
def sweep(
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA…",
            help="Files or folders. Each is one task, named after the file or folder.",
            show_default=False,
        ),
    ],
    grid: Annotated[
        str, typer.Option(help="small (9 jobs), paper (90 jobs), or a .toml file with lists of methods and settings.")
    ] = "small",
    name: Annotated[str | None, typer.Option(help="The task's name, if there is only one DATA.")] = None,
    bank: BankOption = Path("bank"),
    encoder: EncoderOption = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    kind: KindOption = None,
    limit: LimitOption = None,
    pooling: PoolingOption = "mean",
    max_length: LearnLengthOption = None,
    metric: Annotated[str | None, typer.Option(help="The metric of the selection.", show_default="by kind")] = None,
    class_weights: ClassWeightsOption = None,
    threshold: ThresholdOption = None,
    calibrate: CalibrateOption = True,
    trunk_dropout: TrunkDropoutOption = None,
    prefix_dropout: OldTrunkDropoutOption = None,
    bias_correction: BiasCorrectionOption = None,
    together: Annotated[
        int | None,
        typer.Option(help="Number of jobs that share a pass.", show_default="as many as fit"),
    ] = None,
    score_all: Annotated[
        bool,
        typer.Option("--score-all", help="Also score every job on the test part; this selects nothing."),
    ] = False,
    serve_anyway: ServeAnywayOption = False,
    max_bytes: MaxBytesOption = None,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = None,
    json: JsonOption = False,
) -> None:
    """Train a grid of settings for one or many tasks at once, and keep the best job of each task.

    All jobs share passes through the frozen base, and no job affects another.
    The validation part selects the best job, which is scored once on the test
    part. The same command resumes an interrupted or killed sweep.
    """
    from intarsia.cli import console
    from intarsia.cli.sweep_table import sweep_table
    from intarsia.tasks import load_data
    from intarsia.train.grid import read_grid

    chosen = read_grid(grid)
    if name is not None and len(data) > 1:
        raise IntarsiaError(
            f"--name gives one name, but there are {len(data)} tasks. Leave it out: each task is named after its data."
        )
    names = [name or Path(source).name.split(".")[0] for source in data]
    duplicates = sorted({n for n in names if names.count(n) > 1})
    if duplicates:
        raise IntarsiaError(f"Two tasks would be named {duplicates[0]!r}. Sweep them one at a time, with --name.")
    opened = open_bank(bank, encoder, device, precision)
    for each in names:
        opened.store.check_name(each)
        opened.store.check_writable(each)
    options = {"text": text, "pair": pair, "label": label, "kind": kind, "limit": limit}
    tasks = {n: load_data(source, **options) for n, source in zip(names, data, strict=True)}  # type: ignore[arg-type]
    with resumable(), sweep_table(quiet=json) as watch:
        entries = opened.sweep(
            tasks,
            chosen,
            pooling=pooling,  # type: ignore[arg-type]
            together=together,
            score_all=score_all,
            serve_anyway=serve_anyway,
            watch=watch,
            max_length=read_length(max_length),
            metric=metric,
            class_weights=read_class_weights(class_weights),
            threshold=threshold,
            calibrate=None if calibrate else False,
            trunk_dropout=prefix_dropout if trunk_dropout is None else trunk_dropout,
            bias_correction=bias_correction,
        )
    from intarsia.cli.tables import entry_dict, learned

    if json:
        console.print_json({n: entry_dict(entry) for n, entry in entries.items()})
        return
    for entry in entries.values():
        console.say(learned(entry))


@app.command(rich_help_panel="Tasks")
def predict(
    name: TaskArgument,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT…", help="Texts; by default, one per line from standard input.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the texts from this data file.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this .jsonl or .csv file.")] = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    context: Annotated[
        str | None, typer.Option(help="The context of the questions, for a span task.", show_default=False)
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(help="jsonl, csv or squad (question id → answer).", show_default="by file extension, else jsonl"),
    ] = None,
    version: VersionOption = None,
    threshold: ThresholdOption = None,
    bank: BankOption = Path("bank"),
    encoder: EncoderOption = None,
    max_bytes: MaxBytesOption = None,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = None,
) -> None:
    """Predict with a task, from arguments, standard input or a file.

    The command prints one JSON object per text, or CSV. The input of a task
    depends on its kind:

    Text pairs: separate the two texts by a tab.

    Tags: give a text, which is split at white space, or a JSON Lines file with
    lists of [cyan]tokens[/].

    Spans: give questions with [cyan]--context[/], or with a tab and the context
    after each question, or a SQuAD file.

    Words: give texts with mask tokens.
    """
    from intarsia.cli import answers

    opened = open_bank(bank, encoder, device, precision)
    requests = answers.gather(texts, file, text, pair, opened.show(name, version).header.kind, context)
    found = opened.predict(name, requests, version=version)
    if threshold is not None:
        found = [prediction.at_threshold(threshold) for prediction in found]
    answers.write(found, requests, output, format)


@app.command(rich_help_panel="Tasks")
def evaluate(
    name: TaskArgument,
    data: Annotated[str, typer.Argument(metavar="DATA", help="A labelled file, or a folder with a test part.")],
    metric: Annotated[str | None, typer.Option(help="The metric.", show_default="the task's")] = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    version: VersionOption = None,
    threshold: ThresholdOption = None,
    bank: BankOption = Path("bank"),
    encoder: EncoderOption = None,
    max_bytes: MaxBytesOption = None,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = None,
    mistakes: Annotated[int, typer.Option("--mistakes", help="Show this many of the worst mistakes.")] = 0,
    figures: Annotated[
        Path | None,
        typer.Option("--figures", metavar="FOLDER", help="Write figures: confusion, precision-recall, calibration."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Score a task on labelled data: a 95 % interval, a table of the labels, the confusion matrix.

    `--mistakes 20` adds the worst mistakes with their texts, and `--figures`
    writes images. `--json` has all of it.
    """
    from intarsia.cli import console
    from intarsia.cli.evaluation import evaluation_parts

    found = open_bank(bank, encoder, device, precision).evaluate(
        name, data, metric=metric, version=version, threshold=threshold, text=text, pair=pair, label=label
    )
    if figures is not None:
        from intarsia.lab.task_figures import write_figures

        written = write_figures(found.outcome, figures)
        console.err.print(f"Wrote {', '.join(str(path) for path in written) or 'no figure'}", markup=False)
    console.print_json(found.to_dict(mistakes)) if json else console.print_parts(evaluation_parts(found, mistakes))
