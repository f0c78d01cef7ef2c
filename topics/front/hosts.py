"""Host names and origins: the names that a request may call this server by, and the sites whose
pages may do what browsers ask no preflight for.

    accepted names         when
    loopback names and     TOPICS_ALLOWED_HOSTS is set, or there are no keys and the server
      those of the setting   listens on loopback
    any name               otherwise, and with ``*`` in the setting

In DNS rebinding a foreign name comes to mean 127.0.0.1, and a browser takes this server for the
foreign site. A request without a name (HTTP/1.0) passes: no browser sends one.

A browser asks no preflight for a WebSocket, for a work stream (a GET that leases jobs) and for a
redrive (a POST that needs no body). So these are refused to a foreign ``Origin`` that is not in
TOPICS_CORS_ORIGINS, whether there are keys or not; ``null`` is foreign, ports do not count. The
other routes need no such rule: their bodies must be ``application/json``, which wants a preflight,
and only listed origins are allowed by it (`topics.front.cors`). The other GETs go out, but change
nothing, and the page may not read the answer.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from topics.config import Settings
from topics.errors import Forbidden
from topics.formats.api.request_heads import HeadFields

AUTHORITY = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[^][/:@?#\s]+)(?::[0-9]*)?")
AUTHORITY_MAX_BYTES = 255 + 6  # the longest name of DNS, and a port
SHOWN_MAX = 100  # characters of a name that a message repeats
ORIGIN = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://" + AUTHORITY.pattern)
LOOPBACK = (b"localhost", b"127.0.0.1", b"[::1]")


class HostRule:
    """Checks the hosts in the Host field and in a target in absolute form."""

    def __init__(self, settings: Settings, *, has_keys: bool) -> None:
        allowed = [name.encode("ascii") for name in settings.allowed_hosts]
        is_open_loopback = settings.loopback and not has_keys
        self._is_active = b"*" not in allowed and (bool(allowed) or is_open_loopback)
        self._names = frozenset(allowed)
        self._ends = (b".localhost", *(name for name in allowed if name.startswith(b".")))

    def check(self, authorities: Iterable[bytes]) -> None:
        """Raises `Forbidden` when one of them is not an accepted name."""
        if not self._is_active:
            return
        for authority in authorities:
            host = host_of(authority)
            if host is None or not self._is_accepted(host):
                # What is no name is not repeated: a secret may stand before an @.
                shown = (host or b"")[:SHOWN_MAX].decode("latin-1")
                rule = "is not a name of this server; TOPICS_ALLOWED_HOSTS adds names"
                raise Forbidden(f'the host "{shown}" {rule}')

    def _is_accepted(self, host: bytes) -> bool:
        return host in self._names or is_loopback(host) or host.endswith(self._ends)


def host_of(authority: bytes) -> bytes | None:
    """``name:port`` without the port, in lower case; None when it is not of that form."""
    if len(authority) > AUTHORITY_MAX_BYTES:  # the client is not authenticated yet
        return None
    found = AUTHORITY.fullmatch(authority)
    return found[1].lower() if found else None


def is_loopback(host: bytes) -> bool:
    """Whether the name can mean only the machine of the client."""
    if host == b"localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip(b"[]").decode("ascii")).is_loopback
    except ValueError:
        return False


def has_foreign_origin(fields: HeadFields) -> bool:
    """Whether a browser asks for a page that came neither from this host nor from the machine of
    the browser.

    Origins without a host (``null``) are foreign: any page can have one.
    """
    own = [host for value in fields.values(b"host") if (host := host_of(value))]
    return any(_origin_host(value) not in (*own, *LOOPBACK) for value in fields.values(b"origin"))


def _origin_host(value: bytes) -> bytes | None:
    found = ORIGIN.fullmatch(value)
    return found[1].lower() if found else None
