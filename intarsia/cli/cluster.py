"""The options with which a command trains on a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from intarsia.errors import IntarsiaError

PANEL = "On a Ray cluster"

RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray", metavar="ADDRESS", rich_help_panel=PANEL, show_default="train in this process",
        help="Train on a Ray cluster: the address of its head node, [cyan]auto[/] on one of its nodes, or "
        "[cyan]local[/] for several processes on this machine.",
    ),
]  # fmt: skip
ActorCoresOption = Annotated[
    int,
    typer.Option("--actor-cores", min=1, rich_help_panel=PANEL, help="With --ray: cores of each actor."),
]
ActorsOption = Annotated[
    int | None,
    typer.Option(
        "--actors", min=1, rich_help_panel=PANEL, show_default="as many as fit", help="With --ray: actors, at most."
    ),
]


@contextmanager
def on_cluster(
    address: str | None, cores: int, actors: int | None, device: str = "cpu", precision: str | None = None
) -> Iterator[None]:
    """Train the queues of the block on the cluster at `address`; None: in this process."""
    if address is None:
        if cores != 1 or actors is not None:
            raise IntarsiaError("--actor-cores and --actors need --ray ADDRESS.")
        yield
        return
    if precision == "int8":
        raise IntarsiaError("int8 is for serving: leave out --precision int8.")
    from intarsia.cluster.connection import connected
    from intarsia.cluster.training import RayWorkers
    from intarsia.train.runner import using

    with connected(address), using(RayWorkers(cores, device.partition(":")[0], precision, actors)):
        yield
