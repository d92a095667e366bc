"""The command that serves a bank over HTTP."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from intarsia.cli.shared import ADVANCED, BankOption, DeviceOption, EncoderOption, PrecisionOption, app
from intarsia.errors import IntarsiaError, check_extra
from intarsia.service.options import ADMIN_KEY, API_KEY, Keys, Options, flag, variable

if TYPE_CHECKING:
    from intarsia.local_socket import Listener
    from intarsia.serve.limits import Limits

TYPES = {"int": int, "float": float, "bool": bool, "str": str}
ServeRayOption = Annotated[
    str | None,
    typer.Option(
        "--ray", metavar="ADDRESS", rich_help_panel=ADVANCED, show_default="serve in this process",
        help="Serve with replicas on a Ray cluster: the address of its head node, [cyan]auto[/] on one of its nodes, "
        "or [cyan]local[/].",
    ),
]  # fmt: skip
ReplicasOption = Annotated[
    str, typer.Option("--replicas", rich_help_panel=ADVANCED, help="With --ray: replicas, or a range such as 1:4.")
]
ReplicaCoresOption = Annotated[
    int, typer.Option("--replica-cores", min=1, rich_help_panel=ADVANCED, help="With --ray: cores of each replica.")
]
FrontsOption = Annotated[
    int, typer.Option("--fronts", min=1, rich_help_panel=ADVANCED, help="With --ray: processes that take requests.")
]
CLUSTER = {
    "ray": (ServeRayOption, None), "replicas": (ReplicasOption, "1"), "replica_cores": (ReplicaCoresOption, 1),
    "fronts": (FrontsOption, 1),
}  # fmt: skip
OWN = {"bank": BankOption, "encoder": EncoderOption, "device": DeviceOption, "precision": PrecisionOption}
OWN |= {name: option for name, (option, _) in CLUSTER.items()}
DEFAULTS: dict[str, Any] = {"bank": Path("bank"), "encoder": None, "device": "cpu", "precision": None}
DEFAULTS |= {name: default for name, (_, default) in CLUSTER.items()}


def serve(**given: Any) -> None:
    """Serve the bank over HTTP, until SIGTERM or Ctrl-C.

    Requests of all tasks share passes. The page is at [cyan]/[/], the API at
    [cyan]/docs[/]. The environment variable [cyan]INTARSIA_API_KEY[/] sets the key of
    users, [cyan]INTARSIA_ADMIN_KEY[/] the key of administrators. Each option is
    also an environment variable: [cyan]--rows[/] is [cyan]INTARSIA_SERVE_ROWS[/], but
    [cyan]--bank[/] is [cyan]INTARSIA_BANK[/].
    """
    check_extra("serve", "starlette", "uvicorn", "httptools", "uvloop", "msgspec")
    from intarsia.serve.limits import Limits

    values = {name: given.pop(name) for name in OWN}
    chosen = {name: given.pop(name) for name in LIMITS}
    limits = Limits(**{name: value for name, value in chosen.items() if value is not None})
    options = Options(**given)
    keys = Keys(os.environ.get(API_KEY), os.environ.get(ADMIN_KEY))
    cluster = {name: values.pop(name) for name in CLUSTER}
    if cluster["ray"] is not None:
        given_limits = {name: value for name, value in chosen.items() if value is not None}
        run_on_cluster(values, cluster, given_limits, options, keys)
        return
    if any(cluster[name] != default for name, (_, default) in CLUSTER.items()):
        raise IntarsiaError("--replicas, --replica-cores and --fronts need --ray ADDRESS.")
    run(values["bank"], values["encoder"], values["device"], values["precision"], limits, options, keys)


def run_on_cluster(
    values: dict[str, Any], cluster: dict[str, Any], limits: dict[str, int], options: Options, keys: Keys
) -> None:
    """Serve with replicas on a Ray cluster."""
    from intarsia.cli import console
    from intarsia.cluster.connection import connected
    from intarsia.cluster.replica import ServedBank
    from intarsia.cluster.serving import Scale, serve_until

    folder, device = values["bank"], values["device"].partition(":")[0]
    if not folder.is_dir():
        raise IntarsiaError(f"There is no bank at {folder}. Learn a task first (intarsia learn), or give --bank.")
    scale = Scale.parse(
        cluster["replicas"], cores=cluster["replica_cores"], gpus=int(device != "cpu"), fronts=cluster["fronts"]
    )
    served = ServedBank(
        str(folder.absolute()), values["encoder"], device, values["precision"], options, keys, limits
    )  # fmt: skip

    def announce(url: str) -> None:
        console.err.print(f"Serving {folder} at {url} with {cluster['replicas']} replicas (Ctrl-C ends)", markup=False)
        console.err.print("Jobs that learn while serving are off on a cluster: use intarsia learn.", markup=False)

    with connected(cluster["ray"]):
        serve_until(served, scale, announce)


def run(
    folder: Path, encoder: str | None, device: str, precision: str | None, limits: Limits, options: Options, keys: Keys
) -> None:
    from intarsia.bank.bank import Bank
    from intarsia.cli import console
    from intarsia.service.job_process import Worker
    from intarsia.service.jobs import JobBoard
    from intarsia.service.server import serve

    if not folder.is_dir() and (encoder is None or folder.exists()):  # a mistyped name must not become a new bank
        raise IntarsiaError(
            f"There is no bank at {folder}. Name its folder with --bank, learn a first task (intarsia learn NAME "
            f"DATA), or begin an empty bank with --encoder minilm."
        )
    bank = Bank(folder, encoder, device=device, precision=precision, limits=limits)
    folder.mkdir(parents=True, exist_ok=True)
    worker = Worker(str(folder.absolute()), encoder, device, precision)
    jobs = JobBoard(folder, worker, options) if options.jobs else None

    began = time.monotonic()

    def announce(url: str, local: Listener | None) -> None:
        count = len(bank.tasks())
        console.err.print(f"Serving {count} tasks of {folder} at {url} (Ctrl-C ends)", markup=False)
        if local is not None:
            console.err.print(f"Unix socket: {local.path}", markup=False)
        if not keys.any:
            console.err.print(f"No key is set ({API_KEY}): every program of this machine may ask.", markup=False)
        console.err.print(f"Limits: {_listed(options, without=('host', 'port', 'socket'))}", markup=False)

    def ready(limits: Limits) -> None:
        seconds = time.monotonic() - began
        console.err.print(f"Ready after {seconds:.1f} s. Limits of the engine: {_listed(limits)}", markup=False)

    serve(bank, options, keys, jobs, announce, ready)


def _listed(limits: Options | Limits, without: tuple[str, ...] = ()) -> str:
    return " ".join(f"{k}={v}" for k, v in dataclasses.asdict(limits).items() if k not in without)


def _signature() -> inspect.Signature:
    """The command's parameters: those of other commands, and the fields of `Options`."""
    parameters = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS[name], annotation=_with_variable(name, OWN[name])
        )
        for name in OWN
    ]
    for field in dataclasses.fields(Options):
        declared = (
            f"{flag(field.name)}/--no-{field.name.replace('_', '-')}" if field.type == "bool" else flag(field.name)
        )
        option = typer.Option(declared, envvar=variable(field.name), show_envvar=False, help=field.metadata["help"])
        parameters.append(
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default,
                annotation=Annotated[TYPES[str(field.type)], option],
            )
        )  # fmt: skip
    for name, help in LIMITS.items():
        option = typer.Option(
            flag(name), envvar=variable(name), show_envvar=False, help=help,
            show_default=str(USUAL.get(name, "by the machine")),
        )  # fmt: skip
        parameters.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[int | None, option]
            )
        )
    return inspect.Signature(parameters)


def _with_variable(name: str, annotation: Any) -> Any:
    """An option of several commands: here it is an environment variable too, unless it is one everywhere."""
    kind, shared = get_args(annotation)
    if shared.envvar is not None:
        return annotation
    own = copy.copy(shared)
    own.envvar, own.show_envvar = variable(name), False
    return Annotated[kind, own]


LIMITS = {
    "pass_tokens": "Tokens of a pass, at most.",
    "queue_tokens": "Tokens that wait, at most; more are refused with 429.",
    "slots": "Tasks of one method shape on the device, at most.",
    "slot_bytes": "Bytes of the slots of one method shape, at most.",
    "host_bytes": "Bytes of inlays in host memory, at most.",
    "own_weights": "Tasks on the device that carry weights of the base, at most.",
    "readers": "Threads that read inlays.",
}
USUAL = {"slots": 4096, "own_weights": 2, "readers": 4}  # the defaults of `Limits`, whose module imports torch

serve.__signature__ = _signature()  # type: ignore[attr-defined]
serve.__annotations__ = {p.name: p.annotation for p in _signature().parameters.values()}
app.command(rich_help_panel="The bank")(serve)
