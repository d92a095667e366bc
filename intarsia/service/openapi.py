"""The OpenAPI document, generated from the operations and their types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from intarsia.service import schemas
from intarsia.service.web import JSON, Operation
from intarsia.version import __version__

REFERENCE = "#/components/schemas/{name}"
PART = re.compile(r"{(\w+)}")
DESCRIPTION = """Many text tasks over one frozen encoder, answered in shared passes.

Every failure has the same body. Rows of `/v1/predict` that fail carry an error of their own, and the other rows are
answered."""
RETRY = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}}


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The document of these operations."""
    types = [t for o in operations for t in (o.takes, o.gives) if t is not None]
    unique = [t for i, t in enumerate(types) if t not in types[:i]]
    made, components = msgspec.json.schema_components([*unique, schemas.ErrorBody], ref_template=REFERENCE)
    schema_of = list(zip([*unique, schemas.ErrorBody], made, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Intarsia", "version": __version__, "description": DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(operation: Operation, schema_of: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": operation.handler.__name__,
        "summary": operation.summary,
        "tags": [
            "administrators" if operation.access == "admin" else "health" if operation.access == "open" else "users"
        ],
        "parameters": _parameters(operation),
        "responses": _responses(operation, schema_of),
        "security": [] if operation.access == "open" else [{"key": []}],
    }
    content: dict[str, Any] = {}
    if operation.takes is not None:
        content[JSON] = {"schema": _schema(operation.takes, schema_of)}
    for media in operation.accepts:
        content[media] = {"schema": {"type": "string", "format": "binary"}}
    if content:
        made["requestBody"] = {"required": True, "content": content}
    return made


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    parts = PART.findall(operation.path)
    in_path = [{"name": n, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}} for n in parts]
    in_query = [
        {"name": q.name, "in": "query", "required": q.required, "description": q.help, "schema": q.schema}
        for q in operation.query
    ]
    return in_path + in_query


def _responses(operation: Operation, schema_of: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    schema = {"type": "string"} if operation.gives is None else _schema(operation.gives, schema_of)
    success: dict[str, Any] = {
        "description": HTTPStatus(operation.answer).phrase,
        "content": {operation.media.partition(";")[0]: {"schema": schema}},
    }
    responses = {str(operation.answer): success}
    for status in operation.failures:
        responses[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {JSON: {"schema": _schema(schemas.ErrorBody, schema_of)}},
            **({"headers": RETRY} if status in (429, 503) else {}),
        }
    return responses


def _schema(wanted: Any, schema_of: Sequence[tuple[Any, Any]]) -> Any:
    return next(schema for kind, schema in schema_of if kind == wanted)
