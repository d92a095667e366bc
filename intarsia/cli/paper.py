"""Commands that reproduce the experiments of Houlsby et al. (2019)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from intarsia.cli.cluster import ActorCoresOption, ActorsOption, RayOption, on_cluster
from intarsia.cli.data import FolderOption
from intarsia.cli.shared import BiasCorrectionOption, DeviceOption, PoolingOption, PrecisionOption, app, resumable
from intarsia.errors import IntarsiaError

paper = typer.Typer(
    name="paper",
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Reproduce the tables and figures of Houlsby et al. (2019).\n\nThe tables also show the published numbers. "
    "Every completed run is stored under [cyan]--results[/]. The same command resumes after an interruption, trains "
    "only the missing runs after a change of grid or seeds, and only draws if no run is missing.",
)
app.add_typer(paper, rich_help_panel="The laboratory")

PaperEncoderOption = Annotated[
    str, typer.Option("--encoder", "-e", help="The base: [cyan]minilm[/], a transformers folder, or a hub name.")
]
ResultsOption = Annotated[Path, typer.Option("--results", metavar="FOLDER", help="The folder for runs and figures.")]
PaperLimitOption = Annotated[
    int | None,
    typer.Option("--limit", help="Use at most this many training rows. For trial runs, stored separately."),
]
TasksOption = Annotated[
    str | None,
    typer.Option(
        "--tasks",
        "-t",
        help="Only these tasks ([cyan]cola,rte[/]) or suites ([cyan]glue,extra[/]).",
        show_default="all",
    ),
]
OnlyOption = Annotated[
    str | None,
    typer.Option(
        "--only",
        help="Train only these groups of runs ([cyan]full,adapters[/]); the table shows all stored runs.",
        show_default="all",
    ),
]
GridOption = Annotated[str, typer.Option("--grid", help="The settings to try: paper, small or tiny.")]
SeedsOption = Annotated[
    int | None, typer.Option("--seeds", help="Number of seeds (0, 1, 2 …).", show_default="the grid's")
]
SamplesOption = Annotated[
    bool, typer.Option("--samples", help="Also use samples of incomplete tasks, marked as samples.")
]
LengthOption = Annotated[
    int | None,
    typer.Option("--max-length", help="Cut longer texts to this many tokens.", show_default="128; 384 for spans"),
]
TogetherOption = Annotated[
    int | None, typer.Option("--together", help="Number of runs that share a pass.", show_default="as many as fit")
]
DrawOnlyOption = Annotated[bool, typer.Option("--draw-only", help="Draw the stored runs without training.")]


# Without any of these options, --draw-only uses the stored configuration.
CONFIG_OPTIONS = ("tasks", "grid", "seeds", "samples", "pooling", "max_length", "bias_correction")


@paper.callback(invoke_without_command=True)
def _paper(
    context: typer.Context,
    report: Annotated[bool, typer.Option("--report", help="Write one HTML page with all tables and figures.")] = False,
    encoder: PaperEncoderOption = "minilm",
    results: ResultsOption = Path("results"),
    limit: PaperLimitOption = None,
) -> None:
    if context.invoked_subcommand is not None:
        given = [name for name in ("report", "encoder", "results", "limit") if _given(context, name)]
        if given:
            raise IntarsiaError(
                f"--{given[0]} has no effect before {context.invoked_subcommand}: "
                + ("use only one of the two." if given[0] == "report" else "put it after the command.")
            )
        return
    if not report:
        print(context.get_help())
        raise typer.Exit
    from intarsia.cli import console
    from intarsia.lab.paper import report as write
    from intarsia.lab.paper.runs import RunStore

    console.say(f"Wrote {write(RunStore(results, encoder, limit=limit))}")


def _given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _listed(text: str | None, option: str) -> list[str]:
    found = [part.strip() for part in (text or "").split(",") if part.strip()]
    if text is not None and not found:
        raise IntarsiaError(f"{option} is empty: leave it out, or give names separated by commas.")
    return found


def _command(name: str, help: str) -> None:
    """Add the command of one experiment. All experiments have the same options."""

    def command(
        context: typer.Context,
        encoder: PaperEncoderOption = "minilm",
        tasks: TasksOption = None,
        only: OnlyOption = None,
        grid: GridOption = "small",
        seeds: SeedsOption = None,
        data: FolderOption = None,
        results: ResultsOption = Path("results"),
        samples: SamplesOption = False,
        limit: PaperLimitOption = None,
        pooling: PoolingOption = "mean",
        max_length: LengthOption = None,
        bias_correction: BiasCorrectionOption = None,
        device: DeviceOption = "cpu",
        precision: PrecisionOption = None,
        together: TogetherOption = None,
        ray: RayOption = None,
        actor_cores: ActorCoresOption = 1,
        actors: ActorsOption = None,
        draw_only: DrawOnlyOption = False,
    ) -> None:
        import shlex

        from intarsia.cli import console
        from intarsia.cli.paper_tables import paper_tables
        from intarsia.display.show import queue_progress
        from intarsia.lab.paper import EXPERIMENTS, draw, group_names, run, task_names
        from intarsia.lab.paper.plan import ExperimentConfig
        from intarsia.lab.paper.runs import RunStore

        chosen = task_names(EXPERIMENTS[name], _listed(tasks, "--tasks"))
        config = ExperimentConfig(chosen, grid, seeds, limit, samples, pooling, max_length, bias_correction)  # type: ignore[arg-type]
        groups = group_names(EXPERIMENTS[name], config, _listed(only, "--only"))
        store = RunStore(results, encoder, limit=limit)
        if draw_only:
            noted = None if any(_given(context, option) for option in CONFIG_OPTIONS) else store.read_config(name)
            made = draw(name, config if noted is None else noted.config, store)
        else:
            from intarsia.encoder.encoder import Encoder

            base = Encoder.load(encoder) if ray else Encoder.load(encoder, device=device, precision=precision)
            line = shlex.join(["intarsia", *sys.argv[1:]])
            with resumable(), on_cluster(ray, actor_cores, actors, device, precision), queue_progress() as watch:
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
    "glue": "GLUE: full and variable fine-tuning, and adapters, by task.",
    "further": "The same for 17 further classification tasks, and a search without BERT.",
    "squad": "SQuAD: F1 of full fine-tuning and of adapters by size.",
    "tradeoff": "Score against trained parameters: all tasks, MNLI and CoLA.",
    "ablation": "Scores after removing trained adapters from spans of layers.",
    "init": "Scores by the adapters' initial standard deviation, 1e-7 to 1.",
    "alternatives": "Scores of the adapter variants in the paper.",
    "methods": "Score against trained parameters, for all methods.",
}.items():
    _command(_name, _help)
