"""Small tasks whose head reads tokens, for tests."""

from __future__ import annotations

import random

from intarsia.tasks.examples import Question, Sentence
from tests.support.families import WORDS


def colours(count: int = 60, seed: int = 0) -> list[Sentence]:
    """Sentences in which coloured fruits are entities: learnable from one word each."""
    draw = random.Random(seed)
    shades, fruits = ["red", "blue", "green"], ["apple", "pear", "plum"]
    filler = [w for w in WORDS[4:] if w not in (*shades, *fruits)]
    made = []
    for _ in range(count):
        words, tags = [], []
        for _ in range(draw.randint(2, 6)):
            if draw.random() < 0.4:
                words += [draw.choice(shades), draw.choice(fruits)]
                tags += ["B-COL", "I-COL"]
            else:
                words.append(draw.choice(filler))
                tags.append("O")
        made.append(Sentence.of(tuple(words), tuple(tags)))
    made[0] = Sentence.of(("red", "plum", "it"), ("B-COL", "I-COL", "O"))
    return made


def riddles(count: int = 60, seed: int = 0, none: bool = False) -> list[Question]:
    """Questions whose answer is the fruit of a context, with its colour; with `none`, in a third there is no fruit."""
    draw = random.Random(seed)
    shades, fruits = ["red", "blue", "green"], ["apple", "pear", "plum"]
    filler = [w for w in WORDS[4:] if w not in (*shades, *fruits)]
    made = []
    for number in range(count):
        words = [draw.choice(filler) for _ in range(draw.randint(3, 8))]
        answer = f"{draw.choice(shades)} {draw.choice(fruits)}"
        there = not (none and number % 3 == 0)
        at = draw.randrange(len(words) + 1)
        before = " ".join(words[:at])
        context = " ".join([*words[:at], *([answer] if there else []), *words[at:]])
        answers = ((len(before) + (at > 0), answer),) if there else ()
        made.append(Question("is it good", context, None, f"q{number}", answers))
    return made


def topics(count: int = 60, seed: int = 0, longest: int = 9) -> list[str]:
    """Texts that keep to the words of one of four topics: any word tells which the others may be."""
    draw = random.Random(seed)
    words = ["apple pear plum book".split(), "red blue green big".split(), "day night sun rain".split(), WORDS[-4:]]
    return [" ".join(draw.choices(draw.choice(words), k=draw.randint(4, longest))) for _ in range(count)]


def as_squad(questions: list[Question]) -> dict[str, object]:
    """In SQuAD's own format."""
    paragraphs = [
        {
            "context": q.context,
            "qas": [
                {
                    "id": q.id,
                    "question": q.text,
                    "answers": [{"answer_start": at, "text": text} for at, text in q.answers or ()],
                    "is_impossible": not q.answers,
                }
            ],
        }
        for q in questions
    ]
    return {"version": "2.0", "data": [{"title": "riddles", "paragraphs": paragraphs}]}
