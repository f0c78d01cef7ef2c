"""Body reader: receives the body of an admitted request in a task, if it has not fully arrived.

    declared length                    from the socket directly into a `BodySink`
    chunked, gzipped or both           framing --> (GzipSink) --> BodySink

Bodies of routes that use no body are not read here (`topics.front.http.http1_protocol`).
"""

from __future__ import annotations

import trio

from topics.actors.shard_client.shards import Shards
from topics.formats.api.body_framing import Framing, framing
from topics.formats.api.response_heads import CONTINUE
from topics.front.guard import Guard
from topics.front.http.body_sink import BodySink, GzipSink
from topics.front.http.connection import NEVER, Connection
from topics.front.http.head_reader import AdmittedHead
from topics.front.request import Body, Request

# Maximum length of a single read into a long body; such a read takes well under a millisecond.
READ_BYTES_MAX = 256 * 1024


class BodyReader:
    """Receives the bodies from all connections to a front. Keeps no state for individual bodies."""

    def __init__(self, shards: Shards, guard: Guard, *, inline_bytes: int) -> None:
        self._shards, self._guard, self._inline_bytes = shards, guard, inline_bytes

    async def read(self, connection: Connection, head: AdmittedHead) -> Body:
        """Receive and return the body of the request.

        Raise `TopicsError` if the body is refused; the rest of the body stays unread. Raise
        `OSError` if the client disconnects.
        """
        if head.expects_continue and connection.pos == len(connection.buffer):
            await connection.send(CONTINUE)
        connection.begin_body()
        if head.length is None or head.request.gzip_in:
            body = await self._collect(connection, head)
        else:
            body = await self._fill(connection, head.request, head.length)
        connection.deadline = NEVER
        return body

    def _sink(self, connection: Connection, request: Request, max_bytes: int) -> BodySink:
        """Return the sink of a request, with the ledger of unread input."""
        unread, key = connection.connections.held.unread, request.principal.digest
        return BodySink(
            self._shards,
            request.shard,
            inline_bytes=self._inline_bytes,
            max_bytes=max_bytes,
            on_size=lambda sink, length: unread.keep(sink, key, length),
        )

    async def _fill(self, connection: Connection, request: Request, length: int) -> Body:
        """Receive a body of known length: read the socket directly into the memory of the sink."""
        with self._sink(connection, request, length) as sink:
            # Start with the bytes of the body that arrived with the head.
            ready = memoryview(connection.buffer)[connection.pos : connection.pos + length]
            connection.pos += len(ready)
            await sink.write(ready)
            # Release the view, so that the memory of the buffer can be freed.
            del ready
            connection.count_unread()
            while sink.length < length:
                count = await connection.receive_into(await sink.writable(READ_BYTES_MAX))
                if not count:
                    raise ConnectionResetError("the client closed the connection within a body")
                connection.extend_body_deadline(count)
                sink.advance(count)
            return sink.finish()

    async def _collect(self, connection: Connection, head: AdmittedHead) -> Body:
        """Receive a body whose final length is unknown, because it is chunked, gzipped, or both."""
        request = head.request
        # The final length is unknown, so the limit of the route applies.
        most = self._guard.body_limits.max_bytes(request.route)
        with self._sink(connection, request, most) as sink:
            gzip = GzipSink(sink, most) if request.gzip_in else None
            parts = framing(head.length)
            while not parts.done:
                await _write_next(connection, parts, request, sink if gzip is None else gzip)
            if gzip is not None:
                gzip.check_end()
            request.route.check_length(sink.length)
            return sink.finish()


async def _write_next(
    connection: Connection, parts: Framing, request: Request, sink: BodySink | GzipSink
) -> None:
    """Write the next chunks of a body's payload, if the input contains more than framing.

    While this function waits for input, it keeps no received data.
    """
    if connection.pos == len(connection.buffer):
        connection.count_unread()
        if not await connection.receive_more():
            raise ConnectionResetError("the client closed the connection within a body")
        connection.extend_body_deadline(len(connection.buffer))
    else:
        # Many buffered chunks must not block other connections.
        await trio.lowlevel.checkpoint()
    pieces, connection.pos = parts.take(connection.buffer, connection.pos)
    # A wrong media type is an error only if the body is not empty.
    if pieces and request.wrong_media is not None:
        raise request.wrong_media
    for piece in pieces:
        await sink.write(piece)
