"""One client that is shown live records: what it was sent, what its socket did not take, and where
it stands in its topics.

                      page                     its cursor stands where a page begins or ends
    Live (live.py) ----------> live reader    <---------------------------------------------- reader that catches up
                                   |  the socket takes no more                                  (pages of its own)
                                   '----------------------------------------------------------------->

Only a stream that is behind has tasks.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVarTuple

import trio

from topics.engine.access import Principal
from topics.errors import NotReady, TopicNotFound, TopicsError
from topics.formats.api.watch import Start, View
from topics.front.live.pages import FeedPage, FeedSubscription

if TYPE_CHECKING:
    from topics.front.live.live import Live

LOG = logging.getLogger("topics.front")

VANISHED_S = 60.0  # without a confirmation of what was sent
SLOW_S = 30.0  # without a reader taking a single byte
HEARD_BYTES = 4096
LOSSES = ("cap", "ttl", "mixed")  # by the topic itself

Args = TypeVarTuple("Args")


class Reader:
    """A stream's place in one topic."""

    __slots__ = (
        "connecting",
        "epoch",
        "feed",
        "is_live",
        "seq",
        "shard",
        "stream",
        "tailing",
        "topic",
        "view",
        "waits",
    )

    def __init__(self, stream: Stream, topic: str, shard: int, view: View, start: Start) -> None:
        self.stream, self.topic, self.shard, self.view = stream, topic, shard, view
        self.seq, self.epoch = start.from_seq, start.epoch
        self.feed: FeedSubscription | None = None
        self.is_live = False
        self.tailing = False  # has been told that there is no more
        self.connecting = True  # nothing has been shown yet
        self.waits = False  # for a shard

    @property
    def is_behind(self) -> bool:
        """There may be something to read for it now."""
        return not self.is_live and not self.waits


