"""Which task a request is for: requests of one task go to one replica. Needs no Ray."""

from __future__ import annotations

import re
from collections import Counter
from urllib.parse import unquote

import msgspec

OF_TASK = re.compile(r"/v1/tasks/([^/]+)")
WITH_BODY = ("/v1/predict", "/v1/embeddings", "/classify", "/predict")


class _Row(msgspec.Struct):
    task: str | None = None


class _Body(msgspec.Struct):
    """The fields of a request that name its tasks; the replica checks all others."""

    requests: list[_Row] | None = None
    tasks: list[str] | None = None
    model: str | None = None


_decode = msgspec.json.Decoder(_Body).decode


def routing_key(path: str, body: bytes) -> str | None:
    """Return the task of most rows, the first among equals; None: any replica may answer."""
    if (found := OF_TASK.match(path)) is not None:
        return unquote(found[1])
    if path not in WITH_BODY:
        return None
    try:
        content = _decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError):
        return None
    named = Counter(row.task for row in content.requests or () if row.task is not None) or Counter(content.tasks or ())
    return named.most_common(1)[0][0] if named else content.model
