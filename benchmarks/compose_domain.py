"""Domain stacks: masked words on plain tweets, then a task on few tweets, with and without the domain inlay.

    python benchmarks/compose_domain.py --bank /tmp/domain --out results/compose-domain.json --seeds 2

The domain's texts are those of other tasks with tweets, without labels.
"""

from __future__ import annotations

from statistics import fmean

from compose_common import Experiment, Wanted

from intarsia import Pfeiffer, Stack
from intarsia.methods import Method
from intarsia.tasks import load_data
from intarsia.tasks.suites import load

TASK = "extra/disasters"
TEXTS = ("extra/emotion", "extra/airline", "extra/global_warming")
SIZES = (50, 200, 1000)
DOMAIN = Pfeiffer(reduction=2, invertible=True)
TASK_ADAPTER = Pfeiffer(reduction=16)


def main() -> None:
    run = Experiment("a task over a domain inlay, against the task alone")
    bank = run.open()
    sizes = [int(size) for size in run.set.get("sizes", ",".join(map(str, SIZES))).split(",")]
    count, epochs = int(run.set.get("texts", 6000)), int(run.set.get("epochs", 2))

    def domain() -> float:
        texts = [e.text for task in TEXTS for e in load(task).train[: count // len(TEXTS)]]
        data = load_data(
            {"train": [{"text": t} for t in texts[:-200]], "dev": [{"text": t} for t in texts[-200:]]}, kind="words"
        )
        return run.learn(bank, "tweets", data, DOMAIN, epochs=epochs, learning_rate=5e-4, batch_size=32)

    run.score("likelihood of hidden words", domain)
    methods: dict[str, Method] = {
        "alone": TASK_ADAPTER,
        "stack": Stack("tweets", TASK_ADAPTER),
        "stack, paper's residual": Stack("tweets", TASK_ADAPTER, residual="paper"),
    }
    wanted = {}
    for size in sizes:
        for seed in range(run.options.seeds):
            for shown, method in methods.items():
                name = f"{shown} {size} {seed}".replace(" ", "-").replace(",", "").replace("'", "")
                settings = {"seed": seed, "epochs": max(10, min(40, 4000 // size))}
                wanted[f"{size} rows, {shown}, {seed}"] = Wanted(name, run.data(TASK, size), method, settings)
    run.learn_all(bank, wanted)
    means = {
        f"{size} rows, {shown}": round(
            fmean(run.scores[f"{size} rows, {shown}, {s}"] for s in range(run.options.seeds)), 2
        )
        for size in sizes
        for shown in methods
    }
    run.write(task=TASK, texts=count, texts_from=TEXTS, domain_epochs=epochs, means=means)


if __name__ == "__main__":
    main()
