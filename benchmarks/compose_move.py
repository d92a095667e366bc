"""Moving: a task learned on one base, moved to another of the same shape, and learned anew there.

    python benchmarks/compose_move.py --encoder FOLDER --bank /tmp/move --out results/compose-move-small.json \\
        --rows 300 --set to=FOLDER both=yes
    python benchmarks/compose_move.py --bank /tmp/move-domain --out results/compose-move-domain.json --set texts=6000

Without `to`, the other base is a copy of the first that was trained whole on masked words of tweets. `both=yes` also
moves the inlays of the other base to the first. `kinship` in the result says whether the bases have one ancestor: the
cosine of their tensors of one name, which is near 0 if they were trained from different random weights.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import median

from compose_common import Experiment, Wanted, test_score
from torch.nn.functional import cosine_similarity

from intarsia import Full
from intarsia.bank import family
from intarsia.bank.bank import Bank
from intarsia.methods import parse
from intarsia.tasks import load_data
from intarsia.tasks.suites import load

METHODS = ("pfeiffer-24", "houlsby-16", "lora-8", "ia3", "prefix-16", "layernorm", "bitfit", "lt-sft-0.5%", "features")
TEXTS = ("extra/emotion", "extra/airline", "extra/global_warming")


def adapted(run: Experiment, bank: Bank) -> Path:
    """Return the folder of the base after masked words on tweets."""
    folder = run.options.bank / "adapted"
    if not folder.exists():
        count = int(run.set.get("texts", 6000))
        texts = [e.text for task in TEXTS for e in load(task).train[: count // len(TEXTS)]]
        rows = [{"text": text} for text in texts]
        data = load_data({"train": rows[:-200], "dev": rows[-200:]}, kind="words")
        run.learn(bank, "tweets", data, Full(), epochs=1, learning_rate=5e-5)
        save(bank, "tweets", folder)
    return folder


def save(bank: Bank, name: str, folder: Path) -> None:
    """Write the base with a task's weights as a `transformers` folder."""
    from transformers import AutoModel

    encoder = bank.encoder
    learned = family.learned_on(bank.store, bank.store.load(name), encoder)
    method, own = learned.method, learned.method_tensors
    phase = method.phases(encoder.shape)[-1].name
    weights = {**encoder.weights, **method.weights(phase, encoder.shape, own, own, encoder.weights)}
    config = type(encoder.model.config).from_dict(encoder.model.config.to_dict())
    model = AutoModel.from_config(config)
    model.load_state_dict(weights, strict=False)
    model.save_pretrained(folder)
    encoder.tokenizer.save_pretrained(folder)


def kinship(one: Bank, other: Bank) -> dict[str, float]:
    """Return the cosines of the bases' word embeddings (the median over words) and linear layers (over layers)."""
    a, b = one.encoder.weights, other.encoder.weights
    words = one.encoder.shape.words.name
    linears = [
        float(cosine_similarity(a[name].flatten(), b[name].flatten(), dim=0))
        for name in a.keys() & b.keys()
        if a[name].ndim == 2 and "embedding" not in name
    ]
    return {
        "word embeddings": round(float(cosine_similarity(a[words], b[words]).median()), 4),
        "linear layers": round(median(linears), 4),
    }


def settings_of(run: Experiment) -> dict[str, int]:
    return {name: int(run.set[name]) for name in ("epochs", "batch_size") if name in run.set}


def moved(here: Bank, there: Bank, name: str, rows: object) -> float:
    if not there.store.has(name):
        here.move(name, to=there, check=rows)
    return test_score(there, name)


def main() -> None:
    run = Experiment("a task moved to another base of the same shape")
    here = run.open("first")
    there = run.open("second", run.set.get("to") or adapted(run, here))
    run.write(
        to=Path(run.set["to"]).name if "to" in run.set else "the same base after masked words on tweets",
        kinship=kinship(here, there),
    )
    tasks = run.set.get("tasks", "glue/sst2").split(",")
    methods = run.set.get("methods", ",".join(METHODS)).split(",")
    for task in tasks:
        data = run.data(task)
        settings = settings_of(run)
        names = {method: f"{task} {method}".replace("/", "-").replace(" ", "-").replace("%", "") for method in methods}
        for title, bank, suffix in (("learned here", here, ""), ("learned there", there, "-anew")):
            run.learn_all(
                bank,
                {
                    f"{task} {method}: {title}": Wanted(f"{name}{suffix}", data, parse(method), settings)
                    for method, name in names.items()
                },
            )
        counts = Counter(str(example.label) for example in data.test)
        run.scores[f"{task}: the most frequent label"] = round(100 * max(counts.values()) / counts.total(), 2)
        for method, name in names.items():
            run.score(f"{task} {method}: moved", moved, here, there, name, data.test)
            if "both" in run.set:
                run.score(f"{task} {method}: moved back", moved, there, here, f"{name}-anew", data.test)
    run.write()


if __name__ == "__main__":
    main()
