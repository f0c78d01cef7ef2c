"""Walks through what may happen to a front's streams: ``python -m tests.campaigns.live_walk --walks
1000 --seed 0``.

A shard of a few lines (topics are a head and a floor, messages take their time), clients with small
sockets that read now and then, break off and come back with or without an id. Every client must be
shown every record once and in order, or told of its loss. A walk that fails names its seed.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from tests.campaigns.killer import Summary, program
from tests.support.live_desk import Said, Socket, calm, press, relax, socket_pair, tell
from tests.support.sse import CAUGHT_UP, DELETED, ERROR, RECORD, TOMBSTONE, Decoder, SseEvent
from topics.config import Settings
from topics.engine.access import ANYONE
from topics.errors import NotReady, TopicNotFound
from topics.formats.api.watch import View
from topics.formats.json_text import json_bytes
from topics.formats.wire import calls
from topics.formats.wire.contract import Call, Event, P, R
from topics.front.limits import make_slots
from topics.front.live.live import Live
from topics.front.live.watch_sessions import WatchSession
from topics.front.live.watches import Watches

STEPS = 150
LIMIT = 3
TOPICS = ("t", "u")


class Topic:
    """Its records are those above ``floor``. Each has seqs of its own: an id cannot say which of
    two topics it means.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.head = self.floor = (epoch * 7 - 7) % 50 * 1000
        self.size = 1

    def read(
        self, from_seq: int, until_seq: int | None, epoch: int | None
    ) -> tuple[dict[str, Any], bytes]:
        tombstone, last = None, self.head if until_seq is None else min(until_seq, self.head)
        if epoch not in (None, self.epoch) or (epoch is None and from_seq > self.head):
            tombstone, from_seq = self._gap(1, self.head, "recreated"), 0
        elif from_seq < min(last, self.floor):
            tombstone = self._gap(from_seq + 1, self.floor, "cap")
            last = self.head if self.floor > last else last
        start = max(from_seq, self.floor)
        to_seq = min(start + LIMIT, last) if from_seq < last else min(from_seq, self.head)
        seqs = range(start + 1, to_seq + 1)
        fields: dict[str, Any] = {"from_seq": from_seq, "to_seq": to_seq, "record_count": len(seqs)}
        fields |= {"head_seq": self.head, "earliest_seq": self.floor + 1, "tombstone": tombstone}
        data = "x" * self.size
        rows = (json_bytes({"$seq": n, "epoch": self.epoch, "data": data}) for n in seqs)
        return fields, b",".join(rows)

    def _gap(self, gap_from: int, gap_to: int, reason: str) -> dict[str, Any]:
        told = {"gap_from": gap_from, "gap_to": gap_to, "reason": reason}
        return told | {"earliest_seq": self.floor + 1, "head_seq": self.head}


