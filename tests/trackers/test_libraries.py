"""Each tracker with its real library and local files; `make test-trackers` installs the libraries."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import intarsia
from intarsia.bank.entry import Entry
from intarsia.encoder.encoder import Encoder
from intarsia.train.grid import Grid
from tests.support.families import opinions, tiny_with_words

QUICK = {"epochs": 2, "learning_rate": 5e-3, "batch_size": 16, "max_length": 16}


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_with_words()


# The libraries warn about their own dependencies.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def learned(tracker: str, encoder: Encoder, folder: Path) -> Entry:
    bank = intarsia.open(folder / "bank", encoder)
    return bank.learn("tone", opinions(), "houlsby-4", callbacks=[tracker], **QUICK)


def test_tensorboard(encoder: Encoder, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed (make test-trackers)")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG, parse_session_start_info_plugin_data

    entry = learned(f"tensorboard:{tmp_path / 'runs'}", encoder, tmp_path)
    (folder,) = (tmp_path / "runs" / "tone").iterdir()
    read = EventAccumulator(str(folder)).Reload()
    history = entry.header.training["history"]
    scores = read.Scalars("validation/accuracy")
    assert [(s.step, pytest.approx(s.value)) for s in scores] == [(e["step"], e["accuracy"]) for e in history]
    assert len(read.Scalars("train/loss")) == entry.header.training["steps"]
    assert read.Scalars("test/accuracy")[-1].value == pytest.approx(entry.header.metrics["test"]["value"])
    content = read.SummaryMetadata(SESSION_START_INFO_TAG).plugin_data.content
    facts = parse_session_start_info_plugin_data(content).hparams
    assert facts["learning_rate"].number_value == 5e-3 and facts["task"].string_value == "tone"
    bank = intarsia.open(tmp_path / "bank", encoder)
    bank.sweep(
        {"mood": opinions()}, Grid(("houlsby-2", "houlsby-4")), epochs=1, callbacks=[f"tensorboard:{tmp_path / 'runs'}"]
    )
    (call,) = (tmp_path / "runs" / "mood").iterdir()
    assert len(list(call.iterdir())) == 2


def test_mlflow(encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    pytest.importorskip("mlflow", reason="mlflow is not installed (make test-trackers)")
    from mlflow import MlflowClient

    entry = learned(f"mlflow:{tmp_path / 'runs.db'}", encoder, tmp_path)
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'runs.db'}")
    experiment = client.get_experiment_by_name("intarsia")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "tone" and run.info.status == "FINISHED"
    assert run.data.params["learning_rate"] == "0.005" and run.data.params["version"] == "1"
    assert run.data.metrics["test/accuracy"] == entry.header.metrics["test"]["value"]
    scores = client.get_metric_history(run.info.run_id, "validation/accuracy")
    history = entry.header.training["history"]
    assert [(s.step, s.value) for s in scores] == [(e["step"], e["accuracy"]) for e in history]


def log_records(content: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format, with the 7 bytes that Weights & Biases puts before it."""
    at, parts = 7, []
    while at + 7 <= len(content):
        if (left := 32768 - at % 32768) < 7:  # a block's end without room for a header
            at += left
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        parts.append(content[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part
            yield b"".join(parts)
            parts = []


def test_wandb(encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("WANDB_MODE", "offline"), ("WANDB_SILENT", "true"), ("WANDB_DIR", str(tmp_path)),
        ("WANDB_ERROR_REPORTING", "false"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    pytest.importorskip("wandb", reason="wandb is not installed (make test-trackers)")
    import wandb
    from wandb.proto import wandb_internal_pb2

    entry = learned("wandb:trials", encoder, tmp_path)
    wandb.teardown()  # its own process writes the file, and has ended then
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    rows: list[dict[str, float]] = []
    summary: dict[str, float] = {}
    for data in log_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            rows.append({(i.key or i.nested_key[0]): json.loads(i.value_json) for i in record.history.item})
        if record.HasField("summary"):
            summary |= {(i.key or i.nested_key[0]): json.loads(i.value_json) for i in record.summary.update}
    history = entry.header.training["history"]
    assert [(r["_step"], r["validation/accuracy"]) for r in rows if "epoch" in r] == [
        (e["step"], e["accuracy"]) for e in history
    ]
    assert summary["test/accuracy"] == entry.header.metrics["test"]["value"]
