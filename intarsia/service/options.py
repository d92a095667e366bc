"""The options of `intarsia serve`: each is a command line option, an environment variable and a line of `/v1/info`."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field, fields
from typing import Any

from intarsia.errors import IntarsiaError

ENVIRONMENT = "INTARSIA_SERVE_"
API_KEY, ADMIN_KEY = "INTARSIA_API_KEY", "INTARSIA_ADMIN_KEY"
LOG_FORMS = ("json", "text", "none")


def option(default: Any, help: str, *, least: float | None = None) -> Any:
    return field(default=default, metadata={"help": help, "least": least})


@dataclass(frozen=True)
class Options:
    """Where the service listens, and every limit it keeps."""

    host: str = option("127.0.0.1", "The address to listen on. Another address than the loopback needs a key.")
    port: int = option(8080, "The port; 0 chooses a free one.", least=0)
    socket: bool = option(True, "Also listen on a Unix socket in the bank, for `intarsia predict` on this machine.")
    log: str = option("json", f"The form of the request log: {', '.join(LOG_FORMS)}.")

    rows: int = option(1024, "Rows of one request, at most.", least=1)
    body_bytes: int = option(4 << 20, "Bytes of one request, at most.", least=1)
    timeout_ms: int = option(30_000, "Deadline of a request, and the longest that a request may ask for.", least=1)
    connections: int = option(2048, "Open connections, at most.", least=1)
    header_seconds: float = option(10.0, "Time for a client to send the headers of a request.", least=0.01)
    body_seconds: float = option(20.0, "Time for a client to send the body of a request.", least=0.01)
    idle_seconds: float = option(75.0, "Time that an idle connection is kept.", least=0.01)
    drain_seconds: float = option(30.0, "Time to answer what was admitted, after SIGTERM.", least=0)
    stale_seconds: float = option(10.0, "Age of a pass, or of the oldest waiting row, from which on /readyz checks.",
                                  least=0.1)  # fmt: skip

    uploads: bool = option(False, "Allow administrators to upload inlay files.")
    upload_bytes: int = option(512 << 20, "Bytes of an uploaded inlay, at most.", least=1)
    jobs: bool = option(True, "Allow administrators to learn tasks while the service runs.")
    job_queue: int = option(8, "Jobs that wait, at most.", least=1)
    job_bytes: int = option(64 << 20, "Bytes of the data of a job, at most.", least=1)
    job_threads: int = option(1, "Threads of the process that runs a job.", least=1)
    job_nice: int = option(10, "Niceness of the process that runs a job (0 to 19).", least=0)
    job_streams: int = option(64, "Clients that follow the events of jobs at once, at most.", least=1)

    def __post_init__(self) -> None:
        for spec in fields(self):
            least, value = spec.metadata["least"], getattr(self, spec.name)
            if least is not None and not value >= least:
                raise IntarsiaError(f"{flag(spec.name)} {value}: expected at least {least:g}.")
        if self.port > 65535:
            raise IntarsiaError(f"--port {self.port}: expected 0 to 65535.")
        if self.job_nice > 19:
            raise IntarsiaError(f"--job-nice {self.job_nice}: expected 0 to 19.")
        if self.log not in LOG_FORMS:
            raise IntarsiaError(f"--log {self.log!r} is not known; expected one of: {', '.join(LOG_FORMS)}.")

    @property
    def on_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True)
class Keys:
    """The keys that clients show. Without an administrator's key, the other key does not open their routes."""

    user: str | None = None
    admin: str | None = None

    def __post_init__(self) -> None:
        for variable, key in ((API_KEY, self.user), (ADMIN_KEY, self.admin)):
            if key is not None and (
                not key.strip() or key != key.strip() or not key.isascii() or not key.isprintable()
            ):
                raise IntarsiaError(f"{variable} must be printable ASCII without spaces at its ends, and not empty.")

    @property
    def any(self) -> bool:
        return self.user is not None or self.admin is not None


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    return ENVIRONMENT + name.upper()


def check_exposure(options: Options, keys: Keys) -> None:
    """Refuse to listen to other machines without a key."""
    if not options.on_loopback and keys.user is None:
        raise IntarsiaError(
            f"--host {options.host} makes the service reachable from other machines, and no key is set: anyone there "
            f"could use the bank. Set {API_KEY} (and {ADMIN_KEY} for administrators), or listen on 127.0.0.1."
        )
