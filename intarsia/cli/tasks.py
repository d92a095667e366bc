"""Commands that learn, predict and evaluate tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from intarsia.cli import checks, completion
from intarsia.cli.cluster import ActorCoresOption, ActorsOption, RayOption, on_cluster
from intarsia.cli.shared import (
    ADVANCED,
    BankOption,
    BatchOption,
    BiasCorrectionOption,
    CalibrateOption,
    ClassWeightsOption,
    DeviceOption,
    DropOption,
    EncoderOption,
    EncodingOption,
    EpochsOption,
    JsonOption,
    KindOption,
    LabelColumn,
    LearnLengthOption,
    LearnPoolingOption,
    LimitOption,
    LogOption,
    MaxBytesOption,
    MetricOption,
    OldTrunkDropoutOption,
    PairColumn,
    PoolingOption,
    PrecisionOption,
    QuietOption,
    RateOption,
    SepOption,
    StartOption,
    SwapOption,
    TextColumn,
    ThresholdOption,
    TogetherOption,
    TrunkDropoutOption,
    VersionOption,
    about,
    app,
    check_takes_threshold,
    driver_bank,
    existing_bank,
    hushed,
    open_bank,
    quick_start,
    read_swap,
    resumable,
)
from intarsia.errors import IntarsiaError
from intarsia.tasks.examples import Kind

MethodOption = Annotated[
    str | None,
    typer.Option(
        "--method", "-m", show_default="houlsby-64",
        help="The method and its size; [cyan]intarsia methods[/] lists them.", autocompletion=completion.methods,
    ),
]  # fmt: skip
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A method option, such as layers=3-5 or std=0.001."),
]
PatienceOption = Annotated[
    int | None,
    typer.Option(help="Stop after this many epochs without a better score.", callback=checks.setting("patience")),
]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Restart an interrupted run instead of resuming it.")]
ServeAnywayOption = Annotated[
    bool,
    typer.Option("--serve-anyway", help="Serve the new version even if it scores worse on the same test part."),
]
SweepOption = Annotated[
    bool | None,
    typer.Option(
        "--sweep/--no-sweep",
        rich_help_panel=ADVANCED,
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
            help="A file (.csv .tsv .jsonl .json .xlsx .parquet .txt, also .gz .zst), a folder with train/dev/test "
            "files, a name of [cyan]intarsia data list[/], or a hub data set as [cyan]owner/name[/] or "
            "[cyan]owner/name:config[/].",
            show_default=False,
            autocompletion=completion.data,
        ),
    ],
    bank: BankOption = Path("bank"),
    encoder: EncoderOption = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    kind: KindOption = None,
    sep: SepOption = None,
    encoding: EncodingOption = None,
    drop_missing: DropOption = False,
    limit: LimitOption = None,
    method: MethodOption = None,
    option: SetOption = None,
    pooling: LearnPoolingOption = None,
    start_from: StartOption = None,
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
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of the split, initial weights, batch order and dropout.", callback=checks.setting("seed")
        ),
    ] = 0,
    max_bytes: MaxBytesOption = None,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = None,
    fresh: FreshOption = False,
    sweep: SweepOption = None,
    serve_anyway: ServeAnywayOption = False,
    ray: RayOption = None,
    actor_cores: ActorCoresOption = 1,
    actors: ActorsOption = None,
    log: LogOption = None,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Learn a task from labelled texts, or from plain text with some words hidden ([cyan]--kind words[/]).

    The bank keeps the epoch with the best validation score. The command prints its test score with a 95 % interval.
    Data without parts is split 80/10/10: stratified, and equal texts go to the same part.
    The same command resumes an interrupted or killed run. [cyan]--from[/] continues from the weights of a task.
    """  # fmt: skip
    opened = open_bank(bank, encoder, device, precision)
    opened.store.check_name(name)
    opened.store.check_writable(name)  # before data and base are loaded, which may take long
    from intarsia.bank.family import resolved, task_and_version
    from intarsia.cli import console
    from intarsia.display.show import learning_progress
    from intarsia.methods import parse
    from intarsia.tasks.decoding import FileFormat
    from intarsia.tasks.metrics import check_choosing
    from intarsia.tasks.named import load_named

    opened = driver_bank(ray, bank, encoder, device, precision)
    opened.check_learning(name)
    FileFormat.of(sep, encoding)
    if start_from is not None:
        opened.store.entry(*task_and_version(start_from))
    if device != "cpu" and not ray:
        opened.encoder  # noqa: B018  # a GPU that is not there is an error before a large file is read
    chosen = resolved(opened.store, parse(method or "houlsby-64", option or ())) if method or option else None
    with hushed(quiet):
        task = load_named(
            data, text=text, pair=pair, label=label, kind=kind, limit=limit, seed=seed, sep=sep, encoding=encoding,
            drop_missing=drop_missing,
        )  # fmt: skip
    if metric is not None:
        check_choosing(metric, task.kind, task.labels)
    settings = {
        "learning_rate": learning_rate, "epochs": epochs, "batch_size": batch_size, "patience": patience,
        "max_length": checks.read_length(max_length), "metric": metric, "bias_correction": bias_correction,
        "seed": seed, "class_weights": checks.read_class_weights(class_weights), "threshold": threshold,
        "calibrate": None if calibrate else False,
        "trunk_dropout": prefix_dropout if trunk_dropout is None else trunk_dropout,
    }  # fmt: skip
    quiet = quiet or json
    if not quiet:
        console.err.print(f"{name}: {about(task)}", markup=False)
    quick_start(opened, encoder, "cpu" if ray else device)
    if settings["max_length"] == "auto":
        chosen_length = opened.propose_length(task)
        settings["max_length"] = chosen_length.tokens
        if not quiet:
            console.err.print(f"{name}: max length {chosen_length}", markup=False)
    explain = "--no-sweep" if sweep is None else None
    cluster = on_cluster(ray, actor_cores, actors, device, precision)
    with resumable(), hushed(quiet), cluster, learning_progress(name, not quiet, explain_grid=explain) as events:
        entry = opened.learn(
            name, task, chosen, pooling=pooling, start_from=start_from, settings=settings, sweep=sweep, fresh=fresh,  # type: ignore[arg-type]
            progress=False, callbacks=[*(log or ()), *([events] if events else ())], serve_anyway=serve_anyway,
        )  # fmt: skip
    from intarsia.cli.tables import learned

    console.print_json(entry.to_dict()) if json else console.say(learned(entry))


