"""The frozen bases of the estimators: each is loaded once in a process, and copies of an estimator share it."""

from __future__ import annotations

import threading
from pathlib import Path

from intarsia.encoder.encoder import Encoder
from intarsia.encoder.sources import EMBEDDED

_lock = threading.RLock()
_loaded: dict[tuple[str, str, str | None], Encoder] = {}


def base(source: str | Path | Encoder | None, device: str, precision: str | None) -> Encoder:
    """The base that an estimator's parameters name."""
    if isinstance(source, Encoder):
        return source
    key = str(source or EMBEDDED), device, precision
    with _lock:
        if key not in _loaded:
            _loaded[key] = Encoder.load(key[0], device=device, precision=precision)
        return _loaded[key]
