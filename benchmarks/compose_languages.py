"""Languages: a language inlay each, a topic task learned in English, its language swapped for Russian.

    python benchmarks/compose_languages.py --encoder FOLDER --bank /tmp/languages \\
        --out results/compose-languages.json --seeds 3 --set english=wiki.txt russian=russian.txt sib200=FOLDER

`language_texts.py` writes the two text files.

Three forms: no language inlay; MAD-X (an adapter with an invertible adapter below the task's adapter); LT-SFT (sparse
differences that are added).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from compose_common import Experiment, evaluate

from intarsia import LotteryTicket, Pfeiffer, Stack
from intarsia.methods import Method
from intarsia.tasks import load_data

LANGUAGES = {"english": "eng_Latn", "russian": "rus_Cyrl"}
TASK = Pfeiffer(reduction=16)


def main() -> None:
    run = Experiment("zero-shot transfer of a topic task from English to Russian")
    try:
        measure(run)
    finally:
        run.write(**summary(run.scores))


def summary(scores: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return the mean of each row over the seeds that it has so far, and their number."""
    found: dict[str, list[float]] = {}
    for key, score in scores.items():
        title, _, seed = key.rpartition(", ")
        if seed.isdigit():
            found.setdefault(title, []).append(score)
    return {
        "means": {title: round(fmean(values), 2) for title, values in found.items()},
        "seeds of each row": {title: len(values) for title, values in found.items()},
    }


def measure(run: Experiment) -> None:
    bank = run.open()
    epochs, count = int(run.set.get("epochs", 3)), int(run.set.get("texts", 4000))
    task_epochs = int(run.set.get("task_epochs", 10))
    topics = {language: load_data(Path(run.set["sib200"]) / folder) for language, folder in LANGUAGES.items()}
    forms: dict[str, Method] = {
        "madx": Pfeiffer(reduction=2, invertible=True),
        "plain": Pfeiffer(reduction=2),
        "sparse": LotteryTicket(0.05),
    }
    forms = {form: method for form, method in forms.items() if form in run.set.get("forms", ",".join(forms)).split(",")}
    for language in LANGUAGES:
        texts = [line for line in Path(run.set[language]).read_text().splitlines() if len(line.split()) > 4]
        texts = [texts[i * len(texts) // count] for i in range(min(count, len(texts)))]
        rows = [{"text": text} for text in texts]
        data = load_data({"train": rows[:-200], "dev": rows[-200:]}, kind="words")
        for form, method in forms.items():
            rate = 5e-5 if form == "sparse" else 5e-4
            run.score(
                f"likelihood of hidden words, {language}, {form}",
                run.learn,
                bank,
                f"{language}-{form}",
                data,
                method,
                epochs=epochs,
                learning_rate=rate,
            )
    tasks: dict[str, tuple[Method, str | None]] = {"no language": (TASK, None)}
    if "madx" in forms:
        tasks["MAD-X"] = (Stack("english-madx", TASK), "madx")
        tasks["MAD-X, paper's residual"] = (Stack("english-madx", TASK, residual="paper"), "madx")
    if "plain" in forms:
        tasks["MAD-X without invertible adapters"] = (Stack("english-plain", TASK), "plain")
    if "sparse" in forms:
        tasks["LT-SFT added"] = (Stack("english-sparse", LotteryTicket(0.05)), "sparse")
        tasks["LT-SFT alone"] = (LotteryTicket(0.05), None)
    run.write(texts=count, language_epochs=epochs, task_epochs=task_epochs)
    for seed in range(run.options.seeds):
        for title, (method, below) in tasks.items():
            name = f"{title} {seed}".replace(" ", "-").replace(",", "").replace("'", "").lower()
            sparse = title.startswith("LT-SFT")
            settings = {"epochs": task_epochs, "learning_rate": 5e-5 if sparse else 5e-4, "seed": seed}
            run.score(f"{title}, english, {seed}", run.learn, bank, name, topics["english"], method, **settings)
            run.score(f"{title}, russian, {seed}", evaluate, bank, name, topics["russian"])
            if below is not None:
                swap = {f"english-{below}": f"russian-{below}"}
                key = f"{title}, russian with the language swapped, {seed}"
                run.score(key, evaluate, bank, name, topics["russian"], swap=swap)
        run.score(
            f"learned in Russian, russian, {seed}",
            run.learn,
            bank,
            f"russian-topics-{seed}",
            topics["russian"],
            TASK,
            epochs=task_epochs,
            seed=seed,
        )


if __name__ == "__main__":
    main()
