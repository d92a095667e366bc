"""Small Ray clusters of several nodes on this machine. Without Ray, the tests that need it are skipped."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (Ray lowers the priority of its workers)
STORE = 80 * 2**20


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without cores, to which a test adds nodes; this process is connected to it."""
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    # Several copies of this process's environment: workers import the package and the tests from here.
    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False},
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
