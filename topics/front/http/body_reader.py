"""Body reader: receives, in a task, the body of an admitted request that has not come whole.

the route has no use for a body    read and dropped
declared length                    straight from the socket into a `BodySink`
chunked, gzipped or both           framing --> (GzipSink) --> BodySink

A body that was waited for may have taken minutes: the key of its request is checked again.
"""

from __future__ import annotations

import trio

from topics.actors.shard_client.shards import Shards
from topics.formats.api.body_framing import Framing, framing
from topics.formats.api.response_heads import CONTINUE
from topics.front.body_limits import too_large
from topics.front.guard import Guard
from topics.front.http.body_sink import BodySink, GzipSink
from topics.front.http.connection import NEVER, Connection
from topics.front.http.head_reader import AdmittedHead
from topics.front.request import Body, Request
from topics.front.route import BodyRule

READ_BYTES_MAX = 256 * 1024  # at once into a long body: well under a millisecond


class BodyReader:
    """Receives the bodies of all connections of a front. It keeps nothing of one body."""

    def __init__(self, shards: Shards, guard: Guard, *, inline_bytes: int) -> None:
        self._shards, self._guard, self._inline_bytes = shards, guard, inline_bytes

    async def read(self, connection: Connection, head: AdmittedHead) -> Body:
        """The request's body. Raises `TopicsError`, which leaves the rest of the body unread, or
        OSError when the client leaves.
        """
        if head.expects_continue and connection.pos == len(connection.buffer):
            await connection.send(CONTINUE)
        connection.begin_body()
        if head.request.route.body is BodyRule.NONE:
            await self._drop(connection, head)
            body: Body = b""
        elif head.length is None or head.request.gzip_in:
            body = await self._collect(connection, head)
        else:
            body = await self._fill(connection, head.request, head.length)
        connection.deadline = NEVER
        return body

    def _sink(self, shard: int, max_bytes: int) -> BodySink:
        return BodySink(self._shards, shard, inline_bytes=self._inline_bytes, max_bytes=max_bytes)

    async def _fill(self, connection: Connection, request: Request, length: int) -> Body:
        """A body of known length: the socket is read into the memory of the sink."""
        with self._sink(request.shard, length) as sink:
            ready = connection.buffer[connection.pos : connection.pos + length]
            connection.pos += len(ready)
            await sink.write(ready)
            while sink.length < length:
                count = await connection.receive_into(await sink.room(READ_BYTES_MAX))
                if not count:
                    raise ConnectionResetError("the client left within a body")
                connection.earned(count)
                sink.took(count)
            self._guard.check_key(request)
            return sink.finish()

    async def _collect(self, connection: Connection, head: AdmittedHead) -> Body:
        """A body whose final length is not known: chunked, gzipped, or both."""
        request = head.request
        most = self._guard.body_limits.max_bytes(request.route)
        with self._sink(request.shard, most) as sink:
            gzip = GzipSink(sink, most) if request.gzip_in else None
            parts = framing(head.length)
            while not parts.done:
                pieces = await _pieces(connection, parts)
                if pieces and request.wrong_media is not None:
                    raise request.wrong_media
                for piece in pieces:
                    await (sink if gzip is None else gzip).write(piece)
            if gzip is not None:
                gzip.check_end()
            request.route.check_length(sink.length)
            self._guard.check_key(request)
            return sink.finish()

    async def _drop(self, connection: Connection, head: AdmittedHead) -> None:
        """Read past a body that the route has no use for."""
        parts, dropped = framing(head.length), 0
        most = self._guard.body_limits.max_bytes(head.request.route)
        while not parts.done:
            dropped += sum(map(len, await _pieces(connection, parts)))
            if dropped > most:
                raise too_large(most)
        self._guard.check_key(head.request)


async def _pieces(connection: Connection, parts: Framing) -> list[memoryview]:
    """The next pieces of a body's payload; none when only framing came."""
    if connection.pos == len(connection.buffer):
        if not await connection.receive_more():
            raise ConnectionResetError("the client left within a body")
        connection.earned(len(connection.buffer))
    else:
        await trio.lowlevel.checkpoint()
    pieces, connection.pos = parts.take(connection.buffer, connection.pos)
    return pieces
