"""Output files: regular ones are replaced, special ones are written to, links stay links."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from intarsia import files
from intarsia.errors import IntarsiaError

CONTENT = [b"one\n", memoryview(b"two\n")]


def test_links_stay_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "out", tmp_path / "link"
    link.symlink_to(target)
    for _ in range(2):  # the target is created, then replaced
        files.replace(link, CONTENT)
        assert link.is_symlink() and target.read_bytes() == b"one\ntwo\n"
    assert [path.name for path in target.parent.iterdir()] == ["out"]


def test_fifos_and_links_to_them_are_written_to(tmp_path: Path) -> None:
    fifo, link = tmp_path / "fifo", tmp_path / "link"
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    for path in (fifo, link):
        found: list[bytes] = []
        reader = threading.Thread(target=lambda found=found: found.append(fifo.read_bytes()))
        reader.start()
        files.replace(path, CONTENT)
        reader.join(30)
        assert found == [b"one\ntwo\n"]
    assert stat.S_ISFIFO(fifo.stat().st_mode) and link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "link"]


def test_devices_are_written_to(tmp_path: Path) -> None:
    for device in ("/dev/null", "/dev/full"):
        link = tmp_path / Path(device).name
        link.symlink_to(device)
        for path in (Path(device), link):
            if device == "/dev/full":
                with pytest.raises(IntarsiaError, match="disk is full"):
                    files.replace(path, CONTENT)
            else:
                files.replace(path, CONTENT)
        assert stat.S_ISCHR(os.stat(device).st_mode) and link.is_symlink()


@pytest.mark.parametrize("where", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_standard_output_by_name(tmp_path: Path, where: str) -> None:
    """Through a pipe, and appended to a file that the shell has opened."""
    code = f"from pathlib import Path; from intarsia import files; files.replace(Path({where!r}), [b'one'])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, check=True, capture_output=True, env=environment).stdout == b"one"
    out = tmp_path / "out"
    out.write_bytes(b"zero ")
    with out.open("ab") as file:
        subprocess.run(command, check=True, stdout=file, env=environment)
    assert out.read_bytes() == b"zero one"


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("fifo", "zero", "", "absent"):
        with pytest.raises(OSError):
            files.open_regular(tmp_path / name)
    with pytest.raises(OSError):
        files.read_checked(tmp_path / "fifo")
    (tmp_path / "deep").write_bytes(b"[" * 100_000)
    with pytest.raises(ValueError):
        files.read_checked(tmp_path / "deep")
    (tmp_path / "file").write_bytes(b"x")
    with files.open_regular(tmp_path / "file") as file:
        assert file.read() == b"x"