@app.command(rich_help_panel="Tasks")
def sweep(
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA…",
            help="Files or folders. Each is one task, named after the file or folder.",
            show_default=False,
            autocompletion=completion.data,
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
    sep: SepOption = None,
    encoding: EncodingOption = None,
    drop_missing: DropOption = False,
    limit: LimitOption = None,
    pooling: PoolingOption = "mean",
    max_length: LearnLengthOption = None,
    metric: Annotated[
        str | None,
        typer.Option(help="The metric of the selection.", show_default="by kind", callback=checks.metric),
    ] = None,
    class_weights: ClassWeightsOption = None,
    threshold: ThresholdOption = None,
    calibrate: CalibrateOption = True,
    trunk_dropout: TrunkDropoutOption = None,
    prefix_dropout: OldTrunkDropoutOption = None,
    bias_correction: BiasCorrectionOption = None,
    together: TogetherOption = None,
    score_all: Annotated[
        bool,
        typer.Option("--score-all", help="Also score every job on the test part; this selects nothing."),
    ] = False,
    serve_anyway: ServeAnywayOption = False,
    ray: RayOption = None,
    actor_cores: ActorCoresOption = 1,
    actors: ActorsOption = None,
    log: LogOption = None,
    max_bytes: MaxBytesOption = None,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = None,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Train a grid of settings for one or many tasks at once, and keep the best job of each task.

    All jobs share passes through the frozen base, and no job affects another.
    The validation part selects the best job, which is scored once on the test
    part. The same command resumes an interrupted or killed sweep.
    """
    from intarsia.cli import console
    from intarsia.display.show import queue_progress
    from intarsia.tasks.named import load_named
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
    opened = driver_bank(ray, bank, encoder, device, precision)
    for one in names:
        opened.check_learning(one)
    options: dict[str, Any] = {
        "text": text, "pair": pair, "label": label, "kind": kind, "limit": limit, "sep": sep, "encoding": encoding,
        "drop_missing": drop_missing,
    }  # fmt: skip
    quiet = quiet or json
    with hushed(quiet):
        tasks = {n: load_named(source, **options) for n, source in zip(names, data, strict=True)}
    quick_start(opened, encoder, "cpu" if ray else device)
    cluster = on_cluster(ray, actor_cores, actors, device, precision)
    with resumable(), hushed(quiet), cluster, queue_progress(not quiet) as watch:
        entries = opened.sweep(
            tasks,
            chosen,
            pooling=pooling,  # type: ignore[arg-type]
            together=together,
            score_all=score_all,
            serve_anyway=serve_anyway,
            callbacks=[*(log or ()), *([watch] if watch else ())],
            progress=False,
            max_length=checks.read_length(max_length),
            metric=metric,
            class_weights=checks.read_class_weights(class_weights),
            threshold=threshold,
            calibrate=None if calibrate else False,
            trunk_dropout=prefix_dropout if trunk_dropout is None else trunk_dropout,
            bias_correction=bias_correction,
        )
    from intarsia.cli.tables import learned

    if json:
        console.print_json({n: entry.to_dict() for n, entry in entries.items()})
        return
    for entry in entries.values():
        console.say(learned(entry))


@app.command(rich_help_panel="Tasks")
def evaluate(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The task's name in the bank.", show_default=False,
            autocompletion=completion.tasks)
    ] = None,
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="A labelled file, or a folder with a test part.", show_default=False,
            autocompletion=completion.data),
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Score all tasks of the bank instead; with [cyan]--precision int8[/] beside float32."
        ),
    ] = False,
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--data", metavar="NAME=FILE", show_default="what each task learned from",
            help="With --all: labelled data of a task, or one folder with files named after tasks.",
        ),
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(help="With --all: texts whose answers are compared for tasks without labelled data."),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="With --all: use at most this many rows of each task.")] = None,
    metric: Annotated[
        str | None, typer.Option(help="The metric.", show_default="the task's", callback=checks.metric)
    ] = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    sep: SepOption = None,
    encoding: EncodingOption = None,
    drop_missing: DropOption = False,
    version: VersionOption = None,
    threshold: ThresholdOption = None,
    swap: SwapOption = None,
    bank: BankOption = Path("bank"),
    encoder: EncoderOption = None,
    max_bytes: MaxBytesOption = None,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = None,
    mistakes: Annotated[int, typer.Option("--mistakes", help="Show this many of the worst mistakes.")] = 0,
    figures: Annotated[
        Path | None,
        typer.Option(
            "--figures", metavar="FOLDER", help="Write figures: confusion, precision-recall, calibration.",
            callback=checks.output_folder,
        ),
    ] = None,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Score a task on labelled data: a 95 % interval, a table of the labels, the confusion matrix.

    `intarsia evaluate --all --precision int8` reports the loss of int8 over all
    tasks: scores, changed answers and speed, beside float32.

    `--mistakes 20` adds the worst mistakes with their texts, and `--figures` writes images. `--json` has all of it.
    """
    from intarsia.cli import console
    from intarsia.cli.evaluation import evaluation_parts
    from intarsia.tasks.examples import check_answers
    from intarsia.tasks.metrics import check_metric
    from intarsia.tasks.named import load_named_examples

    if every:
        from intarsia.cli.precision_table import evaluate_all

        alone = (name, data, metric, text, pair, label, version, threshold, swap, figures, sep, encoding)
        if any(value is not None for value in alone) or mistakes:
            raise IntarsiaError("--all takes only --data, --texts, --limit and the options of the bank.")
        evaluate_all(existing_bank(bank, encoder, device, precision), sources or (), texts, limit, json)
        return
    if name is None or data is None or sources or texts is not None or limit is not None:
        raise IntarsiaError("give a task's NAME and its DATA, or --all (with --data, --texts and --limit).")
    opened = existing_bank(bank, encoder, device, precision)
    header = opened.show(name, version).header
    # What does not fit the task is refused before the base is loaded.
    kind, labels = cast(Kind, header.kind), tuple(header.labels)
    check_answers(header.kind, name, "be evaluated")
    if metric is not None:
        check_metric(metric, kind, labels)
    if threshold is not None:
        check_takes_threshold(kind, name)
    swapped = read_swap(swap)
    with hushed(quiet):
        examples = load_named_examples(
            data, kind=kind, labels=labels, learned_from=header.data.get("columns"), text=text, pair=pair, label=label,
            sep=sep, encoding=encoding, drop_missing=drop_missing,
        )  # fmt: skip
    quick_start(opened, encoder, device)
    found = opened.evaluate(name, examples, metric=metric, version=version, threshold=threshold, swap=swapped)
    if figures is not None:
        from intarsia.lab.task_figures import write_figures

        written = write_figures(found.outcome, figures)
        console.err.print(f"Wrote {', '.join(str(path) for path in written) or 'no figure'}", markup=False)
    console.print_json(found.to_dict(mistakes)) if json else console.print_parts(evaluation_parts(found, mistakes))
