"""Where a base is found."""

from __future__ import annotations

import socket

import pytest

from intarsia.encoder import sources
from intarsia.encoder.encoder import Encoder
from intarsia.errors import EncoderError


def unknown(*_: object) -> None:
    raise socket.gaierror("Name or service not known")


def test_without_a_network_the_hub_is_not_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "getproxies", dict)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert sources.offline()
    with pytest.raises(EncoderError, match="neither a local folder nor could it be had from the hub"):
        Encoder.load("nobody/nothing")
    monkeypatch.setattr(sources, "getproxies", lambda: {"https": "http://proxy"})
    assert not sources.offline()
    monkeypatch.setattr(sources, "getproxies", dict)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [])
    assert not sources.offline()
