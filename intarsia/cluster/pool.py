"""The actors of a cluster: as many as its nodes have room for. Nodes may come and go."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

LOOK_EVERY = 1.0  # seconds between two looks at the list of nodes


@dataclass
class Member:
    """An actor, its node, and the stream of reports of the batch that it trains."""

    name: str
    node: str
    place: str  # the node's address, for people
    actor: Any
    ready: Any  # a reference that is there once the encoder is loaded
    up: bool = False
    sees_folder: bool = False
    stream: Any = None
    costs: dict[str, float] = field(default_factory=dict)  # of the jobs of its batch
    done: dict[str, float] = field(default_factory=dict)  # the share of each that is done
    stopping: bool = False


class Pool:
    """Starts an actor for each device, or for each share of cores, of every node of the cluster."""

    def __init__(self, parts: Any, *, cores: int, device: str, precision: str | None, most: int | None) -> None:
        """`parts`: a reference to the encoder's parts in the object store. `most`: the number of actors, at most."""
        self.parts, self.cores, self.device, self.precision, self.most = parts, cores, device, precision, most
        self.members: dict[str, Member] = {}
        self.numbers, self.looked = itertools.count(), 0.0

    def grow(self, wanted: int) -> None:
        """Start actors where there is room, up to `wanted` in all, but look at the nodes only once a second."""
        import ray

        now = time.monotonic()
        if now - self.looked < LOOK_EVERY:
            return
        self.looked = now
        limit = wanted if self.most is None else min(wanted, self.most)
        for node in ray.nodes():
            if not node["Alive"]:
                continue
            here = sum(member.node == node["NodeID"] for member in self.members.values())
            for _ in range(self._room(node["Resources"]) - here):
                if len(self.members) >= limit:
                    return
                self._start(node)

    def _room(self, resources: dict[str, float]) -> int:
        """Return the number of actors that a node holds."""
        if self.device == "cpu":
            return int(resources.get("CPU", 0) // self.cores)
        return int(min(resources.get("GPU", 0), resources.get("CPU", 0) // self.cores))

    def _start(self, node: dict[str, Any]) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from intarsia.cluster.actor import TrainingActor

        remote = ray.remote(TrainingActor).options(
            num_cpus=self.cores,
            num_gpus=0 if self.device == "cpu" else 1,
            max_concurrency=4,  # a batch, and meanwhile the driver's short calls
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        )
        actor = remote.remote(self.parts, self.cores, self.device, self.precision)
        name = f"actor-{next(self.numbers)}"
        self.members[name] = Member(name, node["NodeID"], node["NodeManagerAddress"], actor, None)

    def drop(self, member: Member) -> None:
        """Forget an actor that has died, and make sure that it has."""
        import ray

        self.members.pop(member.name, None)
        ray.kill(member.actor)

    def close(self) -> None:
        """End all actors."""
        for member in list(self.members.values()):
            self.drop(member)

    def idle(self) -> Sequence[Member]:
        """Return the actors that are ready and have no batch."""
        return [member for member in self.members.values() if member.up and member.stream is None]
