"""A hub on this machine: the few routes of the real one that uploading and downloading a folder need."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Repo = dict[str, bytes]  # path → content


class Hub(BaseHTTPRequestHandler):
    repos: dict[str, Repo]

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            self.repos.setdefault(name, {})
            return self._json({"url": f"https://huggingface.co/{name}", "id": name})
        if self.path == "/api/validate-yaml":
            front = json.loads(body)["content"].startswith("---\n")
            return self._json({"errors": [] if front else [{"message": "no front matter"}], "warnings": []})
        name, _, action = self.path.removeprefix("/api/models/").partition("/preupload/")
        if action:
            asked_files = json.loads(body)["files"]
            return self._json({"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False,
                                          "oid": None} for f in asked_files]})  # fmt: skip
        name, _, action = self.path.removeprefix("/api/models/").partition("/commit/")
        if not action or name not in self.repos:
            return self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                self.repos[name][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        return self._json(
            {"commitUrl": f"https://huggingface.co/{name}/commit/{self._sha(name)}", "commitOid": self._sha(name)}
        )

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/"):
            name, tree, _ = path.removeprefix("/api/models/").partition("/tree/")
            name = name.partition("/revision/")[0]
            if tree and name in self.repos:
                return self._json([
                    {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for file, content in self.repos[name].items()
                ])  # fmt: skip
            if name not in self.repos:
                return self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
            names = [{"rfilename": file} for file in self.repos[name]]
            return self._json({"id": name, "sha": self._sha(name), "siblings": names, "private": True, "tags": []})
        name, _, rest = path[1:].partition("/resolve/")
        content = self.repos.get(name, {}).get(rest.partition("/")[2])
        if content is None:
            return self._json({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
        etag = hashlib.sha256(content).hexdigest()
        return self._answer(content, 200, {"ETag": f'"{etag}"', "X-Repo-Commit": self._sha(name)})

    def _sha(self, name: str) -> str:
        return hashlib.sha1(repr(sorted(self.repos[name].items())).encode()).hexdigest()

    def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._answer(json.dumps(value).encode(), status, {"Content-Type": "application/json", **(headers or {})})

    def _answer(self, content: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def local_hub() -> Iterator[tuple[str, dict[str, Repo]]]:
    """Run a hub; yield its address and its repositories."""
    handler = type("LocalHub", (Hub,), {"repos": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", handler.repos  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
