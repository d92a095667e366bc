"""The connection to a Ray cluster, or a small cluster of this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from intarsia.errors import IntarsiaError, check_extra

LOCAL = "local"
STORE_BYTES = 256 * 2**20  # the object store of a cluster of this machine, beside what an encoder needs


@contextmanager
def connected(address: str, *, store_bytes: int = STORE_BYTES) -> Iterator[None]:
    """Connect to the cluster at `address` for the block: `local` starts one on this machine, `auto` finds one here.

    A connection that this process has already is used and stays.
    """
    check_extra("ray", "ray")
    if address.startswith("ray://"):
        raise IntarsiaError(
            f"--ray {address}: Ray Client is not supported. Run the command on a node of the cluster with --ray auto, "
            "or give the address of its head node, such as 10.0.0.1:6379."
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's reporters warn about the absence of the dashboard's packages and about an environment variable for GPUs.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        yield
        return
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if address == LOCAL:
            os.environ.setdefault("RAY_worker_niceness", "0")  # Ray lowers the priority of its workers
            ray.init(
                address="local", include_dashboard=False, object_store_memory=store_bytes,
                _node_ip_address="127.0.0.1", **quiet,
            )  # fmt: skip
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise IntarsiaError(
            f"--ray {address}: no Ray cluster answers there ({error}). Start one with `ray start --head`, give the "
            "address of its head node, or use --ray local."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()
