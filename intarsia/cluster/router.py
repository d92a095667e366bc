"""Ray Serve's choice of a replica for a request: the bounded-load consistent hash of `ring.py` over the tasks."""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from intarsia.cluster.ring import FACTOR, Ring


class TaskRouter(RequestRouter):
    """Ranks the replicas for a request by its `key`, the first argument's, and by the requests under way."""

    def initialize_state(self, **options: Any) -> None:
        self.factor = float(options.get("factor", FACTOR))
        self.ring = Ring((), factor=self.factor)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # wait between two rounds if all replicas are full
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        if set(self.ring.members) != replicas.keys():
            self.ring = Ring(replicas, factor=self.factor)
        loads = {name: self.replica_queue_len_cache.get(replica.replica_id) or 0 for name, replica in replicas.items()}
        key = getattr(pending_request.args[0], "key", None) if pending_request.args else None
        return [[replicas[name]] for name in self.ring.ranked(key, loads)]
