"""The command line: every verb is one call of the library."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intarsia import __version__
from intarsia.errors import IntarsiaError

if TYPE_CHECKING:
    from intarsia.bank.bank import Bank

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
DeviceOption = Annotated[str, typer.Option("--device", help="Where to compute: cpu, cuda, cuda:1 …")]


def _open(bank: Path, encoder: str | None = None, device: str = "cpu") -> Bank:
    from intarsia.bank.bank import Bank

    return Bank(bank, encoder, device=device)


@app.command(rich_help_panel="Tasks")
def learn(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for the task.", show_default=False)],
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A file (.csv .tsv .jsonl .parquet, also .gz .zst), a folder with train/dev/test files, or a hub data "
            "set as [cyan]owner/name[/] or [cyan]owner/name:config[/].",
            show_default=False,
        ),
    ],
    bank: BankOption = Path("bank"),
    encoder: EncoderOption = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    kind: Annotated[
        str | None, typer.Option(help="label, labels (several of n) or score.", show_default="found")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Learn from at most so many training examples.")] = None,
    method: Annotated[
        str,
        typer.Option("--method", "-m", help="The method and its size; [cyan]intarsia methods[/] lists them."),
    ] = "houlsby-64",
    option: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the method, such as layers=3-5 or std=0.001."),
    ] = None,
    pooling: Annotated[str, typer.Option(help="What the head reads: mean, cls, pooler or trained-pooler.")] = "mean",
    learning_rate: Annotated[
        float | None,
        typer.Option("--learning-rate", "--lr", help="The peak, after the warm-up.", show_default="the method's"),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the training examples.", show_default="the method's")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples a step.", show_default="the method's")] = None,
    max_length: Annotated[int, typer.Option(help="Longer texts are cut to so many tokens.")] = 128,
    patience: Annotated[int | None, typer.Option(help="Stop after so many epochs without a better score.")] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="accuracy, f1, f1:LABEL, f1-macro, f1-micro, matthews, pearson or spearman.", show_default="by kind"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="For the split, the start, the order and the dropout.")] = 0,
    device: DeviceOption = "cpu",
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not resume an interrupted run of this task.")] = False,
    json: JsonOption = False,
) -> None:
    """Learn a task from labelled texts.

    The best epoch by the validation part is kept; its score on the test part is printed with a 95 % interval.
    Where the data has no parts of its own they are split off: 80/10/10, stratified, equal texts on one side.
    A run that was interrupted, even killed, goes on where it was when started again with the same arguments.
    """  # fmt: skip
    from intarsia import console
    from intarsia.methods import parse
    from intarsia.tasks import load_data

    chosen = parse(method, option or ())
    task = load_data(data, text=text, pair=pair, label=label, kind=kind, limit=limit, seed=seed)  # type: ignore[arg-type]
    from intarsia.train.job import Settings

    settings = Settings.for_method(
        chosen,
        learning_rate=learning_rate,
        epochs=epochs,
        batch_size=batch_size,
        max_length=max_length,
        patience=patience,
        metric=metric,
        seed=seed,
    )
    opened = _open(bank, encoder, device)
    if not json:
        rows = ", ".join(f"{count:,} {part}" for part, count in task.source["rows"].items())
        what = f"{len(task.labels)} labels" if task.labels else "a score"
        console.err.print(f"{name}: {what}; {rows} ({task.source['split']})")
    with console.training_bar(name, quiet=json) as watch:
        try:
            entry = opened.learn(name, task, chosen, pooling=pooling, settings=settings, watch=watch, fresh=fresh)  # type: ignore[arg-type]
        except KeyboardInterrupt:
            console.err.print("Interrupted. The same command goes on from the last stored step.")
            raise typer.Exit(130) from None
    from intarsia.tables import entry_dict, learned

    console.print_json(entry_dict(entry)) if json else console.say(learned(entry))


@app.command(rich_help_panel="Tasks")
def sweep(
    data: Annotated[
        list[str],
        typer.Argument(metavar="DATA…", help="Files or folders, each a task named after it.", show_default=False),
    ],
    grid: Annotated[
        str, typer.Option(help="small (9 jobs), paper (90 jobs), or a .toml file with lists of what to try.")
    ] = "small",
    name: Annotated[str | None, typer.Option(help="The task's name, where there is one DATA.")] = None,
    bank: BankOption = Path("bank"),
    encoder: EncoderOption = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    kind: Annotated[
        str | None, typer.Option(help="label, labels (several of n) or score.", show_default="found")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Learn from at most so many training examples.")] = None,
    pooling: Annotated[str, typer.Option(help="What the head reads: mean, cls, pooler or trained-pooler.")] = "mean",
    max_length: Annotated[int, typer.Option(help="Longer texts are cut to so many tokens.")] = 128,
    metric: Annotated[str | None, typer.Option(help="What the best is chosen by.", show_default="by kind")] = None,
    together: Annotated[
        int | None, typer.Option(help="Jobs in a pass through the base.", show_default="as many as fit")
    ] = None,
    device: DeviceOption = "cpu",
    json: JsonOption = False,
) -> None:
    """Try a grid of settings for one or many tasks at once, and keep the best of each.

    All jobs share passes through the frozen base, and each ends where it would have ended alone. The best is chosen by
    the validation part and scored once on the test part. A sweep that was interrupted, even killed, goes on where it
    was when started again with the same arguments.
    """
    from intarsia import console
    from intarsia.bank.sweep_table import sweep_table
    from intarsia.tasks import load_data
    from intarsia.train.grid import read_grid

    chosen = read_grid(grid)
    if name is not None and len(data) > 1:
        raise IntarsiaError(
            f"one --name was given for {len(data)} tasks; leave it out, and each is named after its data."
        )
    names = [name or Path(source).name.split(".")[0] for source in data]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise IntarsiaError(f"two tasks would be called {twice[0]!r}; sweep them one at a time, with --name.")
    options = {"text": text, "pair": pair, "label": label, "kind": kind, "limit": limit}
    tasks = {n: load_data(source, **options) for n, source in zip(names, data, strict=True)}  # type: ignore[arg-type]
    opened = _open(bank, encoder, device)
    with sweep_table(dict.fromkeys(names, chosen.size), quiet=json) as watch:
        try:
            found = opened.sweep(
                tasks,
                chosen,
                pooling=pooling,  # type: ignore[arg-type]
                together=together,
                watch=watch,
                max_length=max_length,
                metric=metric,
            )
        except KeyboardInterrupt:
            console.err.print("Interrupted. The same command goes on from the last stored step.")
            raise typer.Exit(130) from None
    from intarsia.tables import entry_dict, learned

    if json:
        console.print_json({n: entry_dict(entry) for n, entry in found.items()})
        return
    for entry in found.values():
        console.say(learned(entry))


@app.command(rich_help_panel="Tasks")
def predict(
    name: TaskArgument,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT…", help="Texts; none: one a line from standard input.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Texts from a data file instead.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file, .jsonl or .csv, instead of the screen.")
    ] = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    format: Annotated[
        str | None, typer.Option(help="jsonl or csv.", show_default="by the file's ending, or jsonl")
    ] = None,
    bank: BankOption = Path("bank"),
    encoder: EncoderOption = None,
    device: DeviceOption = "cpu",
) -> None:
    """Ask a task about texts: from the arguments, from standard input, or from a file to a file.

    Prints one JSON object a text, with the label and every label's probability, or CSV. For a task over pairs the two
    texts of an argument or a line are separated by a tab.
    """
    from intarsia import answers

    requests = answers.gather(texts, file, text, pair)
    answers.write(_open(bank, encoder, device).predict(name, requests), requests, output, format)


@app.command(rich_help_panel="Tasks")
def evaluate(
    name: TaskArgument,
    data: Annotated[str, typer.Argument(metavar="DATA", help="A labelled file, or a folder whose test part is used.")],
    metric: Annotated[str | None, typer.Option(help="Another metric than the task's own.")] = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    bank: BankOption = Path("bank"),
    encoder: EncoderOption = None,
    device: DeviceOption = "cpu",
    json: JsonOption = False,
) -> None:
    """Score a task on labelled data, with a 95 % bootstrap interval."""
    from intarsia import console

    result = _open(bank, encoder, device).evaluate(name, data, metric=metric, text=text, pair=pair, label=label)
    i = result.interval
    if json:
        console.print_json(
            {"task": name, "metric": result.metric, "value": i.value, "low": i.low, "high": i.high,
             "examples": result.examples}
        )  # fmt: skip
    else:
        console.say(
            f"{name}: {result.metric} {100 * i.value:.1f} (95 % interval {100 * i.low:.1f} to {100 * i.high:.1f}) "
            f"on {result.examples:,} examples"
        )


@app.command(rich_help_panel="Tasks")
def baseline(
    data: Annotated[str, typer.Argument(metavar="DATA", help="Labelled data, as for [cyan]learn[/].")],
    minutes: Annotated[float, typer.Option(help="How long to search; what has begun is finished.")] = 5.0,
    candidates: Annotated[int | None, typer.Option(help="Try so many instead, which can be repeated exactly.")] = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    kind: Annotated[
        str | None, typer.Option(help="label, labels (several of n) or score.", show_default="found")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Learn from at most so many training examples.")] = None,
    metric: Annotated[str | None, typer.Option(help="As for [cyan]learn[/].", show_default="by kind")] = None,
    seed: Annotated[int, typer.Option(help="For the split, the draws and the fits.")] = 0,
    json: JsonOption = False,
) -> None:
    """Search for the best model without a pretrained transformer, to know whether one helps at all.

    N-grams of words and characters, read by linear models, naive Bayes, boosted trees and small networks. The best by
    the validation part is scored on the test part, with a 95 % interval. Nothing is stored.
    """
    from intarsia import console
    from intarsia.lab.no_bert import search
    from intarsia.lab.progress import search_status
    from intarsia.tasks import load_data

    task = load_data(data, text=text, pair=pair, label=label, kind=kind, limit=limit, seed=seed)  # type: ignore[arg-type]
    if not json:
        rows = ", ".join(f"{count:,} {part}" for part, count in task.source["rows"].items())
        what = f"{len(task.labels)} labels" if task.labels else "a score"
        console.err.print(f"baseline: {what}; {rows} ({task.source['split']})")
    with search_status(quiet=json) as watch:
        found = search(task, minutes, seed, metric, watch, candidates=candidates)
    if json:
        console.print_json(found.to_dict())
        return
    best = [[str(t.candidate), f"{100 * (t.dev or 0):.1f}", f"{t.seconds:.1f}s"] for t in found.best(5)]
    console.out.print(console.table([f"best of {len(found.tried)} by dev", found.metric, "time"], best))
    console.say(found.summary())


@app.command(rich_help_panel="The laboratory")
def methods(
    encoder: Annotated[
        str | None,
        typer.Option("--encoder", "-e", help="Count on this base.", show_default="minilm"),
    ] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Time real steps instead of estimating.")] = False,
    json: JsonOption = False,
) -> None:
    """List the methods: what each trains, how many parameters, and what a training step costs."""
    from intarsia import console
    from intarsia.lab.catalogue import catalogue
    from intarsia.lab.tables import methods_table

    def watch(name: str) -> None:
        console.err.print(f"measuring {name}", markup=False)

    found = catalogue(encoder, measure=measure, watch=None if json else watch)
    console.print_json(found.to_dict()) if json else console.print_parts(methods_table(found))


@app.command(rich_help_panel="The laboratory")
def compare(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Labelled data, as for [cyan]learn[/].", show_default=False)
    ],
    methods: Annotated[
        str,
        typer.Option("--methods", "-m", help="The methods, with commas between; [cyan]intarsia methods[/] lists them."),
    ] = "houlsby-64,pfeiffer,lora,bitfit,layernorm,top-2,features,full,lt-sft-0.5%",
    seeds: Annotated[int, typer.Option(help="Train each method so many times, with the seeds 0, 1, 2 …")] = 3,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where results and figures go.")
    ] = Path("comparison"),
    no_bert: Annotated[
        float | None,
        typer.Option("--no-bert", metavar="MINUTES", help="Also search so long for a model without a transformer."),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            "--encoder",
            "-e",
            show_default="minilm",
            help="The frozen base: [cyan]minilm[/], a transformers folder, or a hub name.",
        ),
    ] = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    kind: Annotated[
        str | None, typer.Option(help="label, labels (several of n) or score.", show_default="found")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Learn from at most so many training examples.")] = None,
    pooling: Annotated[str, typer.Option(help="What the head reads: mean, cls, pooler or trained-pooler.")] = "mean",
    learning_rate: Annotated[
        float | None,
        typer.Option("--learning-rate", "--lr", help="The same for all methods.", show_default="each method's own"),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="The same for all methods.", show_default="each method's own")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="The same for all methods.", show_default="each method's own")
    ] = None,
    max_length: Annotated[int, typer.Option(help="Longer texts are cut to so many tokens.")] = 128,
    metric: Annotated[str | None, typer.Option(help="As for [cyan]learn[/].", show_default="by kind")] = None,
    device: DeviceOption = "cpu",
    json: JsonOption = False,
) -> None:
    """Compare methods on one task: parameters, score and time of each, on the same rows, with several seeds.

    Prints a table, and writes comparison.json, tradeoff.png and comparison.html to the output folder. Every run is
    kept there when it ends: the same command goes on where it was interrupted, and draws anew where it had ended.
    """  # fmt: skip
    import shlex

    from intarsia import console
    from intarsia.lab.compare import compare as run
    from intarsia.lab.progress import comparison_bar
    from intarsia.methods import parse
    from intarsia.tasks import load_data

    chosen = {name: parse(name) for part in methods.split(",") if (name := part.strip())}
    task = load_data(data, text=text, pair=pair, label=label, kind=kind, limit=limit)  # type: ignore[arg-type]
    if not json:
        rows = ", ".join(f"{count:,} {part}" for part, count in task.source["rows"].items())
        what = f"{len(task.labels)} labels" if task.labels else "a score"
        runs = f"{len(chosen)} methods with {seeds} seed{'s' * (seeds != 1)}"
        console.err.print(f"{what}; {rows} ({task.source['split']}); {runs}", markup=False)
    try:
        with comparison_bar(quiet=json) as watch:
            found = run(
                task, chosen, seeds=seeds, encoder=encoder, device=device, folder=output, pooling=pooling,  # type: ignore[arg-type]
                learning_rate=learning_rate, epochs=epochs, batch_size=batch_size, max_length=max_length,
                metric=metric, no_bert=no_bert, command=shlex.join(["intarsia", *sys.argv[1:]]), watch=watch,
            )  # fmt: skip
    except KeyboardInterrupt:
        console.err.print("Interrupted. The same command goes on from the last stored step.")
        raise typer.Exit(130) from None
    from intarsia.lab.tables import comparison_table
    from intarsia.lab.written import FILES

    if json:
        console.print_json(found.to_dict())
    else:
        console.print_parts(comparison_table(found))
        console.say(f"\nwritten: {', '.join(str(output / name) for name in FILES)}")


@app.command(rich_help_panel="The bank")
def tasks(bank: BankOption = Path("bank"), json: JsonOption = False) -> None:
    """List the tasks and what they cost: trained parameters, bytes, multiples of the base."""
    from intarsia import console
    from intarsia.tables import tasks_dict, tasks_table

    opened = _open(bank)
    entries = opened.tasks()
    if json:
        console.print_json(tasks_dict(opened) if entries else {"tasks": []})
    elif not entries:
        console.say(f"The bank {bank} holds no task yet. Learn one: intarsia learn NAME DATA")
    else:
        for part in tasks_table(opened):
            console.say(part) if isinstance(part, str) else console.out.print(part)


@app.command(rich_help_panel="The bank")
def show(
    name: TaskArgument,
    version: Annotated[int | None, typer.Option(help="An older version.", show_default="the newest")] = None,
    bank: BankOption = Path("bank"),
    json: JsonOption = False,
) -> None:
    """Show all that is known of a task: labels, method, head, scores, training, data, versions."""
    from intarsia import console
    from intarsia.tables import entry_dict, show_table

    opened = _open(bank)
    entry = opened.show(name, version)
    console.print_json(entry_dict(entry)) if json else console.out.print(show_table(entry, opened.versions(name)))


@app.command(rich_help_panel="The bank")
def remove(
    name: TaskArgument,
    version: Annotated[int | None, typer.Option(help="Only this version.", show_default="all")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bank: BankOption = Path("bank"),
) -> None:
    """Delete a task, or one version of it."""
    from intarsia import console

    opened = _open(bank)
    count = len(opened.versions(name)) if version is None else 1
    what = (
        f"task {name} with its {count} version{'s' * (count > 1)}"
        if version is None
        else f"version {version} of {name}"
    )
    if not yes and not typer.confirm(f"Delete {what} from {bank}? This cannot be undone."):
        raise typer.Exit(1)
    opened.remove(name, version)
    console.say(f"Deleted {what}.")


@app.command(rich_help_panel="The bank")
def restore(
    name: TaskArgument,
    version: Annotated[
        int, typer.Argument(metavar="VERSION", help="The older version to serve again.", show_default=False)
    ],
    bank: BankOption = Path("bank"),
) -> None:
    """Serve an older version again: its bytes become the newest version."""
    from intarsia import console

    entry = _open(bank).restore(name, version)
    console.say(f"{name}: version {version} is served again, as version {entry.version}.")


@app.command(rich_help_panel="The bank")
def export(
    name: TaskArgument,
    merged: Annotated[
        Path, typer.Option("--merged", metavar="DIR", help="The folder to write, a new one.", show_default=False)
    ],
    version: Annotated[int | None, typer.Option(help="An older version.", show_default="the newest")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a folder that is not empty.")] = False,
    bank: BankOption = Path("bank"),
    encoder: EncoderOption = None,
) -> None:
    """Write a task as a plain transformers folder that needs no Intarsia.

    For methods that can be merged into the base's weights: lora, ia3, bitfit, layernorm, lt-sft, diff-pruning, top and
    full. The folder is read back with transformers alone, and kept only if its logits are the bank's.
    """
    from intarsia import console

    done = _open(bank, encoder).export(name, merged, version, force=force)
    beside = f", its head in {done.head} (README.md says how to use it)" if done.head else ""
    console.say(
        f"{name} version {done.version} written to {merged}: {done.model}{beside}, {console.size(done.bytes)}. "
        f"Read back without Intarsia, logits of {done.probes} texts differ by at most {done.difference:.1e} of the "
        "largest."
    )


@app.command(rich_help_panel="The bank")
def verify(
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Make the index anew, from the files alone.")] = False,
    bank: BankOption = Path("bank"),
    json: JsonOption = False,
) -> None:
    """Read every inlay whole and check its digest, its base and its place; name what is damaged (exit code 1).

    Runs that have not ended are named too, with what they take on the disk.
    """
    from intarsia import console

    opened = _open(bank)
    problems, unfinished = opened.verify(rebuild=rebuild), opened.unfinished()
    count = sum(len(opened.versions(e.name)) for e in opened.tasks())
    if json:
        rows: list[dict[str, Any]] = [{"file": str(p.path), "reason": p.reason} for p in problems]
        runs: list[dict[str, Any]] = [{"task": u.name, "folder": str(u.path), "bytes": u.bytes} for u in unfinished]
        console.print_json({"files": count, "problems": rows, "unfinished": runs})
    else:
        for problem in problems:
            console.error(problem.reason)
        console.say(f"{count} files read, {len(problems)} damaged.")
        for run in unfinished:
            console.say(
                f"{run.name}: a run has not ended; its state is {run.path} ({console.size(run.bytes)}). "
                "The same `intarsia learn` goes on with it; if none is wanted, delete the folder."
            )
    if problems:
        raise typer.Exit(1)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"intarsia {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The entry point: an error that a user can mend becomes a message and exit code 2."""
    from intarsia import console

    try:
        try:
            app()
        except IntarsiaError as error:
            console.error(str(error))
            sys.exit(2)
        finally:
            sys.stdout.flush()  # now, and not when the interpreter ends: there a failure is a noise
    except BrokenPipeError:  # the reader has gone, as in `intarsia tasks --json | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
