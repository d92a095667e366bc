"""What the routes answer, compared with the bank."""

from __future__ import annotations

import base64
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intarsia.bank.bank import Bank
from intarsia.bank.inlay import InlayHeader
from intarsia.encoder.encoder import Encoder
from intarsia.service.catalog import Listed
from tests.support.service import TEXTS, Running, running


def without_place(result: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in result.items() if k not in ("index", "version", "kind")}


def predict(service: Running, *rows: tuple[str, Any], **options: Any) -> dict[str, Any]:
    reply = service.post("/v1/predict", {"requests": [{"task": t, "input": i} for t, i in rows], **options})
    assert reply.status == 200, reply.content
    found: dict[str, Any] = reply.json()
    return found


def test_predictions_of_many_tasks_are_the_banks(service: Running, bank: Bank) -> None:
    rows: list[tuple[str, Any]] = [("opinion", TEXTS[0]), ("rating", TEXTS[0]), ("tags", TEXTS[1]),
                                   ("tags", TEXTS[1].split()), ("pairs", [TEXTS[0], "it was so"])]  # fmt: skip
    found = predict(service, *rows)
    expected = bank.predict([(t, tuple(i) if isinstance(i, list) else i) for t, i in rows])
    for index, (result, prediction) in enumerate(zip(found["results"], expected, strict=True)):
        assert result["index"] == index and result["kind"] in ("label", "score", "tags")
        assert without_place(result) == prediction.to_dict()
    assert [result["version"] for result in found["results"]] == [2, 1, 1, 1, 1]
    assert found["usage"]["rows"] == 5 and found["usage"]["tokens"] > 10
    assert set(found["timing_ms"]) == {"total", "tokenization", "queue", "inference"}


def test_every_task_of_every_text(service: Running, bank: Bank) -> None:
    reply = service.post("/v1/predict", {"tasks": ["opinion", "rating"], "inputs": TEXTS})
    rows = [(task, text) for text in TEXTS for task in ("opinion", "rating")]
    assert [without_place(r) for r in reply.json()["results"]] == [p.to_dict() for p in bank.predict(rows)]


def test_rows_fail_alone(service: Running) -> None:
    found = predict(service, ("opinion", TEXTS[0]), ("nothing", "x"), ("pairs", "only one"), ("rating", TEXTS[1]))
    assert [("error" in r) for r in found["results"]] == [False, True, True, False]
    unknown, single = found["results"][1]["error"], found["results"][2]["error"]
    assert unknown["code"] == "unknown_task" and unknown["type"] == "not_found_error"
    assert single["code"] == "invalid_request" and "pairs" in single["message"]


def test_errors_hold_no_paths(service: Running, bank: Bank) -> None:
    texts = [service.post("/v1/tasks/nothing/predict", {"inputs": ["x"]}).content,
             service.get("/v1/tasks/nothing").content, service.get("/v1/tasks/opinion").content,
             service.get("/v1/info").content, service.get("/v1/tasks/opinion/versions").content]  # fmt: skip
    for text in texts:
        assert str(bank.store.folder).encode() not in text and b"/tmp" not in text and b".safetensors" not in text


def test_an_older_version_answers_on_request(service: Running, bank: Bank) -> None:
    old = service.post("/v1/tasks/opinion/predict", {"inputs": TEXTS, "version": 1}).json()["results"]
    new = service.post("/v1/tasks/opinion/predict", {"inputs": TEXTS}).json()["results"]
    assert {r["version"] for r in old} == {1} and {r["version"] for r in new} == {2}
    assert [without_place(r) for r in new] == [p.to_dict() for p in bank.predict("opinion", TEXTS)]
    assert [r["probabilities"] for r in old] != [r["probabilities"] for r in new]


def test_top_k_keeps_the_best_labels(service: Running) -> None:
    result = predict(service, ("opinion", TEXTS[0]), top_k=1)["results"][0]
    assert list(result["probabilities"]) == [result["label"]]


def test_long_texts_are_cut_or_refused(service: Running) -> None:
    long = " ".join(["good"] * 300)
    cut = predict(service, ("opinion", long))
    assert cut["usage"]["truncated"] == 1
    refused = predict(service, ("opinion", long), ("opinion", "good"), truncate=False)["results"]
    assert refused[0]["error"]["code"] == "invalid_request" and "label" in refused[1]


