"""Official downloads in small, with their real names, headers and oddities."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

WORDS = ("plain", 'a "quoted', "two\u2028parts", "it 's", "naïve — yes")


def lines(path: Path, rows: Iterable[Iterable[object]], end: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join("\t".join(map(str, row)) + end for row in rows).encode())
    return path


def text(number: int) -> str:
    return f"text {number} {WORDS[number % len(WORDS)]}"


def cola(folder: Path, train: int = 8551) -> None:
    for split, count in (("train", train), ("dev", 1043)):  # no header
        lines(folder / f"CoLA/{split}.tsv", (("gj04", n % 2, "" if n % 2 else "*", text(n)) for n in range(count)))
    lines(folder / "CoLA/test.tsv", [("index", "sentence"), *((n, text(n)) for n in range(1063))])


def wnli(folder: Path) -> None:
    header = ("index", "sentence1", "sentence2")
    for split, count in (("train", 635), ("dev", 71)):
        rows = ((n, text(n), text(n + 1), n % 2) for n in range(count))
        lines(folder / f"WNLI/{split}.tsv", [(*header, "label"), *rows], end="\r\n")
    lines(folder / "WNLI/test.tsv", [header, *((n, text(n), text(n + 1)) for n in range(146))])


def stsb(folder: Path) -> None:
    header = ("index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2")
    for split, count in (("train", 5749), ("dev", 1500), ("test", 1379)):
        rows = [(n, "main-captions", "MSRvid", "2012", n, "none", "none", text(n), text(n + 1)) for n in range(count)]
        if split == "test":
            lines(folder / f"STS-B/{split}.tsv", [header, *rows])
        else:
            scored = [(*row, f"{(n % 26) / 5:.3f}") for n, row in enumerate(rows)]
            lines(folder / f"STS-B/{split}.tsv", [(*header, "score"), *scored])


def mrpc(folder: Path) -> None:
    header = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
    for split, count in (("train", 3668), ("dev", 408)):
        rows = ((n % 2, 1000 + n, 2000 + n, text(n), text(n + 1)) for n in range(count))
        path = lines(folder / f"MRPC/{split}.tsv", [header, *rows])
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # begins with a byte order mark
    rows = ((n, 1000 + n, 2000 + n, text(n), text(n + 1)) for n in range(1725))
    lines(folder / "MRPC/test.tsv", [("index", *header[1:]), *rows])


def qqp(folder: Path) -> None:
    header = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")
    rows: list[tuple[object, ...]] = [(n, n, n + 1, text(n), 'Is "it" so?', n % 2) for n in range(40)]
    rows[3] = (3, 4, 5, '"Does ""this"" end?', 'no"', 1)
    rows.insert(7, ("broken over",))
    rows.insert(8, ("two lines", 1))
    lines(folder / "QQP/train.tsv", [header, *rows])
    lines(folder / "QQP/dev.tsv", [header, *rows[:7]])
    lines(folder / "QQP/test.tsv", [("id", "question1", "question2"), *((n, text(n), text(n + 1)) for n in range(9))])


def mnli(folder: Path) -> None:
    names = ("entailment", "neutral", "contradiction")
    parses = ("sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse", "sentence2_parse")
    start = ("index", "promptID", "pairID", "genre", *parses, "sentence1", "sentence2")
    for file, judges, count in (("train", 1, 30), ("dev_matched", 5, 12), ("dev_mismatched", 5, 9)):
        header = (*start, *(f"label{n}" for n in range(1, judges + 1)), "gold_label")
        rows = [
            (n, n, f"{n}e", "fiction", *"( ( (", text(n), text(n + 1), *([names[n % 3]] * (judges + 1)))
            for n in range(count)
        ]
        cells = [(*row[:4], "(", "(", "(", "(", *row[-judges - 3 :]) for row in rows]
        lines(folder / f"MNLI/{file}.tsv", [header, *cells])
    for file, count in (("test_matched", 7), ("test_mismatched", 5)):
        cells = [(n, n, f"{n}e", "fiction", "(", "(", "(", "(", text(n), text(n + 1)) for n in range(count)]
        lines(folder / f"MNLI/{file}.tsv", [start, *cells])


def ax(folder: Path) -> None:
    rows = [("index", "sentence1", "sentence2"), *((n, text(n), text(n + 1)) for n in range(1104))]
    lines(folder / "diagnostic/diagnostic.tsv", rows)


def glue(folder: Path) -> Path:
    for make in (cola, wnli, stsb, mrpc, qqp, mnli, ax):
        make(folder)
    return folder


CONTEXT = "The river Rhine flows through Cologne, and Cologne has a cathedral."


def squad(folder: Path, name: str, version: str = "v1.1") -> Path:
    asked = [
        {"id": "q1", "question": "What flows?", "answers": [{"text": "The river Rhine", "answer_start": 0}]},
        {"id": "q2", "question": "Where?", "answers": [{"text": "Cologne", "answer_start": CONTEXT.index("Cologne")}]},
    ]
    if version == "v2.0":
        asked = [{**one, "is_impossible": False} for one in asked]
        asked.append({"id": "q3", "question": "Who?", "answers": [], "is_impossible": True})
    content = {"version": version, "data": [{"title": "Rhine", "paragraphs": [{"context": CONTEXT, "qas": asked}]}]}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}-{version}.json").write_text(json.dumps(content))
    return folder
