"""Live records: feeds from the shards, and the streams that show them to readers (decision 0010).

                      page                          its cursor stands where a page begins or ends
    shard --> Feed ----------> every live stream  <--------------------------------------------- stream that catches up
                '-> the newest pages are kept          the socket takes no more                   (pages of its own)
                                                  --------------------------------------------->

Live pages are written to the sockets from the loop that took them out of the ring. Only a stream that is behind has a task.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVarTuple

import trio

from topics.config import Settings
from topics.engine.access import ANYONE, Principal
from topics.errors import NotReady, Throttled, TopicNotFound, TopicsError
from topics.formats.watch import Start, View
from topics.front.backend import Backend, Reply
from topics.front.pages import Feed, KeptPages, Page

LOG = logging.getLogger("topics.front")

TICK_S = 0.25  # the grain of heartbeats and of the patience with slow readers
VANISHED_S = 60.0  # without a confirmation of what was sent
SLOW_S = 30.0  # without a reader taking a single byte
HEARD_BYTES = 4096
RETRY_S = 0.25  # after a shard has refused
LOSSES = ("cap", "ttl", "mixed")  # by the topic itself


Answered = Callable[[dict[str, Any]], None]
Args = TypeVarTuple("Args")


class Reader:
    """A stream's place in one topic."""

    __slots__ = ("connecting", "epoch", "feed", "is_live", "seq", "shard", "stream", "tailing", "topic", "view", "waits")

    def __init__(self, stream: Stream, topic: str, shard: int, view: View, start: Start) -> None:
        self.stream, self.topic, self.shard, self.view = stream, topic, shard, view
        self.seq, self.epoch = start.from_seq, start.epoch
        self.feed: Feed | None = None
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

    def __init__(self, live: Live, sock: socket.socket, principal: Principal, heartbeat_s: float) -> None:
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
    def shown_page(self, reader: Reader, page: Page) -> bytes:
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
        """Send, or keep what the socket does not take. Not while something is kept, unless it is short or belongs behind that."""
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
        """In a task of its own: what waits for the client waits for nothing else, and the task goes when the stream ends."""
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
        """Do what concerns this stream alone. A bug in it is the end of this stream, and of no other."""
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
        """The socket has taken all that was written; what was written while it took nothing comes next."""

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
        if self.sock.family != socket.AF_UNIX:  # a client that has vanished without a word is noticed by what it does not confirm
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(VANISHED_S * 1000))
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

    def show(self, reader: Reader, page: Page) -> None:
        """Show a page to the reader that stands where it begins."""
        parts = []
        tombstone = page.tombstone
        if tombstone is not None:
            too_old = reader.connecting and tombstone["reason"] in LOSSES and tombstone["gap_to"] < tombstone["earliest_seq"]
            told = {**tombstone, "reason": "from_seq_too_old"} if too_old else tombstone
            reader.seq = page.from_seq
            reader.tailing = reader.tailing and tombstone["reason"] != "recreated"  # another topic, which it has not seen the head of
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
        """See to it that everything is shown that is behind. A task for each shard: one that takes long delays its own topics only."""
        if not self.ended:
            for shard in {reader.shard for reader in self.readers.values() if reader.is_behind} - self._catching_up:
                self._catching_up.add(shard)
                self.live.nursery.start_soon(self._catch_up, shard)

    async def _catch_up(self, shard: int) -> None:
        try:
            while not self.ended and not self.is_stalled:
                reader = next((reader for reader in self.readers.values() if reader.shard == shard and reader.is_behind), None)
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
            if known and (reader.seq == feed.seq or (reader.seq > feed.seq and not reader.connecting)):
                reader.epoch = feed.epoch
                self._go_live(reader, feed)
                await trio.lowlevel.checkpoint()
                return
            page, epoch = feed.page_from(reader.seq) if known and not reader.connecting else None, feed.epoch
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
            # What a stalled stream has read it reads again, so that nothing more waits for its client.
            if self.readers.get(reader.topic) is reader and not self.ended and not self.is_stalled:
                reader.epoch = epoch
                self.show(reader, page)

    def _go_live(self, reader: Reader, feed: Feed) -> None:
        reader.is_live, reader.connecting = True, False
        feed.live[reader] = None
        # Whoever has read further than the feed knew of a later head, and was told when it came there.
        if not reader.tailing and reader.seq == feed.head_seq:
            reader.tailing = True
            self.write(self.shown_caught_up(reader, feed.head_seq))


