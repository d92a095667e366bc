"""Merging: two inlays from halves of one data set, and two related tasks, by every merge.

python benchmarks/compose_merge.py --bank /tmp/merge --out results/compose-merge.json --rows 1000
"""

from __future__ import annotations

import dataclasses
from typing import Any

from compose_common import Experiment, evaluate

from intarsia.errors import IntarsiaError

METHODS = ("pfeiffer-24", "lora-8", "layernorm", "lt-sft-0.5%")
MERGES: dict[str, dict[str, Any]] = {
    "linear": {}, "arithmetic 1": {}, "arithmetic 0.5": {"scale": 0.5}, "ties 0.2": {}, "ties 0.5": {"density": 0.5},
    "dare 0.9": {"scale": 0.5}, "dare 0.5": {"scale": 0.5, "drop": 0.5}, "concat": {"scale": 0.5},
    "svd": {"scale": 0.5},
}  # fmt: skip
HALVED = "glue/sst2"
RELATED = ("extra/airline", "glue/sst2")  # both ask for the tone of a text; airline without its neutral rows


def main() -> None:
    run = Experiment("two inlays merged in their weights, scored on the whole task's test part")
    bank = run.open()
    whole = run.data(HALVED)
    middle = len(whole.train) // 2
    halves = {
        "first half": dataclasses.replace(whole, train=whole.train[:middle]),
        "second half": dataclasses.replace(whole, train=whole.train[middle:]),
    }
    airline = run.data(RELATED[0], 2 * run.options.rows)
    tone: dict[str, Any] = {
        part: [
            dataclasses.replace(e, label=str(e.label).lower())
            for e in getattr(airline, part)
            if str(e.label).lower() != "neutral"
        ][: run.options.rows]
        for part in ("train", "dev", "test")
    }
    tweets = dataclasses.replace(airline, labels=("negative", "positive"), **tone)
    for method in METHODS:
        short = method.partition("-")[0]
        settings = {"epochs": 3 if short == "lt" else 6, "seed": 0}
        tasks = {**halves, "whole": whole, "tweets": tweets}
        for part, rows in tasks.items():
            name = f"{short} {part}".replace(" ", "-")
            run.score(f"{method}: {part}", run.learn, bank, name, rows, method, **settings)
        one, other, tweet = (f"{short}-{part}" for part in ("first-half", "second-half", "tweets"))
        run.score(f"{method}: whole on tweets", evaluate, bank, f"{short}-whole", tweets)
        run.score(f"{method}: tweets on whole", evaluate, bank, tweet, whole)
        for merge, options in MERGES.items():
            how = merge.partition(" ")[0]
            weight = 0.5 if how == "linear" else 1.0
            for pair, names in {"halves": (one, other), "related": (f"{short}-whole", tweet)}.items():
                name = f"{short} {merge} {pair}".replace(" ", "-")
                if not bank.store.has(name):
                    try:
                        bank.merge(name, dict.fromkeys(names, weight), how, **options)
                    except IntarsiaError as error:
                        run.written.setdefault("refused", {})[f"{method}: {merge}"] = str(error)
                        break
                run.score(f"{method}: {merge}, {pair}", evaluate, bank, name, whole)
                if pair == "related":
                    run.score(f"{method}: {merge}, related on tweets", evaluate, bank, name, tweets)
    run.write(test_rows_of={"sst2": len(whole.test), "tweets": len(tweets.test)})


if __name__ == "__main__":
    main()
