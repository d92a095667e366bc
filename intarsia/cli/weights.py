"""Commands that make an inlay from the weights of others: merge, and move to another base."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from intarsia import formatting
from intarsia.cli import checks
from intarsia.cli.shared import BankOption, DeviceOption, EncoderOption, JsonOption, TaskArgument, app, existing_bank
from intarsia.errors import IntarsiaError

HOW = ("linear", "arithmetic", "ties", "dare", "concat", "svd")
CheckOption = Annotated[
    str | None, typer.Option("--check", metavar="ROWS", help="Labelled rows, whose score is stored.")
]
ServeAnywayOption = Annotated[
    bool, typer.Option("--serve-anyway", help="Serve it even if it scores worse than the served version.")
]


@app.command(rich_help_panel="The bank")
def merge(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new task's name.", show_default=False)],
    tasks: Annotated[
        list[str], typer.Argument(metavar="TASK[=WEIGHT]…", help="The tasks, as in tone=0.7 tone-de@2=0.3.")
    ],
    how: Annotated[
        str, typer.Option(help=f"{', '.join(HOW)}.", callback=checks.one_of("--how", HOW))
    ] = "linear",
    scale: Annotated[float, typer.Option(help="Multiplies the sum of the differences (not for linear).")] = 1.0,
    density: Annotated[float, typer.Option(help="For ties: the share of entries that each task keeps.")] = 0.2,
    drop: Annotated[float, typer.Option(help="For dare: the probability that an entry is dropped.")] = 0.9,
    seed: Annotated[int, typer.Option(help="For dare.")] = 0,
    rank: Annotated[
        int | None, typer.Option(help="For LoRA: the rank of the result.", show_default="the largest of the tasks")
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            help="The task whose head is used, or [cyan]none[/].", show_default="merged, if the labels are equal"
        ),
    ] = None,
    check: CheckOption = None,
    serve_anyway: ServeAnywayOption = False,
    bank: BankOption = Path("bank"),
    encoder: EncoderOption = None,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Merge the weights of tasks into a new task, without training.

    linear: the weighted mean. arithmetic: the sum of the differences from the
    start; negative weights subtract. ties: the mean of the differences that
    agree in sign. dare: drops differences at random. For LoRA also concat (the
    exact sum) and svd (the sum, reduced to a rank).
    """
    from intarsia.cli import console
    from intarsia.cli.tables import merged_from, test_score
    from intarsia.methods import short_name

    entry = existing_bank(bank, encoder).merge(
        name, _weights(tasks, 1 / len(tasks) if how == "linear" else 1.0), how, scale=scale, density=density, drop=drop,
        seed=seed, rank=rank, head=head, check=check, serve_anyway=serve_anyway,
    )  # fmt: skip
    if json:
        console.print_json(entry.to_dict())
        return
    header = entry.header
    console.say(
        f"{name} version {entry.version}: {merged_from(header.training['merged'])}. {short_name(header.method)}, "
        f"{formatting.number(header.parameters['total'])} parameters."
    )
    if check is not None:
        console.say(f"{header.metrics['metric']} {test_score(header.metrics)}")


def _weights(tasks: list[str], default: float) -> dict[str, float]:
    """Return the weights by task."""
    found: dict[str, float] = {}
    for part in tasks:
        task, equals, weight = part.partition("=")
        if task in found:
            raise IntarsiaError(f"the task {task!r} was given twice.")
        try:
            found[task] = float(weight) if equals else default
        except ValueError:
            raise IntarsiaError(f"{part!r} is not TASK=WEIGHT, such as tone=0.7.") from None
    return found


@app.command(rich_help_panel="The bank")
def move(
    name: TaskArgument,
    to: Annotated[Path, typer.Option("--to", metavar="BANK", help="The other bank's folder.", show_default=False)],
    check: CheckOption = None,
    new_name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Its name in the other bank.", show_default="the same")
    ] = None,
    version: Annotated[int | None, typer.Option(help="Another version.", show_default="the served one")] = None,
    to_encoder: Annotated[
        str | None, typer.Option("--to-encoder", help="The other bank's base.", show_default="that of its bank.json")
    ] = None,
    serve_anyway: ServeAnywayOption = False,
    bank: BankOption = Path("bank"),
    encoder: EncoderOption = None,
    device: DeviceOption = "cpu",
    json: JsonOption = False,
) -> None:
    """Move a task to the bank of another base of the same shape. It also stays here.

    Adapters, low-rank and sparse differences move as they are; LayerNorms,
    biases and whole weights as differences from the old base's. --check has
    labelled rows, on which the task is scored on both bases.
    """
    from intarsia.bank.bank import Bank
    from intarsia.cli import console

    if not to.exists() and to_encoder is None:
        raise IntarsiaError(f"there is no bank at {to}: give its base with --to-encoder, which creates it.")
    target = Bank(to, to_encoder, device=device)
    entry = existing_bank(bank, encoder, device).move(
        name, target, check=check, version=version, new_name=new_name, serve_anyway=serve_anyway
    )
    if json:
        console.print_json(entry.to_dict())
        return
    moved = entry.header.training["moved"]
    console.say(f"Moved {name} version {moved['version']} to {to}: {entry.name} version {entry.version}.")
    if "new_score" in moved:
        before, after = (_score(moved[key]) for key in ("old_score", "new_score"))
        console.say(f"{moved['metric']} on {check}: {before} on the old base, {after} on the new one.")


def _score(value: float | None) -> str:
    return "undefined" if value is None else formatting.score(value)