class Shard:
    """The only one. What is said to it and what it says lies in queues until it is `heard` and
    `told`.
    """

    def __init__(self) -> None:
        self.topics = {name: Topic(1) for name in TOPICS}
        self.epoch = 1
        self.live: Live
        self.is_up = True
        self.to_shard: deque[Callable[[], None]] = deque()
        self.quiet: list[Callable[[], None]] = []  # heard with what comes behind it
        self.to_front: deque[Callable[[], None]] = deque()
        self.asked: dict[object, Callable[[Any], None]] = {}
        self.feeds: dict[int, list[Any]] = {}  # topic, seq, pages under way

    # As `Shards`

    def listen(self, listener: Any) -> None:
        """`Live` is spoken to by name."""

    def shard_of(self, topic: str) -> int:
        return 0

    def notify(self, shard: int, event: Event[P], params: Any, *, quiet: bool = False) -> None:
        if self.is_up and quiet:
            self.quiet.append(lambda: self._notified(event, params.feed))
        elif self.is_up:
            self._say(lambda: self._notified(event, params.feed))

    def call(
        self, shard: int, call: Call[P, R], params: Any, body: bytes, then: Callable[[Any], None]
    ) -> None:
        if not self.is_up:
            then(NotReady("down"))
            return
        number = object()
        self.asked[number] = then
        self._say(lambda: self._asked(number, call, params))

    def _say(self, message: Callable[[], None]) -> None:
        self.to_shard.extend((*self.quiet, message))
        self.quiet.clear()

    # What it does

    def _asked(self, number: object, call: Call[P, R], params: Any) -> None:
        topic = self.topics.get(params.topic)
        answer: Any = TopicNotFound(params.topic)
        if topic is not None and call is calls.FEED_OPEN:
            self.feeds[params.feed] = [params.topic, topic.head, 0]
            answer = Said(calls.FeedOpenResult(topic.head, topic.floor + 1, topic.epoch), b"")
        elif topic is not None:
            fields, body = topic.read(params.from_seq, params.until_seq, params.epoch)
            answer = Said(calls.FeedReadResult(**fields, epoch=topic.epoch), body)
        self.to_front.append(lambda: self.asked.pop(number)(answer))

    def _notified(self, event: Event[P], number: int) -> None:
        feed = self.feeds.get(number)
        if feed is not None and event is calls.FEED_TAKEN:
            feed[2] -= 1
            self.pump()
        elif event is calls.FEED_CLOSE:
            self.feeds.pop(number, None)

    def pump(self) -> None:
        for number, feed in self.feeds.items():
            topic = self.topics[feed[0]]
            while feed[2] < 2 and feed[1] < topic.head:
                fields, body = topic.read(feed[1], None, topic.epoch)
                feed[1], feed[2] = fields["to_seq"], feed[2] + 1
                fields["is_awaited"] = feed[2] == 2
                self._tell("feed.page", {"feed": number, **fields}, body)

    def _tell(self, name: str, params: dict[str, Any], body: bytes = b"") -> None:
        self.to_front.append(lambda: tell(self.live, 0, name, params, body))

    def delete(self, name: str, *, again: bool) -> None:
        head = self.topics.pop(name).head
        for number in [number for number, feed in self.feeds.items() if feed[0] == name]:
            del self.feeds[number]
            self._tell("feed.ended", {"feed": number, "head_seq": head})
        if again:
            self.make(name)

    def make(self, name: str) -> None:
        self.epoch += 1
        self.topics[name] = Topic(self.epoch)

    def die(self) -> None:
        self.is_up = False
        self.to_shard.clear()
        self.to_front.clear()
        self.feeds.clear()
        asked, self.asked = self.asked, {}
        for then in asked.values():
            then(NotReady("died"))
        self.live.feeds.closed(0)

    def rise(self) -> None:
        self.is_up = True
        self.live.feeds.opened(0)


