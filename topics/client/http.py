"""HTTP on the wire, for both clients. Plain requests go by httpcore2, streams by httpx2 above it,
which takes 0.3 ms of CPU more for each request, and is imported when a stream is opened.

A connection that the server has closed meanwhile is not used again. No redirect is followed, and no
proxy of the environment is used.
"""

from __future__ import annotations

import ssl
from base64 import b64encode
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import httpcore2

from topics.client.errors import ConnectionLost
from topics.client.settings import Target
from topics.client.watching import HEARTBEAT_S

CONNECT_S: Final = 10.0
KEPT_S: Final = 60.0  # an idle connection; the server closes it after 75 s
KEPT_MAX: Final = 16
FAILURES: Final = (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError)


def headers_of(target: Target) -> dict[str, str]:
    """What each request has."""
    headers = {
        "Accept": "application/json",  # metrics are text for any other
        "Accept-Encoding": "identity",  # gzip halves the rate of reads on a fast network
        "User-Agent": "topics-client",
    }
    if target.key is not None:
        headers["Authorization"] = f"Bearer {target.key}"
    if user := urlsplit(target.url).netloc.rpartition("@")[0]:  # of a proxy before the server
        headers["Authorization"] = f"Basic {b64encode(unquote(user).encode()).decode()}"
    return headers


def certificates(target: Target) -> ssl.SSLContext | None:
    """Whom TLS trusts; None without TLS, since reading certificates takes a third of a second."""
    return httpcore2.default_ssl_context() if target.url.startswith("https:") else None


def http_options(target: Target, timeout: float) -> dict[str, Any]:
    """What both kinds of client of httpx2 are made with."""
    import httpx2

    return {
        "base_url": target.url,
        "headers": headers_of(target),
        "timeout": timeouts(timeout, min(timeout, CONNECT_S)),
        "verify": certificates(target) or False,
        "limits": httpx2.Limits(max_connections=None, max_keepalive_connections=KEPT_MAX),
        "trust_env": False,
    }


def timeouts(timeout: float, connect_s: float) -> tuple[float, float, float, float]:
    """To connect, to read, to write and to get a connection, as httpx2 takes them."""
    return connect_s, timeout, timeout, timeout


def stream_timeouts() -> tuple[float, float, float, float]:
    """A stream that says nothing for twice its heartbeat has ended, whatever TCP says."""
    return timeouts(2 * HEARTBEAT_S, CONNECT_S)


def lost(error: Exception, target: Target) -> ConnectionLost:
    """What became of a request that got no answer, of httpcore2 or of httpx2: their errors have the
    same names.
    """
    was_sent = type(error).__name__ not in ("ConnectError", "ConnectTimeout")
    why = str(error) or type(error).__name__
    return ConnectionLost(f"{target.url}: {why}", was_sent=was_sent)
