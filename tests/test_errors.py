from __future__ import annotations

import pytest

from intarsia.errors import did_you_mean


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("glue/colaa", ["glue/cola", "glue/ax", "glue/sst2"], " Did you mean 'glue/cola'?"),
        ("accurcy", ["accuracy", "auc", "f1"], " Did you mean 'accuracy'?"),
        ("LORA", ["lora", "prefix"], " Did you mean 'lora'?"),
        ("f1-macr", ["f1-macro", "f1-micro"], " Did you mean 'f1-macro' or 'f1-micro'?"),
        ("nothing", ["topic", "tone"], ""),
        (3, [], ""),
    ],
)
def test_only_near_names_are_proposed(name: object, known: list[str], said: str) -> None:
    assert did_you_mean(name, known) == said
