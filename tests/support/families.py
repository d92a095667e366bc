"""Tiny random models of every family, for tests."""

from __future__ import annotations

from typing import Any

import torch

from intarsia.encoder.encoder import Encoder
from tests.support.tiny_models import FAMILY_NAMES as FAMILY_NAMES
from tests.support.tiny_models import WORDS as WORDS
from tests.support.tiny_models import config as config
from tests.support.tiny_models import plain_model as plain_model
from tests.support.tiny_models import tiny_tokenizer as tiny_tokenizer


def tiny(family: str = "bert", seed: int = 0, **changes: Any) -> Encoder:
    return Encoder(plain_model(family, seed, **changes), None, name=f"tiny-{family}")


COMPILED = ("bert", "roberta", "xlm-roberta", "electra", "mpnet", "distilbert")  # families of compiled passes


def tiny_compiled(family: str = "bert", seed: int = 0) -> Encoder:
    """A tiny base of a shape that compiled passes take: heads of 16 numbers."""
    sizes = {"dim": 64, "hidden_dim": 96} if family == "distilbert" else {"hidden_size": 64, "intermediate_size": 96}
    return tiny(family, seed, **sizes)


def _readable(seed: int) -> Any:
    from transformers import AutoModel

    torch.manual_seed(seed)
    return AutoModel.from_config(config("bert", initializer_range=0.15)).eval()


def tiny_with_words(seed: int = 0) -> Encoder:
    """A tiny BERT that reads words, and that adapters can learn over."""
    return Encoder(_readable(seed), tiny_tokenizer(), name="tiny")


def save_tiny(folder: Any, seed: int = 0) -> str:
    """The same as a `transformers` folder."""
    _readable(seed).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


def opinions(count: int = 60, seed: int = 0) -> list[dict[str, str]]:
    """Texts that say good or bad of something: learnable from one word."""
    import random

    draw = random.Random(seed)
    filler = [w for w in WORDS[4:] if w not in ("good", "great", "fine", "bad", "poor", "awful")]
    rows = []
    for i in range(count):
        word = draw.choice(["good", "great", "fine"] if i % 2 else ["bad", "poor", "awful"])
        words = [draw.choice(filler) for _ in range(draw.randint(1, 5))]
        for _ in range(3):
            words.insert(draw.randrange(len(words) + 1), word)
        rows.append({"text": " ".join(words), "label": "yes" if i % 2 else "no"})
    return rows
