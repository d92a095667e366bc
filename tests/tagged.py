"""Small tasks whose head reads every token, for tests."""

from __future__ import annotations

import random

from families import WORDS

from intarsia.tasks.examples import Sentence


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
