"""The data folder that INTARSIA_DATA names, where there is one, is seen as what it is."""

from __future__ import annotations

from pathlib import Path

from intarsia.tasks.reading import read_rows
from intarsia.tasks.suites import SUITES, find, list_data, load, status
from intarsia.tasks.suites.squad import read_squad
from intarsia.tasks.suites.tagging import TaggedSentence, check


def test_the_real_folder(data_folder: Path) -> None:
    states = {one.task.full_name: one for one in list_data(None, data_folder).tasks}
    assert [part.rows for part in states["glue/cola"].parts] == [8551, 1043, 1063]
    for name in ("cola", "sst2", "mrpc", "stsb", "rte", "wnli", "ax"):
        assert states[f"glue/{name}"].state == "whole", name
    qnli = states["glue/qnli"]
    assert qnli.state == "partial" and [part.rows for part in qnli.parts] == [None, 5463, 5463]
    mnli = {part.split: part for part in states["glue/mnli"].parts}
    assert (mnli["train"].rows, mnli["dev"].rows, mnli["train"].sample) == (3000, 7469, True)
    assert "glue_partial" in str(mnli["train"].path)
    assert next(part.rows for part in states["glue/qqp"].parts) == 23496
    assert sum(states[f"extra/{task.name}"].state == "whole" for task in SUITES["extra"].tasks) == 13
    assert states["extra/us_economic_performance"].state == states["extra/news_aggregator"].state == "partial"
    assert states["extra/economic_news_relevance"].state == "missing"
    assert states["ner/conll2003_en"].state == "whole" and states["udpos/en"].state == "partial"
    dev = states["squad/v1.1"].parts[1]
    assert dev.whole and dev.path is not None and len(read_squad(dev.path)) == 10570
    for name in ("ner/conll2003_en", "udpos/en"):
        for path in states[name].paths.values():
            sentences = [TaggedSentence(tuple(row["tokens"]), tuple(row["tags"])) for _, row in read_rows(path)]
            assert sentences
            for sentence in sentences:
                check(sentence, str(path), find(name).labels)


def test_real_tasks_have_the_paper_s_sizes(data_folder: Path) -> None:
    for task in SUITES["extra"].tasks:
        if status(task, data_folder).state != "whole":
            continue
        data = load(task.full_name, data_folder)
        assert set(data.labels) == set(task.labels)
        assert task.paper is not None
        for part, size in zip((data.train, data.dev, data.test), task.paper, strict=True):
            assert abs(len(part) - size) <= 1, task.full_name
