"""The ASGI application: all operations over one bank."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router

from intarsia.errors import IntarsiaError
from intarsia.service import compatible, health, job_routes, pages, predict, preview, tasks
from intarsia.service.asgi import Receive, Scope, Send
from intarsia.service.gate import Gate
from intarsia.service.openapi import document
from intarsia.service.state import Service
from intarsia.service.web import Endpoint, Operation

log = logging.getLogger("intarsia.error")

OPERATIONS: tuple[Operation, ...] = (
    *predict.OPERATIONS, *compatible.OPERATIONS, *health.OPERATIONS, *tasks.OPERATIONS, *job_routes.OPERATIONS,
    *preview.OPERATIONS, *pages.OPERATIONS,
)  # fmt: skip


def create_app(service: Service) -> Gate:
    """The application. It loads the encoder in its lifespan; until then, requests get 503."""
    service.openapi = pages.openapi_bytes(document(OPERATIONS))
    service.docs = pages.docs_page(OPERATIONS)

    @contextlib.asynccontextmanager
    async def lifespan(_: Router) -> AsyncIterator[None]:
        service.begin()
        loading = asyncio.create_task(_load(service))
        try:
            yield
        finally:
            service.draining.set()
            await asyncio.wait([loading])
            await asyncio.to_thread(service.close)

    routes = [Route(_pattern(o), Endpoint(o, service), methods=[o.method]) for o in (*OPERATIONS, *pages.assets())]
    return Gate(Router(routes, redirect_slashes=False, default=_no_route, lifespan=lifespan), service)


def _pattern(operation: Operation) -> str:
    """The path for the router. The name of a hub's encoder has a slash."""
    return operation.path.replace("{model}", "{model:path}")


async def _no_route(scope: Scope, receive: Receive, send: Send) -> None:
    raise HTTPException(404)


async def _load(service: Service) -> None:
    try:
        await asyncio.to_thread(service.load)
    except IntarsiaError as error:
        service.fail(error)
    except Exception as error:
        log.exception("the encoder cannot be loaded")
        service.fail(IntarsiaError(f"The encoder cannot be loaded: {error}"))
