"""Connections to one server, by httpcore2."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpcore2

from topics.client.calls import Call
from topics.client.http import FAILURES, KEEPALIVE_MAX, KEEPALIVE_S, certificates, headers_of, lost
from topics.client.settings import Target
from topics.client.tasks import AsyncAbortable

T = TypeVar("T")


class AsyncPool(AsyncAbortable, httpcore2.AnyIOBackend):
    """Connections to one server. ``connections`` is the total number of opened connections. A
    forked process opens its own connections, because otherwise two processes would read each
    other's responses.
    """

    def __init__(self, target: Target, connect_s: float) -> None:
        super().__init__()
        self._target, self._connect_s, self.connections = target, connect_s, 0
        url = urlsplit(target.url)
        host = (url.hostname or "").encode("idna")
        self._url = partial(httpcore2.URL, scheme=url.scheme, host=host, port=url.port)
        # httpcore2 would omit the brackets of an IPv6 address.
        named = url.netloc.rpartition("@")[2].encode("idna").decode()
        self._headers = [("Host", named), *headers_of(target).items()]
        self._open = partial(
            httpcore2.AsyncConnectionPool,
            ssl_context=certificates(target),
            max_connections=None,
            max_keepalive_connections=KEEPALIVE_MAX,
            keepalive_expiry=KEEPALIVE_S,
            network_backend=self,
        )
        self._pid, self._pool = os.getpid(), self._open()

    async def connect_tcp(self, *address: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        """Connect and count the connection."""
        self.connections += 1
        return self._opened(await super().connect_tcp(*address, **options))

    async def close(self) -> None:
        """Close all connections."""
        self.abort()
        if self._pid == os.getpid():
            await self._pool.aclose()

    async def send(self, call: Call[T], read_timeout_s: float) -> T:
        """Send a call once and return its result. Raises `TopicsError`."""
        if self._pid != os.getpid():
            self._pool = self._open()
            self._pid = os.getpid()  # set last, because another thread may be here
        wait_s = read_timeout_s + call.wait_s
        bounds = {"connect": min(self._connect_s, wait_s), "read": wait_s, "write": wait_s}
        try:
            answer = await self._pool.request(
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
