"""The process of a job, as the service sees it: started with few threads and a low priority, read line by line."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from intarsia.service.options import Options

PATIENCE = 10.0  # seconds that a process has to end by itself
LOG_SHOWN = 400  # characters of the end of its error stream


@dataclass(frozen=True)
class Worker:
    """What the process needs to open the bank."""

    bank: str
    encoder: str | None
    device: str
    precision: str | None


class JobProcess:
    """`python -m intarsia.service.job_worker`: it ends when its standard input closes, and so with the service."""

    def __init__(self, worker: Worker, folder: Path, options: Options) -> None:
        self.folder = folder
        threads = str(options.job_threads)
        limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), threads)
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
        keys = {"INTARSIA_API_KEY", "INTARSIA_ADMIN_KEY"}  # training needs no keys
        environment = {k: v for k, v in os.environ.items() if k not in keys}
        with (folder / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "intarsia.service.job_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**environment, **limits, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
                start_new_session=True,  # Ctrl-C reaches the service only, which ends the process itself
            )
        given = {**asdict(worker), "folder": str(folder), "threads": options.job_threads, "nice": options.job_nice}
        self._say(msgspec.json.encode(given))

    def _say(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has just ended
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    def events(self) -> Iterator[dict[str, Any]]:
        """What the process reports, until it ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(msgspec.DecodeError):
                event = msgspec.json.decode(line)
                if isinstance(event, dict) and "event" in event:
                    yield event

    def cancel(self) -> None:
        """Ask the process to remove its checkpoint and end; kill it if it does not."""
        self._say(b"cancel")
        self._kill_later()

    def stop(self) -> None:
        """End the process; its checkpoint stays."""
        with contextlib.suppress(OSError):
            self._process.terminate()
        self._kill_later()

    def _kill_later(self) -> None:
        timer = threading.Timer(PATIENCE, self._process.kill)
        timer.daemon = True
        timer.start()

    def wait(self) -> int:
        code = self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        return code

    def death(self, code: int) -> str:
        """Why a process ended that reported nothing."""
        if code < 0:
            name = signal.Signals(-code).name
            hint = " The memory may be full." if -code == signal.SIGKILL else ""
            return f"The process of the job was ended by {name}.{hint}"
        with contextlib.suppress(OSError):
            last = (self.folder / "log.txt").read_text(errors="replace").strip().splitlines()[-1:]
            if last:
                return f"The process of the job failed: {last[0][-LOG_SHOWN:]}"
        return f"The process of the job ended with code {code}."
