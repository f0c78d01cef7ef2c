"""Connections to one server, by httpcore2."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpcore2

from topics.client.calls import Call
from topics.client.http import FAILURES, KEPT_MAX, KEPT_S, certificates, headers_of, lost
from topics.client.settings import Target

T = TypeVar("T")


class AsyncPool(httpcore2.AnyIOBackend):
    """Connections to one server. ``connections`` counts those that were ever opened, also because
    the server was restarted.
    """

    def __init__(self, target: Target, connect_s: float) -> None:
        self._target, self._connect_s, self.connections = target, connect_s, 0
        url = urlsplit(target.url)
        host = (url.hostname or "").encode("idna")
        self._url = partial(httpcore2.URL, scheme=url.scheme, host=host, port=url.port)
        # httpcore2 would leave the brackets of an IPv6 address out.
        named = url.netloc.rpartition("@")[2].encode("idna").decode()
        self._headers = [("Host", named), *headers_of(target).items()]
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=certificates(target),
            max_connections=None,
            max_keepalive_connections=KEPT_MAX,
            keepalive_expiry=KEPT_S,
            network_backend=self,
        )

    async def connect_tcp(self, *address: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        """Connect and count the connection."""
        self.connections += 1
        return await super().connect_tcp(*address, **options)

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.aclose()

    async def send(self, call: Call[T], answer_s: float) -> T:
        """Send a call once and return its result. Raises `TopicsError`."""
        wait_s = answer_s + call.wait_s
        bounds = {"connect": self._connect_s, "read": wait_s, "write": wait_s}
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
