"""The Unix socket of a bank: where its service listens for other programs of the same user."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
import stat
import tempfile
from pathlib import Path

LONGEST = 100  # bytes of a path; systems allow 104 or 108


def socket_path(bank: str | Path) -> Path:
    """Where the service of a bank listens: in the bank, or in the user's runtime folder if that path is too long."""
    folder = Path(bank).resolve()
    path = folder / "work" / "serve.sock"
    if len(os.fsencode(path)) <= LONGEST:
        return path
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return _runtime_folder() / f"{name}.sock"


def _runtime_folder() -> Path:
    given = os.environ.get("XDG_RUNTIME_DIR")
    return Path(given) / "intarsia" if given else Path(tempfile.gettempdir()) / f"intarsia-{os.getuid()}"


def connect(path: Path, timeout: float | None = None) -> socket.socket | None:
    """A connection to the service, or None if none listens there. A socket of another user is not trusted."""
    try:
        status = path.lstat()
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid not in (os.getuid(), 0):
            return None
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except (OSError, AttributeError):  # AttributeError: a system without Unix sockets
        return None
    try:
        made.settimeout(timeout)
        made.connect(str(path))
    except OSError:
        made.close()
        return None
    return made


class Listener:
    """A bound socket that only this user can open. Its file is removed at the end; a killed service's is replaced."""

    def __init__(self, bank: str | Path) -> None:
        """Raises `OSError` (EADDRINUSE if another service of this bank listens)."""
        from filelock import FileLock, Timeout

        self.path = socket_path(bank)
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.path.parent.name != "work" and self.path.parent.stat().st_uid != os.getuid():
            raise PermissionError(errno.EPERM, "the runtime folder belongs to another user", str(self.path.parent))
        self._lock = FileLock(f"{self.path}.lock", mode=0o600)  # the system releases it when the process ends
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), str(self.path)) from None
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.path.unlink(missing_ok=True)
            before = os.umask(0o177)  # so that the file never has other permissions
            try:
                self.socket.bind(str(self.path))
            finally:
                os.umask(before)
            self.socket.listen(128)
        except BaseException:
            self.socket.close()
            self._lock.release()
            raise

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        self.socket.close()
        Path(f"{self.path}.lock").unlink(missing_ok=True)
        self._lock.release()
