"""The bounded-load consistent hash: balance, stability when members come and go, and the bound."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from intarsia.cluster.ring import FACTOR, LEAST, Ring

TASKS = [f"task-{number}" for number in range(2000)]
NAMES = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=9, unique=True)


def owner(ring: Ring, task: str) -> str:
    return next(ring.order(task))


def test_tasks_spread_over_the_members() -> None:
    counts = Counter(owner(Ring([f"replica-{i}" for i in range(8)]), task) for task in TASKS[:400])
    assert len(counts) == 8 and max(counts.values()) < 2 * 400 / 8


def test_only_the_tasks_of_a_lost_member_move() -> None:
    members = [f"replica-{i}" for i in range(6)]
    before, after = Ring(members), Ring(members[1:])
    moved = [task for task in TASKS if owner(before, task) != owner(after, task)]
    assert moved and all(owner(before, task) == members[0] for task in moved)
    assert len(moved) == sum(owner(before, task) == members[0] for task in TASKS)


def test_a_new_member_takes_tasks_from_all_and_gives_none() -> None:
    members = [f"replica-{i}" for i in range(6)]
    before, after = Ring(members[1:]), Ring(members)
    assert {owner(after, task) for task in TASKS if owner(before, task) != owner(after, task)} == {members[0]}


@given(NAMES, st.text(max_size=20), st.data())
def test_all_members_are_ranked_once_and_those_below_the_bound_come_first(
    names: list[str], key: str, data: st.DataObject
) -> None:
    ring = Ring(names)
    loads = {name: data.draw(st.integers(0, 50)) for name in names}
    for ranked in (ring.ranked(key, loads), ring.ranked(None, loads)):
        assert sorted(ranked) == sorted(names)
    first = ring.ranked(key, loads)[0]
    assert loads[first] < ring.bound(loads)  # there is always a member below the bound
    assert sum(loads.values()) >= LEAST or first == owner(ring, key)  # under a small load, tasks stay where they are
    assert loads[ring.ranked(None, loads)[0]] == min(loads.values())


def test_the_load_stays_within_the_bound_whatever_is_asked() -> None:
    """One task gets half of all requests; requests end at random."""
    ring = Ring([f"replica-{i}" for i in range(5)])
    rng, loads, under_way = random.Random(0), Counter[str](), list[str]()
    for _ in range(5000):
        task = TASKS[0] if rng.random() < 0.5 else rng.choice(TASKS)
        chosen = ring.ranked(task, loads)[0]
        loads[chosen] += 1
        under_way.append(chosen)
        assert loads[chosen] <= max(LEAST, FACTOR * sum(loads.values()) / 5 + 1)
        while len(under_way) > 300:
            loads[under_way.pop(rng.randrange(len(under_way)))] -= 1


def test_with_room_a_task_stays_with_its_owner() -> None:
    ring = Ring(["a", "b", "c"])
    assert all(ring.ranked(task, {"a": 3, "b": 3, "c": 3})[0] == owner(ring, task) for task in TASKS[:100])
