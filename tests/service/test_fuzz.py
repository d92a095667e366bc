"""Requests made from the OpenAPI document, right and slightly wrong: only documented statuses, and never 500."""

from __future__ import annotations

import http.client
import json
import os
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intarsia.bank.bank import Bank
from intarsia.encoder.encoder import Encoder
from intarsia.service.app import OPERATIONS
from intarsia.service.openapi import document
from tests.service.test_statuses import FakeBoard
from tests.support.service import Running, running

DOCUMENT = document(OPERATIONS)
EXAMPLES = int(os.environ.get("INTARSIA_FUZZ", "60"))  # requests to each operation
CHANGING = ("upload", "restore", "create", "cancel")
NAMES = ("opinion", "rating", "tags", "pairs", "nothing")
WILD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def service(learned: Any, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    import shutil

    folder = tmp_path_factory.mktemp("fuzz") / "bank"
    shutil.copytree(learned, folder)
    with running(Bank(folder, encoder), uploads=True, timeout_ms=2000, body_bytes=100_000) as made:
        made.service.jobs = FakeBoard(made.service.bank, made.service.options)
        yield made


def values(schema: Any) -> st.SearchStrategy[Any]:
    """Values of a JSON schema."""
    if "$ref" in schema:
        return values(DOCUMENT["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]])
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return st.one_of([values(part) for part in schema[several]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type")
    if kind == "object":
        required, properties = schema.get("required", []), schema.get("properties", {})
        fixed = {name: values(part) for name, part in properties.items() if name in required}
        optional = {name: values(part) for name, part in properties.items() if name not in required}
        if not properties:
            return st.dictionaries(st.text(max_size=5), WILD, max_size=3)
        return st.fixed_dictionaries(fixed, optional=optional)
    if kind == "array":
        most = min(schema.get("maxItems", 4), 4)
        return st.lists(values(schema.get("items", {})), min_size=schema.get("minItems", 0), max_size=most)
    if kind == "string":
        text = st.text(min_size=schema.get("minLength", 0), max_size=min(schema.get("maxLength", 40), 40))
        return text | st.sampled_from(NAMES)
    if kind == "integer":
        return st.integers(schema.get("minimum"), schema.get("maximum"))
    if kind == "number":
        return st.floats(0, 1)
    return {"boolean": st.booleans(), "null": st.none()}.get(str(kind), WILD)


def wrong(value: Any, draw: Any) -> Any:
    """The value with one part replaced, left out or added."""
    if isinstance(value, dict) and value and draw(st.integers(0, 3)):
        key = draw(st.sampled_from(sorted(value)))
        how = draw(st.integers(0, 3))
        if how == 0:
            return {k: v for k, v in value.items() if k != key}
        if how == 1:
            return {**value, draw(st.text(max_size=6)): draw(WILD)}
        return {**value, key: wrong(value[key], draw)}
    if isinstance(value, list) and value and draw(st.booleans()):
        return [wrong(value[0], draw), *value[1:]]
    return draw(WILD)


@st.composite
def requests(draw: Any, path: str, method: str) -> tuple[str, bytes | None, dict[str, str]]:
    """The target, body and headers of a request."""
    operation = DOCUMENT["paths"][path][method]
    query = {}
    for parameter in operation["parameters"]:
        if parameter["in"] == "path":
            part = draw(st.sampled_from(NAMES) | st.text(min_size=1, max_size=12))
            path = path.replace(
                "{" + parameter["name"] + "}", urllib.parse.quote(part.encode(errors="replace"), safe="")
            )
        elif draw(st.integers(0, 3)) == 0:
            query[parameter["name"]] = str(draw(values(parameter["schema"]) | st.text(max_size=5)))
    headers, body = {}, None
    content = operation.get("requestBody", {}).get("content")
    if content:
        media = draw(st.sampled_from(sorted(content)))
        headers["Content-Type"] = media if draw(st.integers(0, 9)) else draw(st.sampled_from(["text/html", "a/b"]))
        if media == "application/json":
            value = draw(values(content[media]["schema"]))
            if draw(st.booleans()):
                value = wrong(value, draw)
            body = json.dumps(value).encode()
        else:
            body = draw(st.binary(max_size=200))
        if draw(st.integers(0, 9)) == 0:
            body = draw(st.binary(max_size=60))
    if draw(st.integers(0, 9)) == 0:
        headers["X-Request-Id"] = draw(
            st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=20)
        )
    target = path + ("?" + urllib.parse.urlencode(query, errors="replace") if query else "")
    return target, body, headers


@pytest.mark.parametrize(
    ("path", "method"),
    [(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods],
    ids=lambda part: str(part),
)
def test_no_request_makes_the_service_fail(service: Running, path: str, method: str) -> None:
    documented = DOCUMENT["paths"][path][method]["responses"]
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES <= 60, database=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(requests(path, method))
    def check(request: tuple[str, bytes | None, dict[str, str]]) -> None:
        target, body, headers = request
        connection.request(method.upper(), target, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        assert str(answer.status) in documented, (answer.status, content)
        assert answer.status != 500, content
        if answer.status >= 400:
            error = json.loads(content)["error"]
            assert set(error) == {"message", "type", "param", "code", "request_id"}
        elif method == "get" and path == "/v1/jobs/{id}/events":
            raise AssertionError("no such job exists")
        for job in list(service.service.jobs._waiting):
            service.service.jobs.cancel(job.info.id)

    check()
    connection.close()
    assert service.get("/readyz").status == 200
