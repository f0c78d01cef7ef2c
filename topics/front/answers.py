"""Finished answers: a status, a media type and the bytes that are sent as they are."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from topics.actors.rpc.session import Reply
from topics.formats.api.request_heads import Headers
from topics.formats.api.response_heads import JSON

Stream = Callable[[Any], Awaitable[None]]  # given the connection, until either side ends it


class Held(Protocol):
    """What holds the memory of an answer's body: a shard's `Reply`, or what stands for it."""

    def on_lost(self, give_up: Callable[[], object]) -> None:
        """``give_up`` is called if the memory is needed; it leads to `release` soon."""

    def release(self) -> None:
        """The body is not needed any more."""


class Answer(msgspec.Struct, eq=False):
    """One response. The body of an answer with a ``reply`` may live in shared memory: whoever sends
    the answer calls `done` afterwards. A ``stream`` follows the head and the body, without its
    length; its headers are the whole head. Who sets ``on_unsent`` hears that the answer, or the
    head of the stream, did not reach the client.
    """

    status: int
    body: bytes | memoryview = b""
    reply: Held | None = None
    headers: Headers = ()
    stream: Stream | None = None
    media_type: bytes = JSON
    on_unsent: Callable[[], None] | None = None

    def on_lost(self, release: Callable[[], object]) -> None:
        """``release`` is called when the shared memory is needed before `done`; it must lead to
        `done`.
        """
        if self.reply is not None:
            self.reply.on_lost(release)

    def unsent(self) -> None:
        """The answer could not be sent, or not whole."""
        if self.on_unsent is not None:
            on_unsent, self.on_unsent = self.on_unsent, None
            on_unsent()

    def done(self) -> None:
        """Give the shared memory back. Safe to call twice."""
        if self.reply is not None:
            reply, self.reply = self.reply, None
            self.body = b""
            reply.release()


def shard_answer(reply: Reply[Any], *, made: Headers = ()) -> Answer:
    """The finished bytes of a shard; 201 for a request that has ``made`` something (`location`)."""
    body = reply.body
    # Bytes are the front's own: nothing is to be given back.
    held = None if type(body) is bytes else reply
    return Answer(201 if made else 200, body, held, made)


def location(kind: str, name: str) -> Headers:
    """Where the topic or router that a request has made can be got."""
    return ((b"location", f"/v0/{kind}/{quote(name, safe=':')}".encode("ascii")),)


def json_answer(document: dict[str, Any], at: int) -> Answer:
    """A 200 rendered by the front, with ``performance`` added. ``at``: monotonic ns."""
    return Answer(
        200, msgspec.json.encode({**document, "performance": {"server_total_ms": elapsed_ms(at)}})
    )


def elapsed_ms(at: int) -> float:
    """Milliseconds since ``at`` (monotonic ns), to the microsecond."""
    return (time.monotonic_ns() - at) // 1000 / 1000
