"""The task by which a request is routed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.cluster.routing_key import routing_key


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("/v1/tasks/spam/predict", {}, "spam"),
        ("/v1/tasks/sp%20am/versions", {}, "sp am"),
        ("/v1/predict", {"requests": [{"task": "a"}, {"task": "b"}, {"task": "b", "input": ["x"]}]}, "b"),
        ("/v1/predict", {"requests": [{"task": "a"}, {"task": "b"}]}, "a"),
        ("/v1/predict", {"tasks": ["t", "u"], "inputs": ["x"]}, "t"),
        ("/classify", {"model": "m", "input": "x"}, "m"),
        ("/v1/embeddings", {"model": "m"}, "m"),
        ("/predict", {"inputs": "x"}, None),
        ("/v1/predict", {"requests": [{"task": 3}]}, None),
        ("/v1/predict", [], None),
        ("/v1/tasks", {"model": "m"}, None),
        ("/readyz", {}, None),
    ],
)
def test_the_task_of_most_rows_is_the_key(path: str, body: object, key: str | None) -> None:
    assert routing_key(path, json.dumps(body).encode()) == key


@given(st.binary(max_size=60))
def test_what_is_no_request_has_no_key(body: bytes) -> None:
    assert routing_key("/v1/predict", body) is None or b'"' in body