def test_embeddings_as_openai_gives_them(service: Running, bank: Bank) -> None:
    model = service.get("/v1/info").json()["encoder"]["name"]
    body = {"model": model, "input": TEXTS}
    found = service.post("/v1/embeddings", body).json()
    vectors = np.array([row["embedding"] for row in found["data"]], np.float32)
    assert np.array_equal(vectors, bank.embed(TEXTS))
    packed = service.post("/v1/embeddings", {**body, "encoding_format": "base64", "input": TEXTS[0]}).json()["data"]
    assert np.array_equal(np.frombuffer(base64.b64decode(packed[0]["embedding"]), "<f4"), vectors[0])
    own = service.post("/v1/embeddings", {"model": "opinion", "input": TEXTS}).json()
    assert np.array_equal(np.array([r["embedding"] for r in own["data"]], np.float32), bank.embed(TEXTS, "opinion"))
    assert found["usage"]["total_tokens"] > 0 and own["model"] == "opinion"
    assert service.post("/v1/embeddings", {**body, "dimensions": 7}).status == 422


def test_models_as_openai_lists_them(service: Running) -> None:
    listed = [model["id"] for model in service.get("/v1/models").json()["data"]]
    assert listed[1:] == ["opinion", "pairs", "rating", "tags"]
    assert all(service.get(f"/v1/models/{name}").json()["id"] == name for name in listed)


