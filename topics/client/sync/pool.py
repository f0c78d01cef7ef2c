# Generated from topics/client/aio/pool.py by tests/client/unasync.py. Change that one.
"""Connections to one server, by httpcore2."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import httpcore2

from topics.client.calls import Call, Retry
from topics.client.http import FAILURES, KEPT_MAX, KEPT_S, certificates, headers_of, lost
from topics.client.settings import Target

T = TypeVar("T")


class Caller(Protocol):
    """A client as workers and producers use it."""

    node: str | None

    def call(self, call: Call[T]) -> T:
        """Send it, again if that helps. Raises `TopicsError`."""

    def copy(self, *, timeout: float, retry: Retry) -> AbstractContextManager[Caller, None]:
        """The same server by connections of its own."""


class Pool(httpcore2.SyncBackend):
    """Connections to one server. ``connections``: how often it was connected to; each start of a
    server needs another connection.
    """

    def __init__(self, target: Target, connect_s: float) -> None:
        self._target, self._connect_s, self.connections = target, connect_s, 0
        url = urlsplit(target.url)
        host = (url.hostname or "").encode("idna")
        self._url = partial(httpcore2.URL, scheme=url.scheme, host=host, port=url.port)
        # httpcore2 would leave the brackets of an IPv6 address out.
        named = url.netloc.rpartition("@")[2].encode("idna").decode()
        self._headers = [("Host", named), *headers_of(target).items()]
        self._pool = httpcore2.ConnectionPool(
            ssl_context=certificates(target),
            max_connections=None,
            max_keepalive_connections=KEPT_MAX,
            keepalive_expiry=KEPT_S,
            network_backend=self,
        )

    def connect_tcp(self, *address: Any, **options: Any) -> httpcore2.NetworkStream:
        """Connect, and count it."""
        self.connections += 1
        return super().connect_tcp(*address, **options)

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    def send(self, call: Call[T], answer_s: float) -> T:
        """Send it once. Raises `TopicsError`."""
        wait_s = answer_s + call.wait_s
        bounds = {"connect": self._connect_s, "read": wait_s, "write": wait_s}
        try:
            answer = self._pool.request(
                call.method,
                self._url(target=call.path),
                headers=[*self._headers, *call.headers.items()],
                content=call.content,
                extensions={"timeout": bounds},
            )
        except FAILURES as error:
            raise lost(error, self._target) from error
        headers = {name.lower().decode(): text.decode("latin-1") for name, text in answer.headers}
        return call.result(answer.status, headers, answer.content)
