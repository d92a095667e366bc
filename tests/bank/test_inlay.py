"""The inlay file: bit for bit or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from intarsia.bank.inlay import (
    FIELDS,
    InlayHeader,
    check_content,
    check_file,
    encode,
    read_header,
    read_inlay,
)
from intarsia.errors import BankError
from tests.support.inlays import assert_same_tensors, flip, make_inlay, write_inlay

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.float64, torch.uint8, torch.int32]
SPECIAL = [math.nan, math.inf, -math.inf, -0.0, 1e-45, 3.0]

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any bits at all, of any type: every NaN has its own pattern and keeps it."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    size = math.prod(shape) * dtype.itemsize
    raw = draw(st.binary(min_size=size, max_size=size))
    return torch.tensor(list(raw), dtype=torch.uint8).view(dtype).reshape(shape)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "one.safetensors"
    write_inlay(make_inlay(), path)
    return path


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.text(max_size=8).map("method.{}".format) | st.just("head.w"), tensors(), max_size=4),
    st.dictionaries(st.text(), plain, max_size=3),
    st.lists(st.text(), max_size=3),
)
def test_round_trip(values: dict[str, torch.Tensor], metrics: dict[str, Any], labels: list[str]) -> None:
    inlay = make_inlay(tensors=values, metrics=metrics, labels=tuple(labels))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        path.write_bytes(b"".join(encode(inlay)))  # as `write_inlay`, without waiting for the disk
        again, header = read_inlay(path), read_header(path)
        assert_same_tensors(inlay.tensors, again.tensors)
        assert_same_tensors(inlay.tensors, load_file(path))
        for name in FIELDS:
            assert getattr(again, name) == getattr(header, name) == getattr(inlay, name)
        assert InlayHeader.from_json(header.to_json()) == header == check_file(path)
        assert header.bytes == path.stat().st_size
        assert {name: spec.shape for name, spec in header.layout.items()} == {
            k: tuple(v.shape) for k, v in values.items()
        }
        assert path.read_bytes() == b"".join(encode(again)), "the same content always gives the same bytes"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_special_values_keep_their_bits(tmp_path: Path, dtype: torch.dtype) -> None:
    inlay = make_inlay(
        tensors={"method.w": torch.tensor(SPECIAL, dtype=dtype), "head.none": torch.zeros(0, 4, dtype=dtype)}
    )
    write_inlay(inlay, tmp_path / "x")
    assert_same_tensors(inlay.tensors, read_inlay(tmp_path / "x").tensors)


def test_views_gradients_and_scalars_are_stored_by_value(tmp_path: Path) -> None:
    weight = torch.arange(12.0).reshape(3, 4).requires_grad_()
    inlay = make_inlay(tensors={"method.t": weight.T, "method.part": weight[1:, ::2], "head.scale": torch.tensor(2.5)})
    write_inlay(inlay, tmp_path / "x")
    assert_same_tensors(
        {name: value.detach() for name, value in inlay.tensors.items()}, read_inlay(tmp_path / "x").tensors
    )


def test_undefined_metrics_become_null_and_scalars_plain(tmp_path: Path) -> None:
    metrics = {"mcc": math.nan, "loss": math.inf, "f1": np.float32(0.5), "n": np.int64(3), "auc": torch.tensor(0.25)}
    write_inlay(make_inlay(metrics=metrics), tmp_path / "x")
    assert read_header(tmp_path / "x").metrics == {"mcc": None, "loss": None, "f1": 0.5, "n": 3, "auc": 0.25}


def test_digest_follows_the_documented_rule(path: Path) -> None:
    """As a reader in another language would do it, from the bytes alone."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    entries = json.loads(content[8 : 8 + length])
    metadata = entries.pop("__metadata__")
    digest = hashlib.sha256(metadata["intarsia"].encode() + b"\n")
    for name in sorted(entries):
        entry = entries[name]
        start, end = entry["data_offsets"]
        shape = ",".join(map(str, entry["shape"]))
        digest.update(f'["{name}","{entry["dtype"]}",[{shape}]]\n'.encode())
        digest.update(content[8 + length + start : 8 + length + end])
    assert metadata["digest"] == digest.hexdigest() == read_header(path).digest
    assert metadata["format"] == "intarsia-inlay/1"


@pytest.mark.parametrize("mask", [0x01, 0x20, 0x80])
def test_every_flipped_byte_is_detected(path: Path, mask: int) -> None:
    """Header length, JSON, metadata, digest, padding, data: there is no byte that may change."""
    content = path.read_bytes()
    for position in range(len(content)):
        altered = bytearray(content)
        altered[position] ^= mask
        with pytest.raises(BankError, match=str(path)):
            check_content(bytes(altered), path)


