"""Who may ask: keys, the Host header, and the origin of pages.

Every route but health needs the key, if one is set. Browsers show it as the password of the basic scheme, so that the
page works without a sign-in of its own. The Unix socket needs no key: only the user of the service can open it.

A service without a key of users listens on the loopback only. There, a foreign page in the user's browser must not
reach it: requests with another `Origin` are refused. So is a `Host` that is a name other than localhost (DNS
rebinding), unless the request shows the administrator's key.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
from functools import lru_cache

from intarsia.service.asgi import Scope, header
from intarsia.service.errors import Failure
from intarsia.service.options import ADMIN_KEY, Keys

OPEN_PATHS = ("/livez", "/readyz")
CHALLENGE = (("WWW-Authenticate", 'Bearer realm="intarsia"'), ("WWW-Authenticate", 'Basic realm="intarsia"'))


class Door:
    """Checks requests before they reach a handler."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self._user = _bytes(keys.user)
        self._admin = _bytes(keys.admin)

    def check(self, scope: Scope) -> None:
        """Raise unless the client may use the routes of users."""
        if _local(scope):
            return
        shown = _shown(scope)
        self._check_source(scope, known=shown is not None and _equal(shown, self._admin))
        if self._user is None or scope["path"] in OPEN_PATHS:
            return
        if shown is None:
            raise Failure(
                401, "This service needs a key: send the header Authorization: Bearer KEY.", headers=CHALLENGE
            )
        if not (_equal(shown, self._user) | _equal(shown, self._admin)):
            raise Failure(401, "The key is not valid.", headers=CHALLENGE)

    def check_admin(self, scope: Scope) -> None:
        """Raise unless the client may use the routes of administrators."""
        if _local(scope) or not self.keys.any:
            return
        if self._admin is None:
            raise Failure(403, f"This route is for administrators, and the service has no {ADMIN_KEY}.")
        shown = _shown(scope)
        if shown is None:
            raise Failure(401, "This route needs the administrator's key.", headers=CHALLENGE)
        if not _equal(shown, self._admin):
            raise Failure(403, "This route needs the administrator's key; the key that was sent is another.")

    def _check_source(self, scope: Scope, *, known: bool) -> None:
        host = header(scope, b"host") or ""
        origin = header(scope, b"origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise Failure(403, "Requests from pages of other origins are refused.", code="foreign_origin")
        if self._user is None and not known and not _names_this_machine(host):
            raise Failure(
                403,
                "Without a key of users, the service answers under localhost or an address, not under another name.",
                code="foreign_host",
            )  # fmt: skip


def _local(scope: Scope) -> bool:
    """Whether the request came over the Unix socket."""
    server = scope.get("server")
    return server is not None and server[1] is None


def _bytes(key: str | None) -> bytes | None:
    return None if key is None else key.encode()


def _equal(shown: bytes, key: bytes | None) -> bool:
    """Compare in constant time; without a key nothing is equal."""
    return hmac.compare_digest(shown, key if key is not None else b"\0" * 32) and key is not None


def _shown(scope: Scope) -> bytes | None:
    """The key of the Authorization header: a bearer token, or the password of the basic scheme."""
    kind, _, value = (header(scope, b"authorization") or "").partition(" ")
    value = value.strip()
    if kind.lower() == "bearer":
        return value.encode("latin-1")
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return None


@lru_cache(64)
def _names_this_machine(host: str) -> bool:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name.lower() in ("localhost", ""):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
