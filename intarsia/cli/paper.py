"""Commands that repeat the experiments of Houlsby et al. 2019."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from intarsia.cli.data import FolderOption
from intarsia.cli.shared import BiasCorrectionOption, DeviceOption, PoolingOption, PrecisionOption, app, resumable
from intarsia.errors import IntarsiaError

paper = typer.Typer(
    name="paper",
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="The tables and figures of Houlsby et al. 2019, measured, beside the published figures.\n\nEvery run is kept "
    "under [cyan]--results[/] when it ends. The same command goes on after an interruption, trains what is missing "
    "after a change of grid or seeds, and draws again where all is there.",
)
app.add_typer(paper, rich_help_panel="The laboratory")

EncoderOption = Annotated[
    str, typer.Option("--encoder", "-e", help="The base: [cyan]minilm[/], a transformers folder, or a hub name.")
]
ResultsOption = Annotated[Path, typer.Option("--results", metavar="FOLDER", help="Where runs and figures are kept.")]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", help="At most so many training rows: for trying out, kept apart, never official."),
]
TasksOption = Annotated[
    str | None,
    typer.Option(
        "--tasks",
        "-t",
        help="Only these, with commas between: [cyan]cola,rte[/], or suites: [cyan]glue,extra[/].",
        show_default="all",
    ),
]
OnlyOption = Annotated[
    str | None,
    typer.Option(
        "--only",
        help="Train only these groups of runs now, such as [cyan]full,adapters[/]; the table shows all that is stored.",
        show_default="all",
    ),
]
GridOption = Annotated[str, typer.Option("--grid", help="What is tried: paper, small or tiny.")]
SeedsOption = Annotated[int | None, typer.Option("--seeds", help="Seeds 0, 1, 2 …", show_default="the grid's")]
SamplesOption = Annotated[
    bool, typer.Option("--samples", help="Take samples where a task is not whole; named as samples.")
]
LengthOption = Annotated[
    int | None, typer.Option("--max-length", help="Tokens of a text, at most.", show_default="128, for spans 384")
]
TogetherOption = Annotated[
    int | None, typer.Option("--together", help="Runs that share a pass.", show_default="as many as fit")
]
DrawOnlyOption = Annotated[bool, typer.Option("--draw-only", help="Draw what is stored; train and load nothing.")]


# Without any of these options, --draw-only uses the stored configuration.
CONFIG_OPTIONS = ("tasks", "grid", "seeds", "samples", "pooling", "max_length", "bias_correction")


@paper.callback(invoke_without_command=True)
def _paper(
    context: typer.Context,
    report: Annotated[bool, typer.Option("--report", help="Write one HTML page with all tables and figures.")] = False,
    encoder: EncoderOption = "minilm",
    results: ResultsOption = Path("results"),
    limit: LimitOption = None,
) -> None:
    if context.invoked_subcommand is not None:
        given = [name for name in ("report", "encoder", "results", "limit") if _given(context, name)]
        if given:
            raise IntarsiaError(
                f"--{given[0]} stands before {context.invoked_subcommand}, where it is not read: "
                + ("leave out one of them." if given[0] == "report" else "put it behind.")
            )
        return
    if not report:
        print(context.get_help())
        raise typer.Exit
    from intarsia.cli import console
    from intarsia.lab.paper import report as write
    from intarsia.lab.paper.runs import RunStore

    console.say(f"written: {write(RunStore(results, encoder, limit=limit))}")


def _given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _listed(text: str | None, option: str) -> list[str]:
    found = [part.strip() for part in (text or "").split(",") if part.strip()]
    if text is not None and not found:
        raise IntarsiaError(f"{option} names nothing: leave it out, or name some, separated by commas.")
    return found


def _command(name: str, help: str) -> None:
    """All experiments take the same options."""

    def command(
        context: typer.Context,
        encoder: EncoderOption = "minilm",
        tasks: TasksOption = None,
        only: OnlyOption = None,
        grid: GridOption = "small",
        seeds: SeedsOption = None,
        data: FolderOption = None,
        results: ResultsOption = Path("results"),
        samples: SamplesOption = False,
        limit: LimitOption = None,
        pooling: PoolingOption = "mean",
        max_length: LengthOption = None,
        bias_correction: BiasCorrectionOption = None,
        device: DeviceOption = "cpu",
        precision: PrecisionOption = None,
        together: TogetherOption = None,
        draw_only: DrawOnlyOption = False,
    ) -> None:
        import shlex

        from intarsia.cli import console
        from intarsia.cli.paper_tables import paper_tables
        from intarsia.cli.sweep_table import sweep_table
        from intarsia.lab.paper import EXPERIMENTS, draw, group_names, run, task_names
        from intarsia.lab.paper.plan import ExperimentConfig
        from intarsia.lab.paper.runs import RunStore

        chosen = task_names(EXPERIMENTS[name], _listed(tasks, "--tasks"))
        config = ExperimentConfig(chosen, grid, seeds, limit, samples, pooling, max_length, bias_correction)  # type: ignore[arg-type]
        groups = group_names(EXPERIMENTS[name], config, _listed(only, "--only"))
        store = RunStore(results, encoder, limit=limit)
        if draw_only:
            noted = None if any(_given(context, what) for what in CONFIG_OPTIONS) else store.read_config(name)
            made = draw(name, config if noted is None else noted.config, store)
        else:
            from intarsia.encoder.encoder import Encoder

            base = Encoder.load(encoder, device=device, precision=precision)
            line = shlex.join(["intarsia", *sys.argv[1:]])
            with resumable(), sweep_table() as watch:
                made = run(
                    name, config, base, store, only=groups, data=data, together=together, command=line, watch=watch,
                    log=lambda text: console.err.print(text, markup=False),
                )  # fmt: skip
        console.print_parts(paper_tables(made))
        made.save(store.figures)
        if made.figures:
            console.say(f"\nfigures: {', '.join(p.name for p in made.figures)} (.svg, .png) in {store.figures}")

    command.__doc__ = help
    paper.command(name)(command)


for _name, _help in {
    "glue": "GLUE: full and variable fine-tuning, adapters of swept and of fixed size, task by task.",
    "further": "The same for the seventeen further classification tasks, and a search without BERT.",
    "squad": "SQuAD: F1 of full fine-tuning and of adapters by size, against trained parameters.",
    "tradeoff": "Score against trained parameters: percentiles over tasks, and curves of MNLI and CoLA.",
    "ablation": "Trained adapters removed from every span of layers.",
    "init": "Adapters started at standard deviations from 1e-7 to 1.",
    "alternatives": "The variants of the adapter that the authors tried.",
    "methods": "All methods: score against trained parameters.",
}.items():
    _command(_name, _help)