@pytest.mark.parametrize("position", [0, 5, 8, 30, 200, -30, -1])
def test_flipped_bytes_are_detected_in_files(path: Path, position: int) -> None:
    flip(path, position)
    for read in (read_inlay, check_file):
        with pytest.raises(BankError, match=str(path)):
            read(path)


def test_every_truncation_and_addition_is_detected(path: Path) -> None:
    content = path.read_bytes()
    for length in range(len(content)):
        with pytest.raises(BankError):
            check_content(content[:length], path)
    for length in range(0, len(content), 61):
        path.write_bytes(content[:length])
        for read in (read_header, read_inlay):
            with pytest.raises(BankError):
                read(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(BankError, match="bytes, but should have"):
        read_header(path)


def test_altered_header_with_valid_json_is_detected(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content.replace(b"bottleneck", b"bottlenecK"))
    with pytest.raises(BankError, match="digest"):
        read_inlay(path)
    with pytest.raises(BankError, match="digest"):
        check_file(path)


def test_newer_format_is_refused_and_says_what_to_do(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"intarsia-inlay/1", b"intarsia-inlay/2"))
    for read in (read_header, read_inlay):
        with pytest.raises(BankError, match=r"intarsia-inlay/2.*reads intarsia-inlay/1.*Update"):
            read(path)


class Bomb:
    """Unpickling this makes a file."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


def test_pickles_are_refused_and_never_opened(tmp_path: Path) -> None:
    trace, path = tmp_path / "trace", tmp_path / "x.safetensors"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps(Bomb(trace), protocol))
        with pytest.raises(BankError, match="pickle" if protocol >= 2 else "not an inlay"):
            read_inlay(path)
    torch.save({"bomb": Bomb(trace)}, path)
    with pytest.raises(BankError, match=r"pickle.*does not open pickles.*expected"):
        read_header(path)
    assert not trace.exists()


def test_other_files_are_refused(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(1)}, tmp_path / "plain.safetensors")
    with pytest.raises(BankError, match="is not an inlay"):
        read_inlay(tmp_path / "plain.safetensors")
    for content in (b"", b"{}", b"\x02" + b"\0" * 7 + b"[]", b"\x04" + b"\0" * 7 + b"null", b"\xff" * 64):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(BankError):
            read_header(tmp_path / "x")
    with pytest.raises(BankError, match="cannot be read"):
        read_inlay(tmp_path / "missing")
    with pytest.raises(BankError, match="cannot be read"):
        read_inlay(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensors": {"weight": torch.zeros(1)}}, r'"method\."'),
        ({"tensors": {"__metadata__": torch.zeros(1)}}, r'"method\."'),
        ({"tensors": {"method.c": torch.zeros(1, dtype=torch.complex64)}}, "complex64"),
        ({"training": {"path": Path("x")}}, r"training\.path holds a .*Path"),
        ({"labels": ("half \ud800",)}, "Unicode"),
        ({"labels": (1, 2)}, r"Expected str, got int - at \$\.labels\[0\]"),
        ({"kind": None}, r"Expected str, got null - at \$\.kind"),
    ],
)
def test_what_cannot_be_read_again_is_not_written(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BankError, match=message):
        write_inlay(make_inlay(**changes), tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failing", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_failed_write_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, error: BaseException
) -> None:
    before = path.read_bytes()

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(os, failing, fail)
    newer = make_inlay(value=2.0)
    needed = sum(map(len, encode(newer)))
    with pytest.raises((BankError, KeyboardInterrupt)) as caught:
        write_inlay(newer, path)
    if isinstance(error, OSError):
        assert f"{needed} bytes" in str(caught.value) and "was not changed" in str(caught.value)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_killed_before_the_file_has_its_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill runs no clean-up: the temporary file stays behind, hidden, and the old file is whole."""
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(SystemExit))
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    with pytest.raises(SystemExit):
        write_inlay(make_inlay(value=2.0), path)
    assert_same_tensors(read_inlay(path).tensors, make_inlay().tensors)
    assert all(other.name.startswith(".") for other in path.parent.iterdir() if other != path)


def test_importing_and_reading_headers_needs_no_torch(path: Path) -> None:
    code = (
        "import sys; from intarsia.bank import inlay, store, accounting; "
        f"assert inlay.read_header({str(path)!r}).name == 'sentiment'; assert 'torch' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
