"""An HTTP client that sends exactly the given bytes."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from typing import Any

import trio
import trio.testing

EMPTY = (100, 101, 204, 304)


@dataclass
class RawResponse:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        body = (
            gzip.decompress(self.body)
            if self.headers.get("content-encoding") == "gzip"
            else self.body
        )
        return json.loads(body)

    @property
    def code(self) -> str:
        document = self.json()
        assert set(document) <= {"error", "performance"}
        assert set(document["error"]) <= {"code", "message", "detail"}
        return str(document["error"]["code"])


class RawClient:
    """An HTTP/1.1 client that works with bytes."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._buffer = b""
        self.continued = 0  # number of interim responses

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    def put_back(self, data: bytes) -> None:
        """Put back bytes of the next response that were already read."""
        self._buffer = data + self._buffer

    async def receive(self, *, method: str = "POST") -> RawResponse:
        """Return the next final response, or only its head if it is chunked. Fail if the
        connection ends earlier.
        """
        while b"\r\n\r\n" not in self._buffer:
            await self._more()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        if first.startswith("HTTP/1.1 100"):
            self.continued += 1
            return await self.receive(method=method)
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        status = int(first.split()[1])
        is_bare = method == "HEAD" or status in EMPTY or "transfer-encoding" in headers
        length = 0 if is_bare else int(headers["content-length"])
        while len(self._buffer) < length:
            await self._more()
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        return RawResponse(status, headers, body)

    async def request(
        self, method: str, path: str, body: bytes = b"", **headers: str
    ) -> RawResponse:
        await self.send(request(method, path, body, **headers))
        return await self.receive(method=method)

    async def is_closed(self) -> bool:
        """Wait for the server to close the connection. Return False if it sends something
        instead.
        """
        if self._buffer:
            return False
        try:
            with trio.fail_after(10):
                return await self.stream.receive_some(4096) == b""
        except trio.BrokenResourceError:
            return True

    async def _more(self) -> None:
        with trio.fail_after(20):
            data = await self.stream.receive_some(65536)
        if not data:
            raise EOFError(f"the server closed the connection; received: {self._buffer[:200]!r}")
        self._buffer += data


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """Return the bytes of a request. ``content_type=""`` omits the field."""
    fields = {"host": "localhost"}
    if body:
        fields |= {"content-type": "application/json", "content-length": str(len(body))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{method} {path} HTTP/1.1"] + [
        f"{name}: {value}" for name, value in fields.items() if value
    ]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
