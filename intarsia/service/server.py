"""The server: sockets, signals, logs, and the end."""

from __future__ import annotations

import errno
import json
import logging
import signal
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import uvicorn

from intarsia.errors import IntarsiaError
from intarsia.local_socket import Listener
from intarsia.service.app import create_app
from intarsia.service.gate import utc_now
from intarsia.service.options import Keys, Options, check_exposure
from intarsia.service.protocol import limited_protocol
from intarsia.service.state import Service

if TYPE_CHECKING:
    from intarsia.bank.bank import Bank
    from intarsia.serve.limits import Limits
    from intarsia.service.jobs import JobBoard

log = logging.getLogger("intarsia.error")
BACKLOG = 2048


class Server(uvicorn.Server):
    """Tells the application at once that it is to end: then it admits nothing more."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service
        service.on_failure = self._fail

    def _fail(self) -> None:
        self.should_exit = True

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.service.draining.set()
        if self.service.jobs is not None:
            self.service.jobs.wake()  # streams of events end
        super().handle_exit(sig, frame)


def bind(options: Options) -> socket.socket:
    """The socket of the address and port."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise IntarsiaError(f"--host {options.host}: {error.strerror}; expected an address of this machine.") from None
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(address)
        made.listen(BACKLOG)  # clients that come while the server starts wait, and are not refused
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise IntarsiaError(
                f"Port {options.port} of {options.host} is taken by another program. Choose another with --port, or 0 "
                "for a free one."
            ) from None
        raise IntarsiaError(f"Cannot listen on {options.host}, port {options.port}: {error.strerror}.") from None
    return made


def serve(
    bank: Bank,
    options: Options,
    keys: Keys,
    jobs: JobBoard | None,
    announce: Callable[[str, Listener | None], None],
    ready: Callable[[Limits], None],
) -> None:
    """Serve until SIGTERM or SIGINT. `announce` is called with the URL, and the Unix socket if there is one; `ready`
    with the engine's limits, when it runs."""
    check_exposure(options, keys)
    listening = bind(options)
    _log(options)
    service = Service(bank, options, keys, jobs)
    local = _local(bank, options)
    service.on_ready = lambda engine: ready(engine.limits)
    try:
        server = Server(_config(service, options), service)
        host = f"[{options.host}]" if ":" in options.host else options.host
        announce(f"http://{host}:{listening.getsockname()[1]}", local)
        # uvicorn raises the signals that ended it once more, for the handlers from before.
        before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            server.run(sockets=[listening] + ([local.socket] if local is not None else []))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    finally:
        listening.close()
        if local is not None:
            local.close()
    if service.failed is not None:
        raise service.failed
    log.info("The service has ended.")


def _local(bank: Bank, options: Options) -> Listener | None:
    if not options.socket or not hasattr(socket, "AF_UNIX"):
        return None
    try:
        return Listener(bank.store.folder)
    except OSError as error:
        busy = error.errno == errno.EADDRINUSE
        reason = "another service of this bank has it" if busy else error.strerror
        log.warning("no Unix socket: %s", reason)
        return None


def _config(service: Service, options: Options) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(service),
        http=limited_protocol(options.connections, options.header_seconds),
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=options.idle_seconds,  # type: ignore[arg-type]
        timeout_graceful_shutdown=options.drain_seconds,  # type: ignore[arg-type]
    )


class JsonLines(logging.Formatter):
    """Every record as one line of JSON. The lines of requests are JSON already."""

    def format(self, record: logging.LogRecord) -> str:
        if record.name == "intarsia.access":
            return record.getMessage()
        line = {"time": utc_now(), "event": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _log(options: Options) -> None:
    """The service's own log goes to the error stream; the form of its lines is `options.log`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if options.log == "json" else logging.Formatter("%(message)s"))
    for name in ("intarsia.access", "intarsia.error", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING if name == "uvicorn.error" else logging.INFO)
