"""Answers: finished HTTP responses, with a status, a media type and the body as it is sent."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from topics.actors.rpc.session import Reply
from topics.formats.api.request_heads import Headers
from topics.formats.api.response_heads import JSON

# A function that is called with the connection and runs until either side closes the stream.
Stream = Callable[[Any], Awaitable[None]]


class BodyOwner(Protocol):
    """The owner of the memory of a response body: the `Reply` from a shard, or a substitute."""

    def on_reclaim(self, give_up: Callable[[], object]) -> None:
        """Register ``give_up``, which is called if the memory is needed. It must soon cause a call
        to `release`.
        """

    def release(self) -> None:
        """Release the memory, because the body is no longer needed."""


class Answer(msgspec.Struct, eq=False):
    """One HTTP response.

    The body of a response with a ``reply`` may be in shared memory, so the sender must call `done`
    afterwards. If there is a ``stream``, it sends data after the head and ``body``. The response
    then has no Content-Length, and ``media_type`` is ignored. ``on_unsent`` is called if the
    response, or the head of the stream, did not reach the client.
    """

    status: int
    body: bytes | memoryview = b""
    reply: BodyOwner | None = None
    headers: Headers = ()
    stream: Stream | None = None
    media_type: bytes = JSON
    on_unsent: Callable[[], None] | None = None

    def on_reclaim(self, release: Callable[[], object]) -> None:
        """Register ``release``, which is called if the shared memory is needed. It must cause a
        call to `done`.
        """
        if self.reply is not None:
            self.reply.on_reclaim(release)

    def unsent(self) -> None:
        """Report that the response was not sent, or not sent completely. Safe to call twice."""
        if self.on_unsent is not None:
            on_unsent, self.on_unsent = self.on_unsent, None
            on_unsent()

    def done(self) -> None:
        """Release the shared memory. Safe to call twice."""
        if self.reply is not None:
            reply, self.reply = self.reply, None
            self.body = b""
            reply.release()


def shard_answer(reply: Reply[Any], *, made: Headers = ()) -> Answer:
    """Return a response with a body that a shard has rendered.

    If the request has created a resource, ``made`` is the resource's `location`, and the status is
    201.
    """
    body = reply.body
    # A body of type `bytes` belongs to the front, so there is no shared memory to release.
    held = None if type(body) is bytes else reply
    return Answer(201 if made else 200, body, held, made)


def location(kind: str, name: str) -> Headers:
    """Return the Location header of a created topic or router."""
    return ((b"location", f"/v0/{kind}/{quote(name, safe=':')}".encode("ascii")),)


def json_answer(document: dict[str, Any], at: int) -> Answer:
    """Return a 200 response with the JSON of ``document`` and the member ``performance``.

    ``at`` is the start of the request in monotonic ns.
    """
    return Answer(
        200, msgspec.json.encode({**document, "performance": {"server_total_ms": elapsed_ms(at)}})
    )


def elapsed_ms(at: int) -> float:
    """Return the milliseconds since ``at`` (monotonic ns), rounded down to the microsecond."""
    return (time.monotonic_ns() - at) // 1000 / 1000
