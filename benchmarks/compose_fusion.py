"""AdapterFusion: single inlays of many tasks, then attention over all of them for the small ones.

    python benchmarks/compose_fusion.py --bank /tmp/fusion --out results/compose-fusion.json --rows 500

The tuning budget is equal: each small task trains its single inlay, a second single inlay with twice the epochs (what
the two stages of fusion cost), and one fusion; each with one setting. The tasks of a stage share passes.
"""

from __future__ import annotations

from statistics import fmean

from compose_common import Experiment, Wanted

from intarsia import Fuse, Pfeiffer

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
    rate, epochs = float(run.set.get("rate", 5e-4)), int(run.set.get("epochs", 10))
    names = {f"glue/{task}": task for task in (*GLUE, *SAMPLES)} | {f"extra/{task}": task for task in FURTHER}
    left_out = run.set.get("leave_out", "").split(",")
    ordered = [*TARGETS, *(task for task in names if task not in TARGETS and task not in left_out)]
    data = {task: run.data(task) for task in ordered}
    adapter = {"learning_rate": float(run.set.get("adapter_rate", 5e-4)), "batch_size": 32}
    run.learn_all(
        bank,
        {f"single {task}": Wanted(names[task], data[task], ADAPTER, {**adapter, "epochs": epochs}) for task in ordered},
    )
    parts = tuple(names[task] for task in ordered)
    twice, fused = {}, {}
    for seed in range(run.options.seeds):
        for task in TARGETS:
            name = f"{names[task]}-{seed}"
            of_single = {**adapter, "epochs": 2 * epochs, "seed": seed}
            of_fusion = {"learning_rate": rate, "batch_size": 32, "epochs": epochs, "seed": seed}
            twice[f"single twice {task} {seed}"] = Wanted(f"{name}-twice", data[task], ADAPTER, of_single)
            fused[f"fusion {task} {seed}"] = Wanted(f"{name}-fused", data[task], Fuse(*parts), of_fusion)
    run.learn_all(bank, twice)
    run.learn_all(bank, fused)
    scores = run.scores
    gains = {
        task: {
            against: round(
                fmean(scores[f"fusion {task} {seed}"] - against_score(scores, against, task, seed) for seed in seeds), 2
            )
            for against in ("single", "single twice")
        }
        for seeds in [range(run.options.seeds)]
        for task in TARGETS
    }
    means = {
        against: round(fmean(gain[against] for gain in gains.values()), 2) for against in ("single", "single twice")
    }
    run.write(parts=parts, fusion_rate=rate, epochs=epochs, gains=gains, mean_gain=means)


def against_score(scores: dict[str, float], against: str, task: str, seed: int) -> float:
    return scores[f"single {task}"] if against == "single" else scores[f"single twice {task} {seed}"]


if __name__ == "__main__":
    main()
