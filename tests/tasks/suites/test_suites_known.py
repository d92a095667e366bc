"""What the suites declare."""

from __future__ import annotations

import pytest

from intarsia.errors import DataError
from intarsia.tasks.suites import SUITES, chosen, find
from intarsia.tasks.suites.mending import mend


def test_every_task_has_one_name_and_what_it_needs() -> None:
    tasks = chosen(None)
    assert len({task.full_name for task in tasks}) == len(tasks) == 10 + 2 + 17 + 1 + 1
    for task in tasks:
        assert find(task.full_name) is task
        assert task.rows.keys() <= task.layout.files.keys(), task.full_name
        assert task.source.startswith("http") and task.metrics
        if task.hub is not None:
            assert task.rows.keys() <= task.hub.splits.keys(), task.full_name
        if task.layout.columns:
            assert {*task.texts, "label"} <= task.layout.columns.keys(), task.full_name


def test_the_paper_s_sizes_are_the_rows_that_are_left() -> None:
    classes = {"20_newsgroups": 20, "emotion": 13, "primary_emotions": 18, "political_message": 9, "disasters": 2}
    for task in SUITES["extra"].tasks:
        total = sum(rows or 0 for rows in task.rows.values())
        if task.paper is not None and not task.drop:
            assert total - sum(task.paper) in (0, 1), task.full_name  # the paper lost one message of sms_spam
        if task.paper is None:
            assert "not checked" in task.note, task.full_name
        assert len(task.labels) == classes.get(task.name, len(task.labels))


def test_names_that_are_not_known_get_a_hint() -> None:
    for name, hint in (("glue/colla", "glue/cola"), ("cola", "glue/cola"), ("super", "Suites: glue, squad")):
        with pytest.raises(DataError, match=hint):
            find(name)
    with pytest.raises(DataError, match="is a suite"):
        find("glue")


def test_labels_as_they_are_written() -> None:
    assert find("glue/cola").label("1", "here") == "acceptable"
    assert find("glue/wnli").label("0", "here") == "not_entailment"
    assert find("extra/progressive_stance").label("NONE OF THE ABOVE: no clue", "here") == "NONE"
    assert find("extra/global_warming").label("N/A", "here") is None
    assert find("extra/disasters").label("Can't Decide", "here") == "Can't Decide"
    with pytest.raises(DataError, match="here: '2' is not a label of glue/cola"):
        find("glue/cola").label("2", "here")
    with pytest.raises(DataError, match="not a label of glue/rte"):
        find("glue/rte").label("0", "here")


@pytest.mark.parametrize(
    ("garbled", "mended"),
    [
        ("wonâ€™t go", "won’t go"),
        ("â€œear wormâ€ù", "“ear worm”"),
        ("Â£5.8bn", "£5.8bn"),
        ("didn'tâ€_but", "didn'tâ€_but"),  # a byte is lost: left as it is
        ("plain, and naïve", "plain, and naïve"),
    ],
)
def test_garbled_characters(garbled: str, mended: str) -> None:
    assert mend(garbled) == mended
