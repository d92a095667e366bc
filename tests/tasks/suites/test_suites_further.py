"""The further tasks from the files in which they were given out."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from intarsia.errors import DataError
from intarsia.tasks.reading import read_rows
from intarsia.tasks.suites import fetch, find, load


def table(path: Path, rows: list[dict[str, Any]], encoding: str = "utf-8") -> None:
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def fetched(name: str, folder: Path) -> list[dict[str, Any]]:
    (one,) = fetch(name, folder, folder / "data")
    assert one.folder is not None
    return [row for path in sorted(one.folder.iterdir()) for _, row in read_rows(path)]


def test_crowdflower_text_is_mended_and_the_original_kept(tmp_path: Path) -> None:
    garbled = 'wonâ€™t, "really"\nno'
    rows = [
        {"_unit_id": n, "airline_sentiment": "neutral", "airline_sentiment:confidence": "0.5", "text": text}
        for n, text in enumerate([garbled, "a, b"])
    ]
    table(tmp_path / "Airline-Sentiment-2-w-AA.csv", rows, "mac_roman")
    first, second = fetched("extra/airline", tmp_path)
    assert first == {
        "id": "0", "text": 'won’t, "really"\nno', "text_raw": garbled, "label": "neutral", "confidence": 0.5,
    }  # fmt: skip
    assert "text_raw" not in second


def test_labels_that_the_paper_leaves_out_are_stored_and_not_loaded(tmp_path: Path) -> None:
    names = ["Relevant", "Not Relevant", "Can't Decide", "Relevant"]
    rows = [{"_unit_id": n, "choose_one": names[n % 4], "text": f"tweet {n}"} for n in range(10876)]
    table(tmp_path / "socialmedia-disaster-tweets-DFE.csv", rows)
    assert len(fetched("extra/disasters", tmp_path)) == 10876
    data = load("extra/disasters", tmp_path / "data")
    assert data.labels == ("Not Relevant", "Relevant")
    assert (data.source["left_out"], sum(data.source["rows"].values())) == (2719, 10876 - 2719)


def test_missing_labels_where_the_task_has_some(tmp_path: Path) -> None:
    rows = [{"tweet": f"tweet {n}", "existence": ("Yes", "N", "NA", "")[n % 4]} for n in range(8)]
    table(tmp_path / "1377884570_tweet_global_warming.csv", rows)
    assert [row["label"] for row in fetched("extra/global_warming", tmp_path)[:4]] == ["yes", "no", None, None]
    rows = [{"_unit_id": 1, "category": "", "text": "x"}]
    table(tmp_path / "Corporate-messaging-DFE.csv", rows)
    with pytest.raises(DataError, match=r"line 2: '' is not a label of extra/corporate_messaging"):
        fetched("extra/corporate_messaging", tmp_path)
    table(tmp_path / "Corporate-messaging-DFE.csv", [{"_unit_id": 1, "category": "Action", "text": " "}])
    with pytest.raises(DataError, match="line 2: the text is empty"):
        fetched("extra/corporate_messaging", tmp_path)


def test_long_answers_get_short_names(tmp_path: Path) -> None:
    columns = find("extra/progressive_opinion").layout.columns
    stance = find("extra/progressive_stance").layout.columns
    row = {
        "_unit_id": 1, "target": "Feminism", "tweet": "a tweet",
        columns["label"]: "3.  The tweet is not explicitly expressing opinion.",
        stance["label"]: "AGAINST: We can infer from the tweet …",
    }  # fmt: skip
    table(tmp_path / "progressive-tweet-sentiment.csv", [row])
    assert fetched("extra/progressive_opinion", tmp_path)[0]["label"] == "no_opinion"
    assert fetched("extra/progressive_stance", tmp_path)[0] == {
        "id": "1", "text": "a tweet", "label": "AGAINST", "target": "Feminism",
    }  # fmt: skip


def test_files_without_a_header(tmp_path: Path) -> None:
    (tmp_path / "SMSSpamCollection").write_text('ham\tGo "until" jurong\nspam\tWIN\ta prize\n')
    assert [row["text"] for row in fetched("extra/sms_spam", tmp_path)] == ['Go "until" jurong', "WIN\ta prize"]
    (tmp_path / "newsCorpora.csv").write_text('1\tFed "tapers\thttp://x\tReuters\tb\td1\tx.com\t13\n')
    assert fetched("extra/news_aggregator", tmp_path)[0] == {
        "id": "1", "text": 'Fed "tapers', "label": "business", "publisher": "Reuters",
    }  # fmt: skip


def test_newsgroups_are_folders_and_are_pooled(tmp_path: Path) -> None:
    groups = find("extra/20_newsgroups").labels
    for part, count in (("train", 11314), ("test", 7532)):
        for group in groups:
            (tmp_path / f"20news-bydate-{part}" / group).mkdir(parents=True)
        for n in range(count):
            path = tmp_path / f"20news-bydate-{part}" / groups[n % 20] / str(n)
            path.write_bytes(f"From: x\n\n{part} caf\xe9 {n}".encode("latin-1"))
    (one,) = fetch("extra/20_newsgroups", tmp_path, tmp_path / "data")
    assert one.outcome == "whole"
    data = load("extra/20_newsgroups", tmp_path / "data")
    assert "café" in data.test[0].text
    parts = [len(part) for part in (data.train, data.dev, data.test)]
    assert sum(parts) == 18846 and abs(parts[1] - 1885) < 10  # not 7,532 test texts: the paper put the parts together


def test_complaints_without_a_text_are_left_out_and_any_copy_is_a_sample(tmp_path: Path) -> None:
    rows = [
        {"Complaint ID": n, "Issue": "Fees", "Consumer complaint narrative": "" if n % 2 else "they charged"}
        for n in range(6)
    ]
    table(tmp_path / "complaints.csv", rows)
    (one,) = fetch("extra/customer_complaints", tmp_path, tmp_path / "data")
    assert (one.outcome, one.rows) == ("partial", {"all": 3}) and "official number is unknown" in one.notice
