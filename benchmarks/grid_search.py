"""A grid search whose fits share passes, against scikit-learn's own GridSearchCV: the same fits, one after another.

python benchmarks/grid_search.py --rows 120 --epochs 2 --out results/grid-search.json

Both searches run in this process, in turn, over one loaded base, without dropout, so that their fits are the same. The
ratio of the two times is the result; the times themselves depend on the machine and on what else it does.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from sklearn.model_selection import GridSearchCV, ParameterGrid

from intarsia import files, provenance
from intarsia.encoder.encoder import Encoder
from intarsia.sklearn import IntarsiaClassifier, IntarsiaGridSearchCV

GRID = {"learning_rate": [3e-4, 1e-3], "method": ["houlsby-8", "houlsby-16"]}
MOODS = {
    "angry": ("where is my refund", "this is the third time", "I want my money back now"),
    "calm": ("thank you for the help", "could you send me the form", "just a short question"),
}


def texts(rows: int, seed: int) -> tuple[list[str], list[str]]:
    """Short messages with their mood."""
    draw = random.Random(seed)
    moods = [("angry", "calm")[row % 2] for row in range(rows)]
    return [f"{draw.choice(MOODS[mood])}, order {draw.randrange(10**6)}" for mood in moods], moods


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=120)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    X, y = texts(options.rows, options.seed)
    encoder = Encoder.load("minilm", device=options.device)
    model = IntarsiaClassifier(
        encoder=encoder, epochs=options.epochs, batch_size=options.batch_size, dropout=False, device=options.device,
        random_state=options.seed,
    )  # fmt: skip
    model.set_params(method="houlsby-8").fit(X[:20], y[:20])  # first calls are slower
    found: dict[str, Any] = {}
    for name, kind in (("one after another", GridSearchCV), ("shared passes", IntarsiaGridSearchCV)):
        began = time.monotonic()
        search = kind(model, GRID, cv=options.folds, refit=False).fit(X, y)
        scores = [round(float(score), 4) for score in search.cv_results_["mean_test_score"]]
        found[name] = {"seconds": round(time.monotonic() - began, 2), "mean_test_score": scores}
    fits = options.folds * len(ParameterGrid(GRID))
    ratio = found["one after another"]["seconds"] / found["shared passes"]["seconds"]
    result = {
        "what": "GridSearchCV and IntarsiaGridSearchCV: the same fits, one after another and in shared passes",
        "fits": fits,
        "options": {name: value for name, value in vars(options).items() if name != "out"},
        "searches": found,
        "ratio": round(ratio, 2),
        "note": "one run on a machine that other programs used at the same time; the ratio is noisy",
        "command": " ".join(["python", *sys.argv]).partition(" --out")[0],
        "machine": provenance.machine(options.device),
        "versions": provenance.versions(),
    }
    print(json.dumps(result, indent=2))
    if options.out:
        files.replace(options.out, [json.dumps(result, indent=2).encode() + b"\n"])


if __name__ == "__main__":
    main()
