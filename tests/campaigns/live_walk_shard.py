"""A shard of a few lines: topics are a head and a floor, and messages take their time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from tests.support.live_desk import Said, tell
from topics.errors import NotReady, TopicNotFound
from topics.formats.json_text import json_bytes
from topics.formats.wire import calls
from topics.formats.wire.contract import Call, Event, P, R
from topics.front.live.live import Live

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
        fields = {
            "from_seq": from_seq,
            "to_seq": to_seq,
            "head_seq": self.head,
            "earliest_seq": self.floor + 1,
            "record_count": len(seqs),
            "tombstone": tombstone,
        }
        return fields, b",".join(
            json_bytes({"$seq": seq, "epoch": self.epoch, "data": "x" * self.size}) for seq in seqs
        )

    def _gap(self, gap_from: int, gap_to: int, reason: str) -> dict[str, Any]:
        return {
            "gap_from": gap_from,
            "gap_to": gap_to,
            "reason": reason,
            "earliest_seq": self.floor + 1,
            "head_seq": self.head,
        }


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
        self,
        shard: int,
        call: Call[P, R],
        params: Any,
        body: bytes,
        then: Callable[[Any], None],
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
