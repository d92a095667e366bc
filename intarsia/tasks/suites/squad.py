"""SQuAD: questions whose answers are spans of a paragraph. v2.0 adds questions without an answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intarsia.errors import DataError
from intarsia.formatting import shown
from intarsia.tasks.content import READ_ERRORS, read_content
from intarsia.tasks.suites.suite import FileLayout, Hub, Suite, SuiteTask


@dataclass(frozen=True)
class SquadQuestion:
    """A question of a SQuAD file."""

    id: str
    title: str
    context: str
    question: str
    answers: tuple[tuple[int, str], ...]  # (first character in the context, text) of each
    impossible: bool = False


def read_squad(path: str | Path) -> list[SquadQuestion]:
    """The questions of a SQuAD file (.json, also .gz or .zst); every answer is checked against its context."""
    path = Path(path)
    return questions(path, read_bytes(path))


def read_bytes(path: Path) -> bytes:
    """The decompressed content of a file."""
    try:
        return read_content(path)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist. `intarsia data list squad` lists the files found.") from None
    except READ_ERRORS as error:
        raise DataError(f"{path} is damaged or unreadable ({error}). Download the file again.") from error


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def questions(path: Path, content: bytes) -> list[SquadQuestion]:
    """The checked questions of a SQuAD file's content; `path` is for error messages."""
    found = []
    try:
        for article in _parsed(content)["data"]:
            for paragraph in article["paragraphs"]:
                for item in paragraph["qas"]:
                    answers = tuple((int(answer["answer_start"]), answer["text"]) for answer in item["answers"])
                    impossible = bool(item.get("is_impossible", False))
                    found.append(
                        SquadQuestion(
                            item["id"], article["title"], paragraph["context"], item["question"], answers, impossible
                        )
                    )
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"{path}: not in SQuAD's format ({reason}). Expected data, paragraphs, qas, answers; or, for other "
            "data, an array of objects, or one object on each line."
        ) from error
    for question in found:
        _check(path, question)
    return found


def _check(path: Path, question: SquadQuestion) -> None:
    """Raise unless the question has a text and its answers fit its context and `impossible`."""
    where = f"{path}, question {question.id}"
    texts = (question.id, question.title, question.context, question.question, *(text for _, text in question.answers))
    if not all(isinstance(text, str) for text in texts):
        raise DataError(f"{where}: id, title, context, question and answers must be texts. Download the file again.")
    if not question.question.strip():
        raise DataError(f"{where}: the question is empty. Expected a text; download the file again.")
    if question.impossible == bool(question.answers):
        problem = (
            "answers, but is_impossible is set" if question.impossible else "no answer, but is_impossible is not set"
        )
        raise DataError(f"{where}: has {problem}. Download the file again, or drop the question.")
    for start, text in question.answers:
        found = question.context[start : start + len(text)] if start >= 0 else ""
        if not text or found != text:
            raise DataError(
                f"{where}: the answer {shown(text)} is not at character {start} of the context; {shown(found)} is "
                f"there. Download the file again, or drop the question."
            )


def from_rows(rows: Iterable[Mapping[str, Any]], version: str) -> bytes:
    """The official JSON for the hub's rows, which have one question each and are ordered by paragraph."""
    articles: list[dict[str, Any]] = []
    for row in rows:
        if not articles or articles[-1]["title"] != row["title"]:
            articles.append({"title": row["title"], "paragraphs": []})
        paragraphs = articles[-1]["paragraphs"]
        if not paragraphs or paragraphs[-1]["context"] != row["context"]:
            paragraphs.append({"context": row["context"], "qas": []})
        given = row["answers"]
        answers = [
            {"text": text, "answer_start": start}
            for text, start in zip(given["text"], given["answer_start"], strict=True)
        ]
        item = {"id": row["id"], "question": row["question"], "answers": answers}
        if version != "1.1":
            item["is_impossible"] = not answers
        paragraphs[-1]["qas"].append(item)
    return json.dumps({"version": version, "data": articles}, ensure_ascii=False).encode()


def _task(name: str, train: int, dev: int, hub: str) -> SuiteTask:
    return SuiteTask(
        suite="squad",
        name=name,
        title=f"Stanford Question Answering Dataset {name}",
        kind="span",
        metrics=("f1", "exact-match"),
        rows={"train": train, "dev": dev},
        source="https://rajpurkar.github.io/SQuAD-explorer/",
        hub=Hub(hub, splits={"train": "train", "dev": "validation"}),
        layout=FileLayout("squad", {split: (f"{split}-{name}.json",) for split in ("train", "dev")}),
        note="Rows are questions. The test part is not public.",
    )


SQUAD = Suite(
    "squad",
    "SQuAD",
    # Rajpurkar et al. 2016, SQuAD: 100,000+ Questions for Machine Comprehension of Text (v2.0: Rajpurkar et al. 2018)
    (
        _task("v1.1", 87599, 10570, "rajpurkar/squad"),
        _task("v2.0", 130319, 11873, "rajpurkar/squad_v2"),
    ),
)
