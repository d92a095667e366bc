"""`intarsia serve --ray`: replicas of the service behind Ray Serve.

A request passes Ray's HTTP proxy, a front (`front.py`) and one replica (`replica.py`). The front's handle chooses the
replica with `router.py`.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

from intarsia.cluster.replica import ServedBank
from intarsia.errors import IntarsiaError, check_extra
from intarsia.service.options import ADMIN_KEY, API_KEY, Keys, Options, check_exposure

APP, REPLICAS, FRONT = "intarsia", "Replica", "Front"
ONGOING = 256  # requests that a replica has at once, at most; its own limit is in tokens
TARGET = 16  # requests under way for each replica at which the number of replicas stays


@dataclasses.dataclass(frozen=True)
class Scale:
    """How many replicas there are, and what each has."""

    least: int = 1
    most: int = 1
    cores: float = 1
    gpus: float = 0
    fronts: int = 1
    target: float = TARGET
    upscale_seconds: float = 5.0
    downscale_seconds: float = 60.0

    @classmethod
    def parse(cls, text: str, **given: Any) -> Scale:
        """Return the scale of `3` (replicas) or `1:4` (at least and at most)."""
        found = re.fullmatch(r"(\d+)(?::(\d+))?", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2] or found[1]):
            raise IntarsiaError(f"--replicas {text!r}: expected a number such as 3, or a range such as 1:4.")
        return cls(int(found[1]), int(found[2] or found[1]), **given)


def application(served: ServedBank, scale: Scale) -> Any:
    """Return the application for `ray.serve.run`."""
    from ray import serve
    from ray.serve.config import AutoscalingConfig, BackpressureConfig, RequestRouterConfig

    from intarsia.cluster.front import Front
    from intarsia.cluster.replica import Replica

    backpressure = BackpressureConfig(status_code=429, retry_after_s=1)
    threads = max(1, int(scale.cores))
    served = dataclasses.replace(
        served, options=dataclasses.replace(served.options, jobs=False, socket=False), threads=threads
    )
    size: dict[str, Any] = {"num_replicas": scale.least}
    if scale.most > scale.least:
        size = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=scale.least, max_replicas=scale.most, target_ongoing_requests=scale.target,
                upscale_delay_s=scale.upscale_seconds, downscale_delay_s=scale.downscale_seconds,
                metrics_interval_s=1.0, look_back_period_s=max(2.0, scale.upscale_seconds),
            )
        }  # fmt: skip
    replicas = serve.deployment(
        Replica,
        name=REPLICAS,
        ray_actor_options={"num_cpus": scale.cores, "num_gpus": scale.gpus},
        max_ongoing_requests=ONGOING,
        max_queued_requests=ONGOING * scale.most,
        backpressure_config=backpressure,
        request_router_config=RequestRouterConfig(request_router_class="intarsia.cluster.router.TaskRouter"),
        graceful_shutdown_timeout_s=served.options.drain_seconds,
        health_check_period_s=5,
        **size,
    ).bind(served)
    front = serve.deployment(
        serve.ingress()(Front),
        name=FRONT,
        num_replicas=scale.fronts,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=served.options.connections,
        max_queued_requests=served.options.connections,
        backpressure_config=backpressure,
        graceful_shutdown_timeout_s=served.options.drain_seconds,
    )
    return front.bind(replicas, served.options)


def build(given: Mapping[str, Any]) -> Any:
    """Return the application of a Serve configuration file: `import_path: intarsia.cluster.serving:build`.

    The arguments are `bank`, and as options of `intarsia serve`: `encoder`, `device`, `precision`, `replicas`,
    `replica_cores`, `fronts`, limits and options. The keys come from the environment.
    """
    rest = dict(given)
    if "bank" not in rest:
        raise IntarsiaError("the arguments of the Serve application lack `bank`, the folder of the bank.")
    scale = Scale.parse(
        str(rest.pop("replicas", "1")), cores=rest.pop("replica_cores", 1), fronts=rest.pop("fronts", 1),
        gpus=int(str(rest.get("device", "cpu")).startswith("cuda")),
    )  # fmt: skip
    names = {field.name for field in dataclasses.fields(Options)}
    options = Options(**{name: rest.pop(name) for name in sorted(names & rest.keys())})
    folder = rest.pop("bank")
    own = {name: rest.pop(name) for name in ("encoder", "device", "precision") if name in rest}
    return application(ServedBank(str(folder), options=options, keys=_keys(), limits=rest, **own), scale)


def _keys() -> Keys:
    return Keys(os.environ.get(API_KEY), os.environ.get(ADMIN_KEY))


def start(served: ServedBank, scale: Scale) -> str:
    """Start the service on the connected cluster, wait until it is ready, and return its URL."""
    check_extra("serve", "starlette", "uvicorn", "httptools", "uvloop", "msgspec")
    check_exposure(served.options, served.keys)
    from ray import serve
    from ray.serve.config import HTTPOptions

    options = served.options
    serve.start(
        proxy_location="EveryNode" if scale.fronts > 1 else "HeadOnly",
        http_options=HTTPOptions(
            host=options.host, port=options.port, keep_alive_timeout_s=int(options.idle_seconds),
            request_timeout_s=2 * options.timeout_ms / 1000,
        ),
        logging_config={"enable_access_log": False},
    )  # fmt: skip
    try:
        serve.run(application(served, scale), name=APP, route_prefix="/")
    except RuntimeError as error:
        serve.shutdown()
        raise IntarsiaError(f"the service did not start on the cluster: {error}") from error
    return f"http://{options.host}:{options.port}"


def serve_until(served: ServedBank, scale: Scale, announce: Callable[[str], None]) -> None:
    """Serve on the connected cluster until SIGTERM or Ctrl-C; then answer what was admitted, and end."""
    from ray import serve

    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        announce(start(served, scale))
        while not ended.wait(1.0):  # a wait without an end would not see signals on all systems
            pass
    finally:
        serve.shutdown()
        for number, handler in before.items():
            signal.signal(number, handler)
