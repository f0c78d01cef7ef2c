"""Host names and origins: checks the ``Host`` of each request, and checks which web pages may use
routes that do more than return a document.

    accepted names         when
    loopback names and     TOPICS_ALLOWED_HOSTS is set, or there are no keys and the server
      names in the setting   listens on loopback
    any name               otherwise, and with ``*`` in the setting

In a DNS rebinding attack, a foreign name resolves to 127.0.0.1, so that a browser treats this
server as the foreign site. A request without a host name (HTTP/1.0) passes, because browsers always
send a host name.

A browser sends some requests without a preflight, from any page to any site. Some of them change
data or use server resources even though the page cannot read the response: a work stream (a GET
that leases jobs), every other stream, a WebSocket, a backup, a POST without a body. So on every
route that does more than return a document, the guard refuses requests from pages of other sites,
with and without keys:

    Origin                        Sec-Fetch-Site          the request comes from
    any                           same-origin             a page of this server
    in TOPICS_CORS_ORIGINS        any                     a page that the operator accepts
    of this host or loopback      any                     a page on this machine
    any other, ``null``           absent, any other       a page of another site: refused
    absent                        cross-site, same-site   a page of another site: refused
    absent                        none                    a browser's user, such as a typed URL
    absent                        absent, unknown         a program

Browsers send no ``Origin`` with an image, a script, a frame, a link, a prefetch, a form that is a
GET, and ``fetch`` in the mode ``no-cors``. They send Sec-Fetch-Site with all of these if the server
is reached by https or on a loopback address, and no page can set or remove it. They do not send it
to another machine over plain http, so a server that is used in this way needs keys. The port of an
origin is ignored. Requests for documents pass, because a foreign page cannot read the response.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from topics.config import Settings
from topics.errors import Forbidden
from topics.formats.api.request_heads import HeadFields

AUTHORITY = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[^][/:@?#\s]+)(?::[0-9]*)?")
AUTHORITY_MAX_BYTES = 255 + 6  # the longest DNS name, and a port
SHOWN_MAX = 100  # maximum number of characters of a host name in an error message
ORIGIN = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://" + AUTHORITY.pattern)
LOOPBACK = (b"localhost", b"127.0.0.1", b"[::1]")
SAME_ORIGIN = b"same-origin"  # values of Sec-Fetch-Site
FOREIGN_SITES = (b"cross-site", b"same-site")


class HostRule:
    """Checks the host in the Host field, and in a request target in absolute form."""

    def __init__(self, settings: Settings, *, has_keys: bool) -> None:
        allowed = [name.encode("ascii") for name in settings.allowed_hosts]
        is_open_loopback = settings.loopback and not has_keys
        self._is_active = b"*" not in allowed and (bool(allowed) or is_open_loopback)
        self._names = frozenset(allowed)
        self._ends = (b".localhost", *(name for name in allowed if name.startswith(b".")))

    def check(self, authorities: Iterable[bytes]) -> None:
        """Raise `Forbidden` if one of the authorities is not an accepted name."""
        if not self._is_active:
            return
        for authority in authorities:
            host = host_of(authority)
            if host is None or not self._is_accepted(host):
                # A malformed authority is not repeated in the message, because it may contain a
                # secret before an @.
                shown = (host or b"")[:SHOWN_MAX].decode("latin-1")
                rule = "is not a name of this server; add it to TOPICS_ALLOWED_HOSTS"
                raise Forbidden(f'the host "{shown}" {rule}')

    def _is_accepted(self, host: bytes) -> bool:
        return host in self._names or is_loopback(host) or host.endswith(self._ends)


def host_of(authority: bytes) -> bytes | None:
    """Return the host of ``name:port`` in lower case, or None if it is malformed."""
    if len(authority) > AUTHORITY_MAX_BYTES:  # the client is not authenticated yet
        return None
    found = AUTHORITY.fullmatch(authority)
    return found[1].lower() if found else None


def is_loopback(host: bytes) -> bool:
    """Return whether the name can only refer to the machine of the client."""
    if host == b"localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip(b"[]").decode("ascii")).is_loopback
    except ValueError:
        return False


def is_from_foreign_page(fields: HeadFields) -> bool:
    """Return whether a browser sent the request on behalf of a page of another site, that is, a
    page from neither this host nor the machine of the browser.

    Origins without a host (``null``) are foreign, because any page can have one. Navigations are
    not exempt, because a link or a frame of another site can start one.
    """
    sites = fields.values(b"sec-fetch-site")
    if sites == [SAME_ORIGIN]:  # true even if a proxy has changed the host
        return False
    origins = fields.values(b"origin")
    if not origins:
        return any(site in FOREIGN_SITES for site in sites)
    own = [host for value in fields.values(b"host") if (host := host_of(value))]
    return any(_origin_host(value) not in (*own, *LOOPBACK) for value in origins)


def _origin_host(value: bytes) -> bytes | None:
    found = ORIGIN.fullmatch(value)
    return found[1].lower() if found else None
