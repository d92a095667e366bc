"""What the documentation says of methods' recipes is what they train by."""

from __future__ import annotations

import re
from pathlib import Path

from intarsia.methods import METHODS, parse
from intarsia.tasks import load_data
from intarsia.train.job import Settings
from tests.support.families import opinions

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"
ROW = re.compile(r"^\| `([^`]+)` \| (\S+) \| (\d+) \| (\d+) \| (yes|no) \|$", re.MULTILINE)


def test_the_page_has_every_methods_recipe() -> None:
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert {type(parse(name)) for name, *_ in rows} == set(METHODS.values())
    for name, rate, epochs, batch, corrected in rows:
        own = Settings.for_method(parse(name))
        predictions = float(rate), int(epochs), int(batch), corrected == "yes"
        assert predictions == (own.learning_rate, own.epochs, own.batch_size, own.adam.bias_correction), name
    assert Settings.for_method(parse("houlsby-64")) == Settings()


def test_a_recipe_has_steps_enough_for_few_texts() -> None:
    method, few = parse("houlsby-64"), load_data(opinions(100))
    assert len(few.train) == 80  # three steps
    assert Settings.for_task(method, few).epochs == 67 and Settings.for_task(method, few, batch_size=8).epochs == 20
    assert Settings.for_task(method, few, epochs=2).epochs == 2
    assert Settings.for_task(method, load_data(opinions(1000))) == Settings()
