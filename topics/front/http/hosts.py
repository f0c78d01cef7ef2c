"""Host names: those that a request may call this server by, so that DNS rebinding reaches nothing.

    names that are taken     when
    loopback names, and      TOPICS_ALLOWED_HOSTS is set, or there are no keys and the server
      those of the setting     listens on loopback
    any name                 otherwise, and with ``*`` in the setting

In DNS rebinding a name of somebody else's comes to mean 127.0.0.1, and a browser takes this server
for that somebody's. A request without a name (HTTP/1.0) passes: no browser sends one.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from topics.config import Settings
from topics.errors import Forbidden

AUTHORITY = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[^][/:@?#\s]+)(?::[0-9]*)?")
AUTHORITY_MAX_BYTES = 255 + 6  # the longest name of DNS, and a port
SHOWN_MAX = 100  # characters of a name that a message repeats


class HostRule:
    """Checks the hosts that a request names in its Host field and in a target that is a whole URL."""

    def __init__(self, settings: Settings, *, has_keys: bool) -> None:
        allowed = [name.encode("ascii") for name in settings.allowed_hosts]
        is_open_loopback = settings.loopback and not has_keys
        self._holds = b"*" not in allowed and (bool(allowed) or is_open_loopback)
        self._names = frozenset(allowed)
        self._ends = (b".localhost", *(name for name in allowed if name.startswith(b".")))

    def check(self, authorities: Iterable[bytes]) -> None:
        """Raises `Forbidden` when one of them is a name that this server does not go by."""
        if not self._holds:
            return
        for authority in authorities:
            host = host_of(authority)
            if host is None or not self._goes_by(host):
                shown = authority[:SHOWN_MAX].decode("latin-1")
                rule = "is not a name of this server; TOPICS_ALLOWED_HOSTS adds names"
                raise Forbidden(f'the host "{shown}" {rule}')

    def _goes_by(self, host: bytes) -> bool:
        return host in self._names or is_loopback(host) or host.endswith(self._ends)


def host_of(authority: bytes) -> bytes | None:
    """``name:port`` without the port, in lower case; None when it is not of that form."""
    if len(authority) > AUTHORITY_MAX_BYTES:  # nobody knows yet whose request it is
        return None
    found = AUTHORITY.fullmatch(authority)
    return found[1].lower() if found else None


def is_loopback(host: bytes) -> bool:
    """Whether the name can mean no other machine than the client's own."""
    if host == b"localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip(b"[]").decode("ascii")).is_loopback
    except ValueError:
        return False
