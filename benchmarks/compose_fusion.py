"""AdapterFusion: single inlays of many tasks, then attention over all of them for the small ones.

    python benchmarks/compose_fusion.py --bank /tmp/fusion --out results/compose-fusion.json --rows 500 \\
        --set rates=5e-5,1e-4,3e-4 adapter_rates=2e-4,5e-4,1e-3

The tuning budget is equal: each small task trains fusions, and single inlays with twice the epochs (what the two
stages of fusion cost). Both try as many learning rates with the first seed, and validation chooses one for all seeds.
The tasks of a stage share passes.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, stdev
from typing import Any

from compose_common import Experiment, Wanted, dev_score

from intarsia import Fuse, Pfeiffer
from intarsia.bank.bank import Bank

GLUE = ("cola", "mrpc", "rte", "stsb", "sst2", "wnli")
SAMPLES = ("mnli", "qqp")
FURTHER = (
    "airline", "corporate_messaging", "disasters", "emotion", "global_warming", "political_audience", "political_bias",
    "political_message", "primary_emotions", "progressive_opinion", "progressive_stance", "sms_spam",
)  # fmt: skip
TARGETS = (
    "glue/rte", "glue/mrpc", "glue/stsb", "glue/cola", "extra/progressive_opinion", "extra/progressive_stance",
    "extra/primary_emotions", "extra/corporate_messaging",
)  # fmt: skip
ADAPTER = Pfeiffer(reduction=16)


def main() -> None:
    run = Experiment("AdapterFusion over single inlays, against the single inlay")
    bank = run.open()
    epochs = int(run.set.get("epochs", 10))
    names = {f"glue/{task}": task for task in (*GLUE, *SAMPLES)} | {f"extra/{task}": task for task in FURTHER}
    ordered = [*TARGETS, *(task for task in names if task not in TARGETS)]
    data = {task: run.data(task) for task in ordered}
    rates = {
        "fusion": run.set.get("rates", "1e-4").split(","),
        "single twice": run.set.get("adapter_rates", "5e-4").split(","),
    }
    rate = float(run.set.get("part_rate", 5e-4))
    settings = {"learning_rate": rate, "batch_size": 32, "epochs": epochs}
    run.learn_all(bank, {f"single {task}": Wanted(names[task], data[task], ADAPTER, settings) for task in ordered})
    parts = tuple(names[task] for task in ordered)

    def wanted(way: str, task: str, rate: str, seed: int) -> Wanted:
        fused = way == "fusion"
        settings = {
            "learning_rate": float(rate), "batch_size": 32, "seed": seed, "epochs": epochs if fused else 2 * epochs,
        }  # fmt: skip
        return Wanted(_name(way, task, rate, seed), data[task], Fuse(*parts) if fused else ADAPTER, settings)

    def learn(seed: int, rates_of: Callable[[str, str], list[str]]) -> None:
        for way in rates:
            run.learn_all(bank, {
                f"{way} {task} {rate} {seed}": wanted(way, task, rate, seed)
                for task in TARGETS
                for rate in rates_of(way, task)
            })  # fmt: skip

    learn(0, lambda way, task: rates[way])
    chosen = {(way, task): _best(bank, way, task, rates[way]) for way in rates for task in TARGETS}
    for seed in range(1, run.options.seeds):
        learn(seed, lambda way, task: [chosen[way, task]])
    found: dict[str, Any] = {}
    for task in TARGETS:
        of = {
            way: [run.scores[f"{way} {task} {chosen[way, task]} {seed}"] for seed in range(run.options.seeds)]
            for way in rates
        }
        found[task] = {
            way: {
                "rate": float(chosen[way, task]), "mean": round(fmean(scores), 2),
                "deviation": round(stdev(scores), 2) if len(scores) > 1 else None,
            }
            for way, scores in of.items()
        } | {"gain": round(fmean(of["fusion"]) - fmean(of["single twice"]), 2)}  # fmt: skip
    gain = round(fmean(of_task["gain"] for of_task in found.values()), 2)
    run.write(parts=parts, epochs=epochs, tasks=found, mean_gain=gain)


def _name(way: str, task: str, rate: str, seed: int) -> str:
    return f"{task.split('/')[1]}-{'fused' if way == 'fusion' else 'twice'}-{rate}-{seed}"


def _best(bank: Bank, way: str, task: str, rates: list[str]) -> str:
    """Return the learning rate with the best validation score of the first seed."""
    return max(rates, key=lambda rate: dev_score(bank, _name(way, task, rate, 0)))


if __name__ == "__main__":
    main()