class Stream(ABC):
    """One client that is shown live records. What it is shown as, subclasses know."""

    def __init__(
        self, live: Live, sock: socket.socket, principal: Principal, heartbeat_s: float
    ) -> None:
        self.live, self.sock, self.principal, self.heartbeat_s = live, sock, principal, heartbeat_s
        self.readers: dict[str, Reader] = {}
        self.ended = False
        self.scope = trio.CancelScope()  # of `until_ended`
        self.last_sent = live.now
        self._rest: memoryview | None = None  # of what the socket did not take
        self._behind: list[bytes] = []  # what is to be sent after it
        self._sending = trio.CancelScope()  # of the task that sends them
        self._moved_at = live.now  # when it last took something
        self._catching_up: set[int] = set()  # shards of which a task is at it

    # What subclasses show

    @abstractmethod
    def shown_page(self, reader: Reader, page: FeedPage) -> bytes:
        """The records of a page; the reader already stands behind it."""

    @abstractmethod
    def shown_tombstone(self, reader: Reader, tombstone: dict[str, Any]) -> bytes:
        """Loss; the reader already stands behind the gap."""

    @abstractmethod
    def shown_caught_up(self, reader: Reader, head_seq: int) -> bytes:
        """There is no more right now."""

    @abstractmethod
    def shown_deleted(self, reader: Reader, head_seq: int) -> bytes:
        """The topic has gone."""

    @abstractmethod
    def shown_failure(self, code: int, error: str) -> bytes:
        """The last thing that the client is told."""

    @abstractmethod
    def shown_heartbeat(self) -> bytes:
        """Nothing has happened."""

    @abstractmethod
    def shown_trouble(self, reader: Reader, failure: TopicsError) -> bytes:
        """The topic cannot be read; the rest of the stream goes on."""

    @abstractmethod
    def moved(self, reader: Reader) -> None:
        """The reader's place has changed."""

    # Sending

    @property
    def is_stalled(self) -> bool:
        """The socket takes no more for now."""
        return self._rest is not None

    def write(self, data: bytes) -> None:
        """Send, or keep what the socket does not take. Not while something is kept, unless it is
        short or belongs behind that.
        """
        if self.ended:
            return
        if self._rest is not None:
            self._behind.append(data)
            return
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.end()
            return
        self.last_sent = time.monotonic()
        if sent < len(data):
            self._rest = memoryview(data)[sent:]
            self._moved_at = self.live.now
            self._sending = trio.CancelScope()
            self.live.nursery.start_soon(self._send_rest, self._sending)
        else:
            self.sent_whole()

    async def _send_rest(self, scope: trio.CancelScope) -> None:
        """In a task of its own: what waits for the client waits for nothing else, and the task goes
        when the stream ends.
        """
        try:
            with scope:
                while self._rest is not None and not self.ended:
                    await trio.lowlevel.wait_writable(self.sock)
                    try:
                        sent = self.sock.send(self._rest)
                    except BlockingIOError:
                        continue
                    self._moved_at = self.last_sent = time.monotonic()
                    self._rest = self._rest[sent:] if sent < len(self._rest) else self._next_rest()
        except (OSError, trio.ClosedResourceError):
            self.end()
        if not self.ended:
            self.attempt(self.resumed)
            self.catch_up()

    def _next_rest(self) -> memoryview | None:
        self.sent_whole()
        behind, self._behind = self._behind, []
        return memoryview(b"".join(behind)) if behind else None

    def tick(self, now: float) -> None:
        """Beat, or give up."""
        if self._rest is not None:
            if now - self._moved_at >= SLOW_S:
                self.fail(408, "the client reads too slowly")
        elif now - self.last_sent >= self.heartbeat_s:
            self.write(self.shown_heartbeat())

    def attempt(self, call: Callable[[*Args], None], *args: *Args) -> None:
        """Do what concerns this stream alone. A bug in it is the end of this stream, and of no
        other.
        """
        try:
            call(*args)
        except Exception:
            self._broke()

    def _broke(self) -> None:
        LOG.exception("a bug in a stream")
        try:
            self.fail(500, "internal error")
        except Exception:
            LOG.exception("a bug in a stream")
            self.end()

    def fail(self, code: int, error: str) -> None:
        """Tell why, if the socket takes it, and end."""
        if not self.ended:
            data = self.shown_failure(code, error)
            if self._rest is not None:
                data = b"".join((self._rest, *self._behind, data))
            try:
                if self.sock.send(data) == len(data):
                    self.sent_whole()
            except OSError:
                LOG.debug("a stream ended and its client did not hear why")
            self.end()

    def sent_whole(self) -> None:  # noqa: B027 - most keep no account of it
        """The socket has taken all that was written; what was written while it took nothing comes
        next.
        """

    def resumed(self) -> None:  # noqa: B027 - most have nothing to do then
        """The socket takes what it is given again."""

    def drain(self) -> None:
        """The server goes down."""
        self.fail(503, "the server is shutting down")

    async def until_ended(self) -> None:
        """Wait for the end; a client that hangs up is one. What it says is passed over."""
        with self.scope, contextlib.suppress(OSError):
            while not self.ended:
                await trio.lowlevel.wait_readable(self.sock)
                try:
                    if not self.sock.recv(HEARD_BYTES):
                        break
                except BlockingIOError:
                    continue

    def begin(self) -> None:
        """Take part, until `end`."""
        if (
            self.sock.family != socket.AF_UNIX
        ):  # a client that has vanished without a word is noticed by what it does not confirm
            self.sock.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(VANISHED_S * 1000)
            )
        self.live.streams.add(self)
        self.live.by_key[self.principal.digest] += 1
        if self.live.draining:
            self.drain()

    def end(self) -> None:
        """Leave everything; whoever runs the connection closes it."""
        if not self.ended:
            self.ended = True
            self.scope.cancel()
            self._sending.cancel()
            for reader in self.readers.values():
                self.live.leave(reader)
            if self in self.live.streams:
                self.live.streams.remove(self)
                self.live.by_key[self.principal.digest] -= 1
                if not self.live.by_key[self.principal.digest]:
                    del self.live.by_key[self.principal.digest]

    # Topics

    def add(self, topic: str, view: View, start: Start) -> None:
        """Follow a topic as well, instead of how it was followed before. `catch_up` must follow."""
        self.remove(topic)
        self.readers[topic] = Reader(self, topic, self.live.backend.shard_of(topic), view, start)

    def remove(self, topic: str) -> None:
        """Follow it no more."""
        reader = self.readers.pop(topic, None)
        if reader is not None:
            self.live.leave(reader)

    def show(self, reader: Reader, page: FeedPage) -> None:
        """Show a page to the reader that stands where it begins."""
        parts = []
        tombstone = page.tombstone
        if tombstone is not None:
            too_old = (
                reader.connecting
                and tombstone["reason"] in LOSSES
                and tombstone["gap_to"] < tombstone["earliest_seq"]
            )
            told = {**tombstone, "reason": "from_seq_too_old"} if too_old else tombstone
            reader.seq = page.from_seq
            reader.tailing = (
                reader.tailing and tombstone["reason"] != "recreated"
            )  # another topic, which it has not seen the head of
            self.moved(reader)
            parts.append(self.shown_tombstone(reader, told))
        reader.connecting = False
        if reader.seq != page.to_seq:
            reader.seq = page.to_seq
            self.moved(reader)
        if page.count:
            parts.append(self.shown_page(reader, page))
        if page.to_seq < page.head_seq:
            reader.tailing = False
        elif not reader.tailing:
            reader.tailing = True
            parts.append(self.shown_caught_up(reader, page.head_seq))
        if parts:
            self.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def catch_up(self) -> None:
        """See to it that everything is shown that is behind. A task for each shard: one that takes
        long delays its own topics only.
        """
        if not self.ended:
            for shard in {
                reader.shard for reader in self.readers.values() if reader.is_behind
            } - self._catching_up:
                self._catching_up.add(shard)
                self.live.nursery.start_soon(self._catch_up, shard)

    async def _catch_up(self, shard: int) -> None:
        try:
            while not self.ended and not self.is_stalled:
                reader = next(
                    (
                        reader
                        for reader in self.readers.values()
                        if reader.shard == shard and reader.is_behind
                    ),
                    None,
                )
                if reader is None:
                    return
                # Others get their turn between two pages.
                self.readers[reader.topic] = self.readers.pop(reader.topic)
                await self._advance(reader)
        except Exception:
            self._broke()
        finally:
            self._catching_up.discard(shard)

    async def _advance(self, reader: Reader) -> None:
        """One page nearer to the feed, or into it."""
        live = self.live
        try:
            feed = await live.feed_of(reader)
            if reader.feed is not feed or not feed.is_open:
                return
            known = reader.epoch in (None, feed.epoch)
            if known and (
                reader.seq == feed.seq or (reader.seq > feed.seq and not reader.connecting)
            ):
                reader.epoch = feed.epoch
                self._go_live(reader, feed)
                await trio.lowlevel.checkpoint()
                return
            page, epoch = (
                feed.page_from(reader.seq) if known and not reader.connecting else None,
                feed.epoch,
            )
            if page is not None:
                await trio.lowlevel.checkpoint()
            else:
                until_seq = feed.next_edge(reader.seq) if known and reader.seq < feed.seq else None
                page, epoch = await live.read(reader, until_seq)
        except TopicNotFound:
            live.tell_deleted(reader, reader.seq)
        except NotReady:
            live.wait_for(reader)
        except TopicsError as failure:
            if self.readers.get(reader.topic) is reader:
                self.write(self.shown_trouble(reader, failure))
                self.remove(reader.topic)
        else:
            # What a stalled stream has read it reads again, so that nothing more waits for its
            # client.
            if self.readers.get(reader.topic) is reader and not self.ended and not self.is_stalled:
                reader.epoch = epoch
                self.show(reader, page)

    def _go_live(self, reader: Reader, feed: FeedSubscription) -> None:
        reader.is_live, reader.connecting = True, False
        feed.live[reader] = None
        # Whoever has read further than the feed knew of a later head, and was told when it came
        # there.
        if not reader.tailing and reader.seq == feed.head_seq:
            reader.tailing = True
            self.write(self.shown_caught_up(reader, feed.head_seq))