def test_the_list_of_models_parses_no_descriptions(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand of them would take seconds and a gigabyte."""
    parsed: list[str] = []
    monkeypatch.setattr(InlayHeader, "from_json", lambda text: parsed.append(text))
    Listed.forget()
    assert len(service.get("/v1/models").json()["data"]) == 5 and not parsed
    Listed.forget()


def test_embeddings_take_the_inputs_of_predict(service: Running, bank: Bank) -> None:
    pairs = [[text, "it was so"] for text in TEXTS]
    found = service.post("/v1/embeddings", {"model": "pairs", "input": pairs}).json()["data"]
    vectors = np.array([row["embedding"] for row in found], np.float32)
    assert np.array_equal(vectors, bank.embed([(first, second) for first, second in pairs], "pairs"))
    assert service.post("/v1/embeddings", {"model": "pairs", "input": [[1, 2]]}).status == 422  # tokens


def test_classification_as_vllm_gives_it(service: Running, bank: Bank) -> None:
    found = service.post("/classify", {"model": "opinion", "input": TEXTS}).json()
    expected = bank.predict("opinion", TEXTS)
    assert [row["label"] for row in found["data"]] == [p.label for p in expected]
    assert [row["probs"] for row in found["data"]] == [list((p.probabilities or {}).values()) for p in expected]
    assert {row["num_classes"] for row in found["data"]} == {2} and found["object"] == "list"
    assert service.post("/classify", {"model": "rating", "input": "good"}).status == 422
    assert service.post("/classify", {"model": "nothing", "input": "good"}).status == 404
    cut = {"model": "opinion", "input": "good", "truncate_prompt_tokens": -1}
    assert service.post("/classify", cut).status == 200
    assert service.post("/classify", {**cut, "truncate_prompt_tokens": 3}).status == 422  # not ignored


def test_predictions_as_tei_gives_them(service: Running, bank: Bank) -> None:
    first = bank.predict("opinion", TEXTS[:1])[0].probabilities or {}
    best = max(first, key=first.__getitem__)
    one = service.post("/predict", {"model": "opinion", "inputs": TEXTS[0]}).json()
    assert one[0] == {"score": first[best], "label": best} and len(one) == 2
    many = service.post("/predict", {"model": "opinion", "inputs": [[t] for t in TEXTS]}).json()
    assert len(many) == len(TEXTS) and many[0] == one
    pair = service.post("/predict", {"model": "pairs", "inputs": [TEXTS[0], "it was so"]}).json()
    assert {row["label"] for row in pair} == {"no", "yes"}
    raw = service.post("/predict", {"model": "opinion", "inputs": TEXTS[0], "raw_scores": True}).json()
    assert sum(np.exp([row["score"] for row in raw])) == pytest.approx(1)
    assert service.post("/predict", {"inputs": "good"}).status == 422  # several tasks: which one?
    assert service.post("/predict", {"model": "opinion", "inputs": " ".join(["good"] * 300)}).status == 422
    assert service.post("/predict", {"model": "rating", "inputs": "good"}).json()[0]["label"] == "score"
    left = {"model": "opinion", "inputs": "good", "truncation_direction": "Left"}
    assert service.post("/predict", left).status == 422  # not ignored


def test_the_list_of_tasks_has_pages(service: Running) -> None:
    first = service.get("/v1/tasks?limit=3").json()
    assert [task["task"] for task in first["tasks"]] == ["opinion", "pairs", "rating"] and first["total"] == 4
    rest = service.get(f"/v1/tasks?limit=3&cursor={first['next_cursor']}").json()
    assert [task["task"] for task in rest["tasks"]] == ["tags"] and rest["next_cursor"] is None
    found = service.get("/v1/tasks?prefix=ra").json()
    assert [task["task"] for task in found["tasks"]] == ["rating"] and found["total"] == 1
    assert service.get("/v1/tasks?limit=0").status == 400


def test_a_task_and_its_versions(service: Running, bank: Bank) -> None:
    task = service.get("/v1/tasks/opinion").json()
    header = bank.show("opinion").header
    assert task["labels"] == list(header.labels) and task["method"] == "houlsby-8" and task["version"] == 2
    assert task["test"]["value"] == header.metrics["test"]["value"] and task["digest"] == header.digest
    versions = service.get("/v1/tasks/opinion/versions").json()["versions"]
    assert [(v["version"], v["served"]) for v in versions] == [(1, False), (2, True)]


def test_load_and_unload(service: Running) -> None:
    assert service.post("/v1/tasks/rating/load").json()["resident"] is True
    assert service.post("/v1/tasks/rating/unload").json()["resident"] is False
    assert service.post("/v1/tasks/nothing/load").status == 404


def test_ids_times_and_traces(service: Running) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    body = {"requests": [{"task": "opinion", "input": "good"}]}
    reply = service.ask("POST", "/v1/predict", body, {"X-Request-Id": "mine-1", "traceparent": trace})
    assert reply.headers["x-request-id"] == "mine-1" and reply.json()["id"] == "pred-mine-1"
    times = ("x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time")
    assert all(float(reply.headers[name]) >= 0 for name in times)
    assert re.fullmatch(r"tokenization;dur=[\d.]+, queue;dur=[\d.]+, inference;dur=[\d.]+, total;dur=[\d.]+",
                        reply.headers["server-timing"])  # fmt: skip
    for bad in ("", "a b", "x" * 129, "é"):
        given = service.ask("GET", "/livez", None, {"X-Request-Id": bad.encode("utf-8").decode("latin-1")})
        assert re.fullmatch(r"[0-9a-f]{24}", given.headers["x-request-id"])


def test_metrics_are_prometheus_text_without_tasks(service: Running) -> None:
    predict(service, ("opinion", "good"))
    text = service.get("/metrics").content.decode()
    assert "opinion" not in text
    line = re.compile(r'[a-z_]+(\{([a-z]+="[^"\n]*",?)+\})? [0-9.eE+-]+|# (HELP|TYPE) .+')
    assert all(line.fullmatch(row) for row in text.splitlines())
    values = dict(row.rsplit(" ", 1) for row in text.splitlines() if not row.startswith("#"))
    assert float(values["intarsia_engine_rows_total"]) >= 1
    assert float(values['intarsia_stage_seconds_count{stage="queue"}']) >= 1
    types = [row.split()[2] for row in text.splitlines() if row.startswith("# TYPE")]
    assert len(types) == len(set(types))


def test_info_shows_every_limit(service: Running) -> None:
    from dataclasses import fields

    from intarsia.serve.limits import Limits
    from intarsia.service.options import Options

    info = service.get("/v1/info").json()
    names = {f.name for f in fields(Options)} - {"host", "port", "socket", "log"} | {f.name for f in fields(Limits)}
    assert set(info["limits"]) == names
    assert info["device"] == "cpu" and info["tasks"] == 4 and info["keys"] == {"user": False, "admin": False}


def test_stats_count_what_passes_did(service: Running) -> None:
    before = service.get("/v1/stats").json()
    service.post("/v1/predict", {"tasks": ["opinion", "rating"], "inputs": TEXTS})
    after = service.get("/v1/stats").json()
    assert after["engine"]["rows"] - before["engine"]["rows"] == 2 * len(TEXTS)
    latency = after["latency_ms"]
    assert latency["calls"] > before["latency_ms"]["calls"] and 0 < latency["p50"] <= latency["p95"] <= latency["p99"]
    assert after["in_flight"] == 1


def test_the_pages_load_nothing_from_elsewhere(service: Running) -> None:
    for path in ("/", "/docs"):
        reply = service.get(path)
        text = reply.content.decode()
        assert reply.status == 200 and "default-src 'self'" in reply.headers["content-security-policy"]
        assets = re.findall(r'(?:src|href)="([^"]+)"', text)
        assert assets and all(asset.startswith(("/", "#")) and not asset.startswith("//") for asset in assets)
        for asset in assets:
            assert service.get(asset.partition("#")[0] or path).status == 200, asset
        assert "style=" not in text and "<style" not in text and "onclick" not in text


def test_health(service: Running) -> None:
    assert service.get("/livez").json() == {"status": "alive"}
    assert service.get("/readyz").json() == {"status": "ready"}


def test_a_change_that_the_service_makes_is_listed_at_once(learned: Path, encoder: Encoder, tmp_path: Path) -> None:
    shutil.copytree(learned, tmp_path / "bank")
    with running(Bank(tmp_path / "bank", encoder)) as service:
        for version in (3, 4):  # each listing would be used again for a second
            assert service.post("/v1/tasks/opinion/restore", {"version": 1}).status == 200
            (found,) = service.get("/v1/tasks?prefix=opinion").json()["tasks"]
            assert found["version"] == version
