"""Training on a cluster of several nodes: every job once, and the bits of one machine, whatever dies."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from intarsia.encoder.encoder import Encoder
from intarsia.methods import BitFit, Bottleneck, Full, LoRA
from intarsia.tasks import load_data
from intarsia.train.job import Job, Settings
from intarsia.train.runner import Runner, RunnerEvent, using
from tests.cluster.conftest import STORE
from tests.support.families import opinions, tiny_with_words
from tests.train.test_runner import Results

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]  # Ray and its libraries warn
DATA = [load_data(opinions(48)), load_data(opinions(64, seed=1))]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    torch.set_num_threads(1)  # as the actors: the number of threads decides how products round
    return tiny_with_words()


def jobs_of(count: int) -> list[Job]:
    methods = (Bottleneck(4), LoRA(2), BitFit())
    settings = [
        Settings(learning_rate=1e-3, epochs=2 + n % 3, batch_size=8, seed=n, dropout=n % 5 > 0) for n in range(count)
    ]
    jobs = [Job("task", DATA[n % 2], methods[n % 3], settings=one) for n, one in enumerate(settings)]
    whole = [Settings(epochs=1, batch_size=8, seed=seed) for seed in (0, 1)]
    return [*jobs[:-2], *(Job("task", DATA[0], Full(), settings=one) for one in whole)]


def equal(a: Results, b: Results) -> bool:
    assert a.trained.keys() == b.trained.keys()
    return all(
        torch.equal(tensor, b.trained[key].tensors[name]) and a.found[key].dev == b.found[key].dev
        for key, trained in a.trained.items()
        for name, tensor in trained.tensors.items()
    )


@pytest.mark.parametrize("share_folder", [True, False])
def test_a_sweep_of_sixty_jobs_survives_its_nodes(
    share_folder: bool, cluster: Any, encoder: Encoder, tmp_path: Path
) -> None:
    """Nodes are killed at random while the jobs run, and new ones come."""
    from intarsia.cluster.training import RayWorkers

    jobs, here, there = jobs_of(60), Results(), Results()
    Runner(jobs, encoder, tmp_path / "here", here).run(together=4)
    nodes = [cluster.add_node(num_cpus=2, object_store_memory=STORE) for _ in range(2)]
    rng, kills, over = random.Random(0), [0], threading.Event()
    results_seen: list[int] = []

    def count(event: RunnerEvent) -> None:
        if event.result is not None:
            results_seen.append(1)
        if len(nodes) == 1:  # Ray starts nodes in the main thread only
            nodes.append(cluster.add_node(num_cpus=2, object_store_memory=STORE))

    def kill() -> None:
        target = 8
        while not over.wait(0.05):
            if len(results_seen) >= target and kills[0] < 4 and len(nodes) == 2:
                kills[0] += 1
                target = len(results_seen) + rng.randrange(4, 12)
                cluster.remove_node(nodes.pop(rng.randrange(2)), allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with using(RayWorkers(save_every=0.2, share_folder=share_folder)):
            Runner(jobs, encoder, tmp_path / "there", there, watch=count).run(together=4)
    finally:
        over.set()
        killer.join()
    assert kills[0] >= 2
    assert len(there.found) == 60 and len(results_seen) == 60  # `Results.add` refuses a job that ends twice
    assert equal(there, here)
    assert not list((tmp_path / "there").iterdir())


def test_what_was_interrupted_goes_on(cluster: Any, encoder: Encoder, tmp_path: Path) -> None:
    """Ctrl-C stops all actors, which store their states; the next call goes on from them, also without Ray."""
    import signal

    from intarsia.cluster.training import RayWorkers

    cluster.add_node(num_cpus=2, object_store_memory=STORE)
    jobs, here, there = jobs_of(12), Results(), Results()
    Runner(jobs, encoder, tmp_path / "here", here).run(together=4)
    pressed = [0]

    def press(event: RunnerEvent) -> None:
        if event.result is not None and not pressed[0]:
            pressed[0] = 1
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), using(RayWorkers()):
        Runner(jobs, encoder, tmp_path / "there", there, watch=press).run(together=4)
    assert 0 < len(there.found) < 12 and list((tmp_path / "there").glob("*/state.safetensors"))
    Runner(jobs, encoder, tmp_path / "there", there).run(together=4)
    assert equal(there, here)


def test_weights_travel_once_a_node(cluster: Any, encoder: Encoder) -> None:
    """The actors of a node read the weights in the memory of its object store."""
    import ray

    from intarsia.cluster.transfer import encoder_of, parts_of

    cluster.add_node(num_cpus=2, object_store_memory=STORE)

    @ray.remote(num_cpus=1)
    class Reader:
        def __init__(self, parts: Any) -> None:
            self.encoder = encoder_of(parts)

        def place(self) -> str:
            weight = max(self.encoder.weights.values(), key=lambda w: w.numel())
            address = weight.data_ptr()
            for line in Path("/proc/self/maps").read_text().splitlines():
                low, high = (int(part, 16) for part in line.split()[0].split("-"))
                if low <= address < high:
                    return line
            return ""

        def fingerprint(self) -> str:
            return self.encoder.fingerprint

    parts = ray.put(parts_of(encoder))
    readers = [Reader.remote(parts) for _ in range(2)]
    assert ray.get([reader.fingerprint.remote() for reader in readers]) == [encoder.fingerprint] * 2
    places = ray.get([reader.place.remote() for reader in readers])
    assert all("plasma" in place for place in places), places  # the memory of the node's object store
