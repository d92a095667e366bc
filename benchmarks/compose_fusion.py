"""AdapterFusion: single inlays of many tasks, then attention over all of them for the small ones.

    python benchmarks/compose_fusion.py --bank /tmp/fusion --out results/compose-fusion.json --rows 500

The tuning budget is equal: each small task trains its single inlay, a second single inlay with twice the epochs (what
the two stages of fusion cost), and one fusion; each with one setting.
"""

from __future__ import annotations

from statistics import fmean

from compose_common import Experiment

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
    for task in ordered:
        run.score(f"single {task}", run.learn, bank, names[task], run.data(task), ADAPTER, epochs=epochs)
    parts = tuple(names[task] for task in ordered)
    for seed in range(run.options.seeds):
        for task in TARGETS:
            data, name = run.data(task), f"{names[task]}-{seed}"
            settings = {"epochs": epochs, "seed": seed}
            run.score(
                f"fusion {task} {seed}",
                run.learn,
                bank,
                f"{name}-fused",
                data,
                Fuse(*parts),
                learning_rate=rate,
                **settings,
            )
            run.score(
                f"single twice {task} {seed}",
                run.learn,
                bank,
                f"{name}-twice",
                data,
                ADAPTER,
                epochs=2 * epochs,
                seed=seed,
            )
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