class Client:
    """It knows where it stands in each topic, and holds the server to it."""

    def __init__(self, watches: Watches, nursery: trio.Nursery, session: WatchSession) -> None:
        self._watches, self._nursery, self.session = watches, nursery, session
        self.at: dict[str, tuple[int, int | None]] = dict(session.cursors)
        self.gone: set[str] = set()
        self.caught_up: set[str] = set()  # in this stream
        self.last_id: str | None = None
        self._scope = trio.CancelScope()

    def come(self, *, with_id: bool) -> None:
        ours, self.sock = socket_pair()
        self.caught_up.clear()
        self._decoder = Decoder()
        last_id = (self.last_id or "").encode() if with_id else b""
        self._scope = trio.CancelScope()
        self._nursery.start_soon(self._stream, ours, last_id, self._scope)

    async def _stream(self, ours: Any, last_id: bytes, scope: trio.CancelScope) -> None:
        with scope, ours:
            connection: Any = Socket(ours)
            await self._watches.stream(self.session, connection, last_id)

    def leave(self) -> None:
        self.sock.close()

    def read(self, size: int) -> bool:
        """Whether something came."""
        try:
            piece = self.sock.recv(size)
        except BlockingIOError:
            return False
        for event in self._decoder.feed(piece):
            if event.data is not None:
                self._take(event)
        return bool(piece)

    def _take(self, event: SseEvent) -> None:
        body = event.json()
        if event.event == ERROR and body["code"] == 429:  # it is paced, and goes on
            assert body["topics"]
            return
        name = body["topic"]
        if name in self.gone and event.event == DELETED:
            return
        assert name not in self.gone, f"after the end of {name}: {body}"
        at, epoch = self.at[name]
        if epoch is None or at == 0:
            # Recreated, or nothing of it has come yet: what comes first says where it begins.
            epoch = None
            first = (
                body["records"][0]["$seq"] if "records" in body else body.get("gap_from", at + 1)
            )
            at = body["head_seq"] if event.event == CAUGHT_UP else first - 1
        if event.event == RECORD:
            for record in body["records"]:
                epoch = record["epoch"] if epoch is None else epoch
                assert (record["$seq"], record["epoch"]) == (at + 1, epoch), (
                    f"{name} behind {at, epoch}: {str(body)[:200]}"
                )
                at += 1
            assert body["to_seq"] == at
        elif event.event == TOMBSTONE and body["reason"] == "recreated":
            self.caught_up.discard(name)
            at, epoch = 0, None  # the next record says it
        elif event.event == TOMBSTONE:
            # A stream without an id tells it again when it had come and the records of the same
            # write had not; so does one with an id behind that, as ids lead back only.
            told_twice = body["gap_from"] <= at <= body["gap_to"]
            assert body["gap_from"] == at + 1 or told_twice, f"behind {at}: {body}"
            at = body["gap_to"]
        elif event.event == CAUGHT_UP:
            assert at == body["head_seq"], f"at {at}: {body}"
            self.caught_up.add(name)
        else:
            assert event.event == DELETED, event
            self.gone.add(name)
        self.at[name] = at, epoch
        # The cursor of a topic that is gone leads nowhere: it may lie before a tombstone that came.
        assert event.event == DELETED or event.cursor[name] == at, (
            f"{event} leads elsewhere than {at}"
        )
        self.last_id = event.id


