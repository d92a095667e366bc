"""Builds and loads the compiled function of CPU passes (`cpu/`), for the processor of this machine.

The library is compiled once, with the machine's own C compiler, and kept in the user's cache (`INTARSIA_CACHE`, by
default `~/.cache/intarsia`). Its vectors have 16 floats with AVX-512, and 8 with AVX2 and FMA. Without a compiler, and
on older processors, there is no library, and passes run in PyTorch.

`INTARSIA_COMPILE=0` switches it off; `built` only uses a library that was built before. `avx2` and `avx-vnni` build it
for processors with these instructions only, to test them on newer ones.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from intarsia import files
from intarsia.errors import IntarsiaError

SOURCES = Path(__file__).parent / "cpu"
COMPILERS = ("cc", "gcc", "clang")
FLAGS = (
    "-O3", "-std=gnu11", "-fPIC", "-shared", "-pthread", "-fno-math-errno", "-ffp-contract=fast",
)  # fmt: skip
SECONDS = 120.0
SWITCH = "INTARSIA_COMPILE"


class Target(NamedTuple):
    """The processors for which the library is built."""

    flags: tuple[str, ...]
    needed: frozenset[str]  # instructions, as Linux names them


NATIVE = Target(("-march=native",), frozenset({"avx2", "fma"}))  # uses AVX-512 and VNNI where it finds them
OLDER = {  # by the setting of the switch
    "avx2": Target(("-march=x86-64-v3",), NATIVE.needed),
    "avx-vnni": Target(("-march=x86-64-v3", "-mavxvnni"), NATIVE.needed | {"avx_vnni"}),
}

logger = logging.getLogger("intarsia")


@cache
def load() -> ctypes.CDLL | None:
    """Return the library; None if it cannot be had."""
    setting = os.environ.get(SWITCH, "")
    target = OLDER.get(setting, NATIVE)
    if setting == "0" or not target.needed <= set(instructions().split()):
        return None
    flags = FLAGS + target.flags
    with suppress(OSError, IntarsiaError, RuntimeError):  # RuntimeError: there is no home folder
        path = _path(flags)
        if _is_own(path) or (setting != "built" and _build(path, flags) and _is_own(path)):
            return _loaded(path)
    return None


def _is_own(path: Path) -> bool:
    """Return whether the file is there, and nobody but this user could have put it there."""
    if not path.exists() or not hasattr(os, "getuid"):
        return path.exists()
    found = (path.stat(), path.parent.stat())
    return all(status.st_uid in (os.getuid(), 0) and not status.st_mode & 0o022 for status in found)


def _loaded(path: Path) -> ctypes.CDLL:
    found = ctypes.CDLL(str(path))
    found.intarsia_work_bytes.restype = ctypes.c_int64
    return found


def _build(path: Path, flags: Sequence[str]) -> bool:
    """Compile the library; return whether that worked."""
    compiler = _compiler()
    if compiler is None:
        logger.info("no C compiler was found: passes on this CPU run in PyTorch, which takes longer.")
        return False
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(prefix="intarsia-") as folder:
        made = Path(folder) / "pass.so"
        command = [compiler, *flags, "-o", str(made), str(SOURCES / "pass.c")]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            logger.info("%s could not run: %s. Passes on this CPU run in PyTorch, which takes longer.", compiler, error)
            return False
        if done.returncode != 0 or not made.exists():
            logger.info("%s failed: %s. Passes run in PyTorch, which takes longer.", compiler, done.stderr[-500:])
            return False
        files.replace(path, [made.read_bytes()])
        path.chmod(0o600)  # see `_is_own`, whatever the user's umask is
    return True


def _compiler() -> str | None:
    wanted = os.environ.get("CC")
    return next(filter(None, map(shutil.which, (wanted,) if wanted else COMPILERS)), None)


def _path(flags: Sequence[str]) -> Path:
    """Return the library's file, which belongs to its source and to the instructions of this processor."""
    depends = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(SOURCES.iterdir())))
    depends.update(repr((flags, instructions())).encode())
    return files.cache_folder() / "compiled" / f"pass-{depends.hexdigest()[:32]}.so"


def instructions() -> str:
    """Return the instruction sets that the processor announces, where Linux lists them."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return line.partition(":")[2].strip()
    return ""
