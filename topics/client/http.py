"""HTTP for both clients. Requests use httpcore2. Streams use httpx2, which is built on httpcore2
and takes 0.3 ms more CPU time for each request. It is imported when the first stream is opened.

A connection that the server has closed is not used again. Redirects are not followed. Proxy
settings in the environment are not used.
"""

from __future__ import annotations

import socket
import ssl
from base64 import b64encode
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import httpcore2

from topics.client.errors import ConnectionLost
from topics.client.settings import Target
from topics.client.watching import HEARTBEAT_S

CONNECT_S: Final = 10.0
KEEPALIVE_S: Final = 60.0  # idle connections are closed; the server closes them after 75 s
KEEPALIVE_MAX: Final = 16
FAILURES: Final = (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError)


def headers_of(target: Target) -> dict[str, str]:
    """Return the header fields of every request."""
    headers = {
        "Accept": "application/json",  # with any other value, metrics are text
        "Accept-Encoding": "identity",  # gzip halves the rate of reads on a fast network
        "User-Agent": "topics-client",
    }
    if target.key is not None:
        headers["Authorization"] = f"Bearer {target.key}"
    if user := urlsplit(target.url).netloc.rpartition("@")[0]:  # for a proxy in front of the server
        headers["Authorization"] = f"Basic {b64encode(unquote(user).encode()).decode()}"
    return headers


def certificates(target: Target) -> ssl.SSLContext | None:
    """Return the TLS settings, by default with the certificates of the system. Return None for a
    server without TLS, because reading the certificates takes a third of a second.
    """
    if not target.url.startswith("https:"):
        return None
    return target.ssl_context or httpcore2.default_ssl_context()


def http_options(target: Target, timeout: float) -> dict[str, Any]:
    """Return the arguments for both httpx2 clients."""
    import httpx2

    return {
        "base_url": target.url,
        "headers": headers_of(target),
        "timeout": timeouts(timeout, min(timeout, CONNECT_S)),
        "verify": certificates(target) or False,
        "limits": httpx2.Limits(max_connections=None, max_keepalive_connections=KEEPALIVE_MAX),
        "trust_env": False,
    }


def timeouts(timeout: float, connect_s: float) -> tuple[float, float, float, float]:
    """Return the httpx2 timeouts: connect, read, write, wait for a connection."""
    return connect_s, timeout, timeout, timeout


def stream_timeouts() -> tuple[float, float, float, float]:
    """Return the timeouts of a stream. A stream that is silent for two heartbeats has ended."""
    return timeouts(2 * HEARTBEAT_S, CONNECT_S)


def shut_down(connection: socket.socket) -> None:
    """Make all reads and writes of a connection fail, including blocked ones in other threads."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def lost(error: Exception, target: Target) -> ConnectionLost:
    """Return the error for a request that received no response. The exceptions of httpcore2 and
    httpx2 have the same names.
    """
    was_sent = type(error).__name__ not in ("ConnectError", "ConnectTimeout")
    why = str(error) or type(error).__name__
    return ConnectionLost(f"{target.url}: {why}", was_sent=was_sent)
