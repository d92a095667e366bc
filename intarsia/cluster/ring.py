"""Consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2018): which replica answers for a task.

Requests of one task go to one replica, so that each replica keeps few tasks resident. A replica that has more than its
share of the requests under way passes the next ones on along the ring. When a replica comes or goes, only the tasks
beside it on the ring move. This module needs no Ray.
"""

from __future__ import annotations

import bisect
import hashlib
import math
from collections.abc import Collection, Iterator, Mapping

POINTS = 128  # points of each member on the ring; the members' shares then differ by about a tenth
LEAST = 8  # requests under way that a member always takes: they share its passes
FACTOR = 1.25  # a member's share of the load, at most, in means; less balances better and moves more tasks


class Ring:
    """The members as points on a circle of hashes."""

    def __init__(self, members: Collection[str], *, points: int = POINTS, factor: float = FACTOR) -> None:
        self.members, self.factor = tuple(sorted(set(members))), factor
        placed = sorted((_hash(f"{member}:{number}"), member) for member in self.members for number in range(points))
        self.hashes, self.owners = [hash for hash, _ in placed], [member for _, member in placed]

    def order(self, key: str) -> Iterator[str]:
        """Yield all members in the order of the ring, beginning with the key's owner."""
        first = bisect.bisect_right(self.hashes, _hash(key))
        seen = set[str]()
        for step in range(len(self.owners)):
            member = self.owners[(first + step) % len(self.owners)]
            if member not in seen:
                seen.add(member)
                yield member
                if len(seen) == len(self.members):
                    return

    def bound(self, loads: Mapping[str, int]) -> int:
        """Return the largest load that a member may have after the next request."""
        total = sum(loads.get(member, 0) for member in self.members)
        return max(LEAST, math.ceil(self.factor * (total + 1) / len(self.members)))

    def ranked(self, key: str | None, loads: Mapping[str, int]) -> list[str]:
        """Return all members in the order in which they should be asked; without a key, the least loaded first.

        `loads` are the requests under way. Members below the bound come first, in the order of the ring; then the
        others, the least loaded first.
        """
        if key is None or not self.members:
            return sorted(self.members, key=lambda member: loads.get(member, 0))
        bound = self.bound(loads)
        order = list(self.order(key))
        below = [member for member in order if loads.get(member, 0) < bound]
        above = [member for member in order if loads.get(member, 0) >= bound]
        return below + sorted(above, key=lambda member: loads.get(member, 0))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