class Walk:
    """One run."""

    def __init__(self, seed: int, nursery: trio.Nursery) -> None:
        self.random, self._nursery = random.Random(seed), nursery
        self.shard = Shard()
        slots, self.pressure = make_slots(Settings(), 100), calm()
        self.live = self.shard.live = Live(self.shard, Settings(), slots, self.pressure)  # type: ignore[arg-type]
        self._watches = Watches(self.live)
        self.clients: list[Client] = []
        self._old: list[Any] = []

    async def run(self, steps: int) -> None:
        self._nursery.start_soon(self.live.run)
        await wait_all_tasks_blocked()
        for _ in range(3):
            session = WatchSession("wid", ANYONE, View(), 15.0, dict.fromkeys(TOPICS, (0, 1)))
            self.clients.append(Client(self._watches, self._nursery, session))
            self.clients[-1].come(with_id=False)
            await wait_all_tasks_blocked()
        weights: dict[Callable[[], None], int] = {
            self.append: 30,
            self.hear: 60,
            self.tell: 60,
            self.read: 40,
            self.evict: 3,
            self.delete: 2,
            self.die: 3,
            self.leave_and_come: 6,
            self.take_over: 2,
            self.press: 4,
        }
        for _ in range(steps):
            (step,) = self.random.choices([*weights], [*weights.values()])
            step()
            # Streams begin in the order of their clients.
            if step in (self.leave_and_come, self.take_over) or self.random.random() < 0.7:
                await wait_all_tasks_blocked()
        await self.settle()
        for client in self.clients:
            client.leave()
        for sock in self._old:
            sock.close()
        await wait_all_tasks_blocked()
        assert not self.live.streams
        assert not self.live.feeds.by_number
        assert not self.live.feeds.kept.size

    # What may happen

    def _topic(self) -> Topic | None:
        return self.shard.topics.get(self.random.choice(TOPICS))

    def append(self) -> None:
        topic = self._topic()
        if topic is not None and self.shard.is_up:
            topic.head += self.random.choice([1, 1, 2, 5])
            topic.size = self.random.choice([1, 1, 100, 20_000])
            self.shard.pump()

    def evict(self) -> None:
        topic = self._topic()
        if topic is not None:
            topic.floor = self.random.randint(topic.floor, topic.head)

    def delete(self) -> None:
        name = self.random.choice(TOPICS)
        if not self.shard.is_up:
            return
        if name in self.shard.topics:
            self.shard.delete(name, again=self.random.random() < 0.7)
        else:
            self.shard.make(name)

    def hear(self) -> None:
        """The shard hears some of what was said to it."""
        self._take_out(self.shard.to_shard)

    def tell(self) -> None:
        """The front hears some of what the shard has said."""
        self._take_out(self.shard.to_front)

    def _take_out(self, queue: deque[Callable[[], None]]) -> None:
        for _ in range(self.random.choice([1, 2, 10])):
            if queue:
                queue.popleft()()

    def read(self) -> None:
        client = self.random.choice(self.clients)
        for _ in range(self.random.choice([1, 10, 1000])):
            if not client.read(self.random.choice([1, 100, 5000])):
                break

    def die(self) -> None:
        self.shard.die() if self.shard.is_up else self.shard.rise()

    def leave_and_come(self) -> None:
        """With an id whatever was on its way is shown again; without one a client must have read
        what left the server, and a write that its socket did not take whole is shown again.
        """
        client = self.random.choice(self.clients)
        stream = client.session.stream
        is_whole = stream is None or stream.outbox.unsent is None
        with_id = client.last_id is not None and (self.random.random() < 0.7 or not is_whole)
        while not with_id and client.read(1 << 20):
            pass
        client.leave()
        client.come(with_id=with_id)

    def take_over(self) -> None:
        client = self.random.choice(self.clients)
        if client.last_id is not None:
            self._old.append(client.sock)
            client.come(with_id=True)

    def press(self) -> None:
        """Pages come late, or in time again."""
        if self.pressure.is_calm:
            press(self.pressure, pace=self.random.choice([0.0, 0.05]))
        else:
            relax(self.pressure)

    # The end

    async def settle(self) -> None:
        """Nothing more happens: everybody comes to the head."""
        if not self.shard.is_up:
            self.shard.rise()
        relax(self.pressure)
        await trio.sleep(0.05)  # what is late comes
        for _ in range(4):
            for client in self.clients:
                # What was lost on the way is told to whoever comes back.
                if client.session.deleted.keys() - client.gone:
                    client.leave()
                    client.come(with_id=client.last_id is not None)
            while await self._carry_everything():
                pass
            if all(map(self._is_served, self.clients)):
                return
            await trio.sleep(0.3)  # who was refused tries again
        raise AssertionError(
            [(client.at, client.gone, client.caught_up) for client in self.clients]
        )

    async def _carry_everything(self) -> bool:
        """Deliver what is under way; whether there was anything."""
        await wait_all_tasks_blocked()
        carried = False
        for queue in (self.shard.to_shard, self.shard.to_front):
            while queue:
                queue.popleft()()
                carried = True
        for client in self.clients:
            while client.read(1 << 20):
                carried = True
        return carried

    def _is_served(self, client: Client) -> bool:
        left = [
            (name, topic) for name, topic in self.shard.topics.items() if name not in client.gone
        ]
        return all(
            name in client.caught_up
            and client.at[name] in ((topic.head, topic.epoch), (topic.head, None))
            for name, topic in left
        )


async def walk(seed: int, steps: int = STEPS) -> None:
    """One run in a nursery of its own. Raises what went wrong."""
    # Tasks that are ready together run in an order of its choice.
    trio._core._run._r.seed(seed)
    async with trio.open_nursery() as nursery:
        await Walk(seed, nursery).run(steps)
        nursery.cancel_scope.cancel()


def campaign(_: Path, *, seed: int, walks: int) -> Summary:
    """Walks of this seed and those behind it."""
    summary = Summary(seed)
    for number in range(seed, seed + walks):
        try:
            trio.run(walk, number)
        except BaseException:
            print(f"walk of seed {number}, {STEPS} steps", flush=True)
            raise
        summary.counts["walks"] += 1
    return summary


if __name__ == "__main__":
    sys.exit(program(__doc__, campaign, walks=1000))
