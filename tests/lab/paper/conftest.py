"""A data folder with tiny tasks under official names, and a tiny encoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from intarsia.tasks.suites import find
from tests.support.families import opinions, save_tiny
from tests.support.token_tasks import as_squad, riddles


def jsonl(folder: Path, name: str, rows: list[dict[str, Any]], *, whole: int | None = None) -> None:
    """`whole`: the manifest says that it has so many rows, as the official task."""
    raw(folder, name, "".join(json.dumps(row) + "\n" for row in rows), whole=whole)


def raw(folder: Path, name: str, content: str, *, whole: int | None = None) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    manifest = folder / "MANIFEST.json"
    known = json.loads(manifest.read_text()) if manifest.is_file() else {}
    if whole is not None:
        known[name] = {"rows": whole, "bytes": path.stat().st_size}
    manifest.write_text(json.dumps(known))


def rows_of(count: int, labels: tuple[str, ...], seed: int, *, pairs: bool = False) -> list[dict[str, Any]]:
    made = []
    for i, row in enumerate(opinions(count, seed)):
        label = labels[i % len(labels)] if len(labels) > 2 else labels[row["label"] == "yes"]
        text = {"text_a": row["text"], "text_b": "it was so"} if pairs else {"text": row["text"]}
        made.append({**text, "label": label})
    return made


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CoLA, RTE and SQuAD 1.1 whole, MNLI and SQuAD 2.0 samples, two further tasks whole."""
    made = tmp_path_factory.mktemp("data")
    for name, seed, pairs in (("cola", 1, False), ("rte", 2, True)):
        task = find(f"glue/{name}")
        for split, count in (("train", 64), ("dev", 24)):
            rows = rows_of(count, task.labels, seed + (split == "dev") * 10, pairs=pairs)
            jsonl(made, f"glue/{name}/{split}.jsonl", rows, whole=task.rows[split])
        hidden = [{**row, "label": None} for row in rows_of(4, task.labels, 5, pairs=pairs)]
        jsonl(made, f"glue/{name}/test.jsonl", hidden, whole=task.rows["test"])
    mnli = find("glue/mnli")
    for split in ("train", "dev", "dev_mismatched"):
        jsonl(made, f"glue_partial/mnli/{split}.jsonl", rows_of(60, mnli.labels, len(split), pairs=True))
    for name in ("sms_spam", "airline"):
        task = find(f"extra/{name}")
        jsonl(made, f"extra/{name}/all.jsonl", rows_of(100, task.labels, 7), whole=task.rows["all"])
    for split, count in (("train", 40), ("dev", 16)):
        asked, some = (as_squad(riddles(count, seed=count, none=none)) for none in (False, True))
        raw(made, f"squad/v1.1/{split}-v1.1.json", json.dumps(asked), whole=find("squad/v1.1").rows[split])
        raw(made, f"squad_partial/v2.0/{split}-v2.0.json", json.dumps(some))
    return made


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny-bert")