class Live:
    """All feeds and streams of a front."""

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self.backend, self._settings = backend, settings
        self.now = time.monotonic()
        self.streams: set[Stream] = set()
        self.draining = False
        self.by_key: Counter[bytes] = Counter()  # how many of them each key has, by its digest
        self.nursery: trio.Nursery
        self._feeds: dict[tuple[str, View], Feed] = {}
        self._by_number: dict[int, Feed] = {}
        self._number = 0
        self._kept = KeptPages()
        self._waiting: dict[Reader, float] = {}  # until when, at the latest
        self._reads: dict[tuple[Any, ...], _Shared] = {}
        self._due: list[tuple[Stream, Callable[[], None]]] = []
        self._due_now = trio.Event()
        backend.listen(self)

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as self.nursery:
            self.nursery.start_soon(self._do_due)
            while True:
                await trio.sleep(TICK_S)
                self.now = now = time.monotonic()
                for stream in list(self.streams):
                    stream.attempt(stream.tick, now)
                for reader in [reader for reader, until in self._waiting.items() if until <= now]:
                    self._wake(reader)

    def check_room(self, principal: Principal, leaving: Stream | None = None) -> None:
        """For another stream, which must begin before anything is waited for; ``leaving`` ends then. Raises `Throttled` (§11)."""
        settings, less = self._settings, 0 if leaving is None or leaving.ended else 1
        if 0 < settings.max_sse_connections <= len(self.streams) - less:
            raise _too_many("max_sse_connections", settings.max_sse_connections)
        if principal is not ANYONE and 0 < settings.max_sse_connections_per_key <= self.by_key[principal.digest] - less:
            raise _too_many("max_sse_connections_per_key", settings.max_sse_connections_per_key)

    def soon(self, stream: Stream, call: Callable[[], None]) -> None:
        """Call it once the loop has done what it is doing: what comes together is sent together."""
        self._due.append((stream, call))
        self._due_now.set()

    async def _do_due(self) -> None:
        while True:
            await self._due_now.wait()
            self._due_now = trio.Event()
            due, self._due = self._due, []
            for stream, call in due:
                stream.attempt(call)

    def drain(self) -> None:
        """The server goes down: tell all streams, and those that still begin."""
        self.draining = True
        for stream in list(self.streams):
            stream.attempt(stream.drain)

    # What streams need

    async def feed_of(self, reader: Reader) -> Feed:
        """The reader's feed, open. Raises `TopicsError`."""
        feed = self._feeds.get((reader.topic, reader.view))
        if feed is None:
            self._number += 1
            feed = self._feeds[reader.topic, reader.view] = Feed(self._number, reader.shard, reader.topic, reader.view)
            self._by_number[feed.number] = feed
        if reader.feed is not feed:
            self.leave(reader)
            reader.feed = feed
            feed.readers.add(reader)
        if not feed.is_open:
            await self._share(
                ("open", feed.number),
                feed.shard,
                "feed.open",
                partial(self._opened, feed),
                feed=feed.number,
                topic=feed.topic,
                view=feed.view.as_map(),
            ).wait()
        return feed

    @staticmethod
    def _opened(feed: Feed, result: dict[str, Any]) -> None:
        feed.is_open = True
        feed.seq = feed.head_seq = result["head_seq"]
        feed.epoch = result["epoch"]

    async def read(self, reader: Reader, until_seq: int | None) -> tuple[Page, int]:
        """A page from where the reader stands, and the topic's epoch; readers that ask alike share it. Raises `TopicsError`."""
        key = (reader.topic, reader.view, reader.seq, until_seq, reader.epoch)
        shared = self._share(
            key, reader.shard, "feed.read", _ignore, topic=reader.topic, view=reader.view.as_map(), from_seq=reader.seq,
            until_seq=until_seq, epoch=reader.epoch,
        )  # fmt: skip
        result, body = await shared.wait()
        if shared.page is None:
            shared.page = Page(reader.topic, result, body)
        return shared.page, result["epoch"]

    def _share(self, key: tuple[Any, ...], shard: int, method: str, answered: Answered, **params: Any) -> _Shared:
        shared = self._reads.get(key)
        if shared is None:
            shared = self._reads[key] = _Shared()

            def then(answer: Reply | TopicsError) -> None:
                self._reads.pop(key, None)
                if not isinstance(answer, TopicsError):
                    answered(answer.result)  # at once: what the shard sends next may be behind it in the same batch
                shared.settle(answer)

            self.backend.ask(shard, method, params, b"", then)
            self.backend.flush(shard)
        return shared

    def leave(self, reader: Reader) -> None:
        """The reader follows its feed no more; a feed without readers is closed."""
        self._waiting.pop(reader, None)
        feed, reader.feed = reader.feed, None
        reader.is_live = False
        if feed is not None:
            feed.live.pop(reader, None)
            feed.readers.discard(reader)
            if not feed.readers:
                self._drop(feed)
                self.backend.notify(feed.shard, "feed.close", {"feed": feed.number})
                self.backend.flush(feed.shard)

    def _drop(self, feed: Feed) -> None:
        feed.is_open = False
        self._kept.forget(feed)
        self._by_number.pop(feed.number, None)
        if self._feeds.get((feed.topic, feed.view)) is feed:
            del self._feeds[feed.topic, feed.view]

    def wait_for(self, reader: Reader) -> None:
        """The shard cannot serve the reader now: try again when it comes back, or soon."""
        reader.waits = True
        self._waiting[reader] = self.now + RETRY_S

    def _wake(self, reader: Reader) -> None:
        self._waiting.pop(reader, None)
        reader.waits = False
        reader.stream.catch_up()

    def tell_deleted(self, reader: Reader, head_seq: int) -> None:
        """The reader's topic has gone: the end for this topic, not for the stream."""
        stream = reader.stream
        if stream.readers.get(reader.topic) is reader and not stream.ended:
            stream.write(stream.shown_deleted(reader, head_seq))
            stream.remove(reader.topic)

    # What shards say

    def opened(self, shard: int) -> None:
        """As `Listener.opened`."""
        for reader in [reader for reader in self._waiting if reader.shard == shard]:
            self._wake(reader)

    def closed(self, shard: int) -> None:
        """As `Listener.closed`."""
        for feed in [feed for feed in self._by_number.values() if feed.shard == shard]:
            self._drop(feed)
            for reader in list(feed.readers):
                reader.feed, reader.is_live = None, False
                reader.stream.catch_up()

    def event(self, shard: int, name: str, params: dict[str, Any], body: bytes | bytearray | memoryview) -> None:
        """As `Listener.event`."""
        feed = self._by_number.get(params["feed"])
        if feed is None:
            return
        if name == "feed.ended":
            self._drop(feed)
            for reader in list(feed.readers):
                reader.feed, reader.is_live = None, False
                if params.get("error"):
                    reader.stream.catch_up()
                else:
                    reader.stream.attempt(self.tell_deleted, reader, params["head_seq"])
            return
        self.backend.notify(shard, "feed.taken", {"feed": feed.number})
        page = Page(feed.topic, params, bytes(body))
        feed.seq, feed.head_seq = page.to_seq, page.head_seq
        self._kept.keep(feed, page)
        for reader in list(feed.live):
            stream = reader.stream
            if page.to_seq <= reader.seq:
                continue
            if stream.is_stalled or reader.seq != page.follows_seq:
                feed.live.pop(reader, None)
                reader.is_live = False
                stream.catch_up()
            else:
                stream.attempt(stream.show, reader, page)


class _Shared:
    """An answer that several readers wait for."""

    def __init__(self) -> None:
        self.page: Page | None = None
        self._done = trio.Event()
        self._answer: tuple[dict[str, Any], bytes] | TopicsError

    def settle(self, answer: Reply | TopicsError) -> None:
        if isinstance(answer, TopicsError):
            self._answer = answer
        else:
            self._answer = answer.result, bytes(answer.body)
            answer.release()
        self._done.set()

    async def wait(self) -> tuple[dict[str, Any], bytes]:
        await self._done.wait()
        if isinstance(self._answer, TopicsError):
            raise self._answer
        return self._answer


def _too_many(limit: str, most: int) -> Throttled:
    return Throttled("there are too many streams and sockets", limit=limit, max=most, retry_after_ms=1000)


def _ignore(_: dict[str, Any]) -> None:
    pass
