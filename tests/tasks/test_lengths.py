"""How many texts a maximum length cuts, and which length is proposed."""

from __future__ import annotations

import pytest

from intarsia.encoder.encoder import Encoder
from intarsia.tasks import load_data
from intarsia.tasks.lengths import lengths_of_texts, propose, truncation
from tests.support.families import tiny_with_words


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_with_words()


def texts_of(*words: int) -> list[tuple[str, str]]:
    """A text for each number of words beside the last."""
    return [("good " * count + "film", "yes" if i % 2 else "no") for i, count in enumerate(words)]


def test_cut_texts_are_counted(encoder: Encoder) -> None:
    data = load_data({"train": texts_of(*[4] * 10, *[20] * 10), "test": texts_of(4, 5), "dev": texts_of(6, 7)})
    lengths = lengths_of_texts(data.train, encoder)
    assert sorted(set(lengths.tolist())) == [7, 23], "words and special tokens"
    found = truncation(data, encoder, 10)
    assert found is not None and (found.cut, found.of, found.mean_tokens, found.longest) == (10, 20, 23.0, 23)
    assert str(found) == "10 of 20 texts are cut to 10 tokens (23 in the mean)"
    assert truncation(data, encoder, 23) is None


def test_a_length_is_proposed_by_quantile_limit_and_cost(encoder: Encoder) -> None:
    short = load_data({"train": texts_of(*[4] * 20), "test": texts_of(4, 5), "dev": texts_of(6, 7)})
    assert propose(short, encoder, 16).tokens == 8
    few_long = load_data({"train": texts_of(*[4] * 199, 27), "test": texts_of(4, 5), "dev": texts_of(6, 7)})
    assert propose(few_long, encoder, 16).tokens >= 30, "one long text costs little"
    long = load_data({"train": texts_of(*[26] * 40), "test": texts_of(4, 5), "dev": texts_of(6, 7)})
    assert (propose(long, encoder, 4).tokens, propose(long, encoder, 8).whole) == (4, 1.0), (
        "seven times the cost is too much"
    )
    beyond = load_data({"train": texts_of(*[500] * 40), "test": texts_of(4, 5), "dev": texts_of(6, 7)})
    proposed = propose(beyond, encoder, 32)
    assert proposed.tokens <= encoder.max_length and proposed.whole == 0.0
