"""Commands that compare methods."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from intarsia.cli import checks, completion
from intarsia.cli.cluster import ActorCoresOption, ActorsOption, RayOption, on_cluster
from intarsia.cli.shared import (
    BankOption,
    DeviceOption,
    DropOption,
    EncodingOption,
    JsonOption,
    KindOption,
    LabelColumn,
    LimitOption,
    MaxLengthOption,
    MetricOption,
    PairColumn,
    PoolingOption,
    QuietOption,
    SepOption,
    TextColumn,
    about,
    app,
    existing_bank,
    hushed,
    resumable,
)


@app.command(rich_help_panel="The laboratory")
def methods(
    encoder: Annotated[
        str | None,
        typer.Option("--encoder", "-e", help="The base to count parameters on.", show_default="minilm"),
    ] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Measure real steps instead of estimating.")] = False,
    json: JsonOption = False,
) -> None:
    """List the methods, their parameters and their training cost."""
    from intarsia.cli import console
    from intarsia.cli.lab_tables import methods_table
    from intarsia.lab.catalogue import catalogue

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
        typer.Option(
            "--methods", "-m", help="Methods, separated by commas; [cyan]intarsia methods[/] lists them.",
            autocompletion=completion.methods, show_default="nine methods",
        ),
    ] = "houlsby-64,pfeiffer,lora,bitfit,layernorm,top-2,features,full,lt-sft-0.5%",
    seeds: Annotated[
        int,
        typer.Option(
            help="Training runs of each method, with the seeds 0, 1, 2 …", callback=checks.at_least_one("--seeds")
        ),
    ] = 3,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="The folder for results and figures.",
            callback=checks.output_folder,
        ),
    ] = Path("comparison"),
    no_bert: Annotated[
        float | None,
        typer.Option("--no-bert", metavar="MINUTES", help="Also search this long for a model without a transformer."),
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
    kind: KindOption = None,
    sep: SepOption = None,
    encoding: EncodingOption = None,
    drop_missing: DropOption = False,
    limit: LimitOption = None,
    pooling: PoolingOption = "mean",
    learning_rate: Annotated[
        float | None,
        typer.Option(
            "--learning-rate", "--lr", help="One rate for all methods.", show_default="each method's own",
            callback=checks.setting("learning_rate"),
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            help="The same for all methods.", show_default="each method's own", callback=checks.setting("epochs")
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="The same for all methods.", show_default="each method's own", callback=checks.setting("batch_size")
        ),
    ] = None,
    max_length: MaxLengthOption = None,
    metric: MetricOption = None,
    together: Annotated[
        int | None,
        typer.Option(
            help="Runs in a pass through the base; 1: each run is trained and timed alone.",
            show_default="as many as fit",
            callback=checks.at_least_one("--together"),
        ),
    ] = None,
    ray: RayOption = None,
    actor_cores: ActorCoresOption = 1,
    actors: ActorsOption = None,
    bank: BankOption = Path("bank"),
    device: DeviceOption = "cpu",
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Compare methods on one task: parameters, score and training time.

    All methods train on the same rows, with several seeds. The command prints
    a table and writes comparison.json, tradeoff.png and comparison.html to the
    output folder. It stores every completed run there, so the same command
    resumes after an interruption; after the last run it only draws again.

    A method may be a composition of tasks of a bank, as stack(medical,
    pfeiffer-48); then the bank's base is used.
    """
    import shlex

    from intarsia.cli import console
    from intarsia.cli.lab_progress import comparison_progress
    from intarsia.lab.compare import compare as run
    from intarsia.methods import names, parse
    from intarsia.methods.expression import separated
    from intarsia.tasks.named import load_named

    chosen = {name: parse(name) for name in separated(methods, ",") if name}
    here = "cpu" if ray else device
    used_bank = existing_bank(bank, encoder, here) if any(names(method) for method in chosen.values()) else None
    quiet = quiet or json
    with hushed(quiet):
        task = load_named(
            data, text=text, pair=pair, label=label, kind=kind, limit=limit, sep=sep, encoding=encoding,
            drop_missing=drop_missing,
        )  # fmt: skip
    if not quiet:
        runs = f"{len(chosen)} methods with {seeds} seed{'s' * (seeds != 1)}"
        console.err.print(f"{about(task)}; {runs}", markup=False)
    cluster = on_cluster(ray, actor_cores, actors, device)
    with resumable(), hushed(quiet), cluster, comparison_progress(chosen, quiet=quiet) as (watch, search_watch):
        found = run(
            task, chosen, seeds=seeds, encoder=encoder, bank=used_bank, device=here, folder=output, pooling=pooling,  # type: ignore[arg-type]
            learning_rate=learning_rate, epochs=epochs, batch_size=batch_size, max_length=max_length,
            metric=metric, no_bert=no_bert, together=together, command=shlex.join(["intarsia", *sys.argv[1:]]),
            watch=watch, search_watch=search_watch,
        )  # fmt: skip
    from intarsia.cli.lab_tables import comparison_table
    from intarsia.lab.comparison_files import FILES

    if json:
        console.print_json(found.to_dict())
    else:
        console.print_parts(comparison_table(found))
        console.say(f"\nWrote {', '.join(str(output / name) for name in FILES)}")


@app.command(rich_help_panel="The laboratory")
def baseline(
    data: Annotated[str, typer.Argument(metavar="DATA", help="Labelled data, as for [cyan]learn[/].")],
    minutes: Annotated[float, typer.Option(help="Search time; the last candidate may run over it.")] = 5.0,
    candidates: Annotated[
        int | None, typer.Option(help="Try this many candidates instead; the result is reproducible.")
    ] = None,
    text: TextColumn = None,
    pair: PairColumn = None,
    label: LabelColumn = None,
    kind: KindOption = None,
    sep: SepOption = None,
    encoding: EncodingOption = None,
    drop_missing: DropOption = False,
    limit: LimitOption = None,
    metric: MetricOption = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the split, the candidates and the fits.", callback=checks.setting("seed"))
    ] = 0,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Search for the best model without a pretrained transformer.

    The candidates are linear models, naive Bayes, boosted trees and small
    networks over n-grams of words and characters. The model with the best
    validation score is scored on the test part, with a 95 % interval.
    The command stores nothing.
    """
    from intarsia.cli import console
    from intarsia.cli.lab_progress import search_status
    from intarsia.lab.no_bert import search
    from intarsia.tasks.named import load_named

    quiet = quiet or json
    with hushed(quiet):
        task = load_named(
            data, text=text, pair=pair, label=label, kind=kind, limit=limit, seed=seed, sep=sep, encoding=encoding,
            drop_missing=drop_missing,
        )  # fmt: skip
    if not quiet:
        console.err.print(f"baseline: {about(task)}", markup=False)
    with search_status(quiet=quiet) as watch:
        found = search(task, minutes, seed, metric, watch, candidates=candidates)
    if json:
        console.print_json(found.to_dict())
        return
    best = [[str(t.candidate), f"{100 * (t.dev or 0):.1f}", f"{t.seconds:.1f}s"] for t in found.best(5)]
    console.out.print(console.table([f"best of {len(found.trials)} by dev", found.metric, "time"], best))
    console.say(found.summary())
