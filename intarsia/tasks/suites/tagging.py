"""Tagging tasks: CoNLL-2003 named entities (NER) and Universal Dependencies parts of speech.

In CoNLL's own files (eng.train ...) an entity begins with I-, unless it follows another entity of its type. Here, as in
most copies, every entity begins with B-. The change loses no information. Lines that only begin a document are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from intarsia.errors import DataError
from intarsia.tasks.suites.suite import FileLayout, Hub, Suite, SuiteTask

ENTITIES = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC")
PARTS_OF_SPEECH = (
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ", "SYM",
    "VERB", "X",
)  # fmt: skip


@dataclass(frozen=True)
class TaggedSentence:
    """A sentence with a tag per token."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...]


def check(sentence: TaggedSentence, where: str, labels: tuple[str, ...] | None = None) -> None:
    """Raise if a sentence has an empty token, a missing or unknown tag, or an I- tag that continues no entity."""
    tokens, tags = sentence.tokens, sentence.tags
    if not tokens or len(tokens) != len(tags):
        raise DataError(f"{where}: {len(tokens)} tokens and {len(tags)} tags. Expected a tag for each token.")
    for place, (token, tag) in enumerate(zip(tokens, tags, strict=True), 1):
        if not isinstance(token, str) or not token.strip():
            raise DataError(f"{where}: token {place} is {token!r}. Expected a word.")
        if labels is not None and tag not in labels:
            raise DataError(f"{where}: tag {place} is {tag!r}. Expected one of {', '.join(labels)}.")
        before = tags[place - 2] if place > 1 else "O"
        if isinstance(tag, str) and tag.startswith("I-") and before not in (tag, f"B-{tag[2:]}"):
            raise DataError(
                f"{where}: tag {place} is {tag} after {before}. Expected B-{tag[2:]} at the start of an entity."
            )


def read_conll(path: Path) -> Iterator[TaggedSentence]:
    """Yield the sentences of a CoNLL file: one token per line, its tag last, a blank line after each sentence."""
    for number, lines in _blocks(path):
        fields = [line.split() for line in lines if not line.startswith("-DOCSTART-")]
        if not fields:
            continue
        if any(len(line) < 2 for line in fields):
            raise DataError(f"{path}, sentence at line {number}: a line has no tag. Expected token, columns and tag.")
        sentence = TaggedSentence(tuple(line[0] for line in fields), _with_opening_b(line[-1] for line in fields))
        check(sentence, f"{path}, sentence at line {number}")
        yield sentence


def read_conllu(path: Path) -> Iterator[TaggedSentence]:
    """Yield words with universal parts of speech. Ranges (1-2) and empty nodes (1.1) are skipped."""
    for number, lines in _blocks(path):
        fields = [line.split("\t") for line in lines if not line.startswith("#")]
        if not fields:
            continue
        if any(len(line) != 10 for line in fields):
            raise DataError(f"{path}, sentence at line {number}: expected 10 columns, separated by tabs (CoNLL-U).")
        words = [line for line in fields if line[0].isdigit()]
        sentence = TaggedSentence(tuple(line[1] for line in words), tuple(line[3] for line in words))
        check(sentence, f"{path}, sentence at line {number}", PARTS_OF_SPEECH)
        yield sentence


def _blocks(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield blocks of lines between blank lines, with the number of the first line."""
    block: list[str] = []
    start = 1
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    start = start if block else number
                    block.append(line.rstrip("\r\n"))
                elif block:
                    yield start, block
                    block = []
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not valid UTF-8 ({error.reason}). Save the file as UTF-8.") from error
    if block:
        yield start, block


def _with_opening_b(tags: Iterable[str]) -> tuple[str, ...]:
    """The tags with B- at the first token of every entity."""
    changed, before = [], "O"
    for tag in tags:
        begins = tag.startswith("I-") and before[2:] != tag[2:]
        changed.append(f"B-{tag[2:]}" if begins else tag)
        before = tag
    return tuple(changed)


NER = Suite(
    "ner",
    "Named entities",
    # Tjong Kim Sang & De Meulder 2003, Introduction to the CoNLL-2003 Shared Task
    (
        SuiteTask(
            suite="ner",
            name="conll2003_en",
            title="CoNLL-2003, English",
            kind="tags",
            metrics=("f1-entities",),
            rows={"train": 14041, "dev": 3250, "test": 3453},
            labels=ENTITIES,
            source="https://www.clips.uantwerpen.be/conll2003/ner/",
            # The main branch has a loading script, which `datasets` no longer runs. This branch has the rows.
            hub=Hub(
                "eriktks/conll2003",
                columns={"tokens": "tokens", "tags": "ner_tags"},
                revision="refs/convert/parquet",
            ),
            layout=FileLayout(
                "conll",
                {
                    "train": ("eng.train", "train.txt"),
                    "dev": ("eng.testa", "valid.txt", "dev.txt"),
                    "test": ("eng.testb", "test.txt"),
                },
            ),
        ),
    ),
)

UDPOS = Suite(
    "udpos",
    "Parts of speech, Universal Dependencies",
    # Nivre et al. 2020, Universal Dependencies v2; merged for each language as in Hu et al. 2020, XTREME
    (
        SuiteTask(
            suite="udpos",
            name="en",
            title="English treebanks of UD 2.5, together",
            kind="tags",
            metrics=("accuracy",),
            rows={"train": 21253, "dev": 3974, "test": 5440},
            labels=PARTS_OF_SPEECH,
            source="https://universaldependencies.org (release 2.5: EWT, GUM, LinES, ParTUT, PUD, Pronouns)",
            hub=Hub("google/xtreme", "udpos.English", {"tokens": "tokens", "tags": "pos_tags"}),
            layout=FileLayout("conllu", {split: (f"**/en_*-ud-{split}.conllu",) for split in ("train", "dev", "test")}),
            note="A single treebank counts as a sample.",
        ),
    ),
)
