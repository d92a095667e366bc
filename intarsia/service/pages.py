"""The page, the documentation of the API, and its OpenAPI document. Nothing is loaded from another host."""

from __future__ import annotations

from html import escape
from pathlib import Path

from intarsia.service.web import JSON, Operation, Reply, Request, encode

FOLDER = Path(__file__).parent / "page"
MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".json": JSON,
}
HTML = MEDIA[".html"]
POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'"
SECURE = [("Content-Security-Policy", POLICY), ("Referrer-Policy", "no-referrer"), ("Cache-Control", "no-cache")]


async def asset(request: Request) -> Reply:
    """A file of the page: the operation's path names it, not the client."""
    name = request.operation.path.removeprefix("/") or "index.html"
    path = FOLDER / name
    return Reply(path.read_bytes(), media=MEDIA[path.suffix], headers=SECURE)


def assets() -> tuple[Operation, ...]:
    """One route for each file of the page's folder."""
    names = sorted(path.name for path in FOLDER.iterdir() if path.suffix in MEDIA)
    return tuple(
        Operation("GET", "/" if name == "index.html" else f"/{name}", asset, "The page", media=MEDIA[Path(name).suffix])
        for name in names
    )


async def openapi(request: Request) -> Reply:
    return Reply(request.service.openapi)


async def docs(request: Request) -> Reply:
    return Reply(request.service.docs, media=HTML, headers=SECURE)


def docs_page(operations: tuple[Operation, ...]) -> bytes:
    """All operations on one page of plain HTML."""
    rows = "".join(
        f"<tr><td><code>{o.method}</code></td><td><code>{escape(o.path)}</code></td><td>{escape(o.summary)}</td>"
        f"<td>{'administrators' if o.access == 'admin' else 'all' if o.access == 'open' else 'key'}</td>"
        f"<td>{o.answer}, {', '.join(map(str, o.failures))}</td></tr>"
        for o in operations
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Intarsia: API</title><link rel="stylesheet" href="/docs.css"></head><body><main>
<h1>API</h1>
<p>Requests and answers are JSON. With a key, send <code>Authorization: Bearer KEY</code>. The schemas are in
<a href="/openapi.json">openapi.json</a>; the <a href="/">page</a> shows the tasks.</p>
<pre>curl -H 'Content-Type: application/json' -d '{{"requests": [{{"task": "spam", "input": "You have won!"}}]}}' \\
  http://127.0.0.1:8080/v1/predict</pre>
<table><thead><tr><th>Method</th><th>Path</th><th>What it does</th><th>Who</th><th>Statuses</th></tr></thead>
<tbody>{rows}</tbody></table></main></body></html>
""".encode()


def openapi_bytes(document: object) -> bytes:
    return encode(document)


OPERATIONS = (
    Operation("GET", "/openapi.json", openapi, "This document", gives=dict),
    Operation("GET", "/docs", docs, "The routes, to read", media=HTML),
)
