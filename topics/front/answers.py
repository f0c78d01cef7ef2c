"""Finished answers: a status and bytes that either lane sends as they are."""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
import trio

from topics.errors import NotReady
from topics.formats.api.fields import Headers, list_members
from topics.front.backend import Reply

GZIP_OUT_MIN = 1024  # below this the header costs more than it saves
GZIP_LEVEL = 1  # a large answer must not hold the loop
STEP_BYTES = 64 * 1024
WBITS_GZIP = 31

# Possessive: two neighbouring runs of blanks would otherwise be tried in every split between them.
CODING = re.compile(
    rb"[ \t]*+([!#$%&'*+\-.^_`|~0-9A-Za-z]++)[ \t]*+(?:;[ \t]*+[qQ]=([0-9.]{1,5}))?[ \t]*+"
)


class StreamAnswer(NamedTuple):
    """Instead of a body: what goes on after the head, until either side ends it."""

    status: bytes
    headers: Headers
    run: Callable[[Any], Awaitable[None]]


class Answer:
    """One response. With a ``reply`` the body may live in shared memory: whoever sends the answer
    calls `done` afterwards.
    """

    __slots__ = ("body", "headers", "reply", "status", "stream")

    def __init__(
        self,
        status: int,
        body: bytes | memoryview,
        reply: Reply[Any] | None = None,
        headers: Headers = (),
        stream: StreamAnswer | None = None,
    ) -> None:
        self.stream = stream
        self.status = status
        self.body = body
        self.reply = reply
        self.headers = headers

    def on_lost(self, let_go: Callable[[], object]) -> None:
        """``let_go`` is called if the shared memory is needed before `done`; that leads there."""
        if self.reply is not None:
            self.reply.on_lost(let_go)

    def done(self) -> None:
        """Give the shared memory back. Safe to call twice."""
        if self.reply is not None:
            reply, self.reply = self.reply, None
            self.body = b""
            reply.release()


def json_answer(document: dict[str, Any], at: int) -> Answer:
    """A 200 made in the front, with ``performance`` added. ``at``: monotonic ns."""
    return Answer(
        200, msgspec.json.encode({**document, "performance": {"server_total_ms": elapsed_ms(at)}})
    )


def elapsed_ms(at: int) -> float:
    """Milliseconds since ``at`` (monotonic ns), to the microsecond."""
    return (time.monotonic_ns() - at) // 1000 / 1000


def wants_gzip(accept_encoding: bytes) -> bool:
    """Whether an Accept-Encoding value allows gzip (RFC 9110 §12.5.3). A value that cannot be read
    allows nothing.
    """
    weights: dict[bytes, float] = {}
    for part in list_members(accept_encoding):
        coding = CODING.fullmatch(part)
        if coding is not None:
            weights[coding[1]] = _weight(coding[2])
    return weights.get(b"gzip", weights.get(b"*", 0.0)) > 0


def _weight(text: bytes | None) -> float:
    try:
        return 1.0 if text is None else float(text)
    except ValueError:
        return 0.0


async def compressed(answer: Answer) -> Answer:
    """The same answer under gzip; a small one as it is. It is made in steps that let others run.

    Raises `NotReady` when the shard has gone, and its memory is needed by its successor.
    """
    if len(answer.body) < GZIP_OUT_MIN:
        return answer
    try:
        with trio.CancelScope() as scope:
            answer.on_lost(scope.cancel)
            packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, WBITS_GZIP)
            view = memoryview(answer.body)
            parts = []
            for start in range(0, len(view), STEP_BYTES):
                parts.append(packer.compress(view[start : start + STEP_BYTES]))
                await trio.lowlevel.checkpoint()
            parts.append(packer.flush())
            encoded = ((b"content-encoding", b"gzip"), (b"vary", b"accept-encoding"))
            return Answer(answer.status, b"".join(parts), headers=(*answer.headers, *encoded))
        raise NotReady("the shard of this topic went down")
    finally:
        answer.done()
