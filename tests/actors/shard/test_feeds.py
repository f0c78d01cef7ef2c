"""Feeds: every page follows on the one before, holds what a diff would give, and waits in the topic
while the front is busy.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
import structlog
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from tests.actors.shard.sealing.sealing_support import FILE_BYTES
from tests.support.shard import LIMITS, Desk
from topics.actors.link.board import Board
from topics.actors.link.link import Link
from topics.actors.link.link_memory import LinkMemory, LinkSizes
from topics.actors.link.process_id import front_id, shard_id
from topics.actors.rpc import typed_calls
from topics.actors.rpc.inbound import InboundMessage
from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.session import LinkSession
from topics.actors.shard import feeds
from topics.actors.shard.context import clock
from topics.actors.shard.loop import ShardLoop
from topics.config import Settings
from topics.engine import reading
from topics.engine.now import Now
from topics.engine.store import EXTENT
from topics.formats.api.requests import json_bytes
from topics.formats.wire.calls import (
    APPEND,
    CALLS,
    EVENTS,
    FEED_CLOSE,
    FEED_OPEN,
    FEED_PAGE,
    FEED_READ,
    FEED_TAKEN,
    TOPIC_HEADS,
    AppendParams,
    FeedCloseParams,
    FeedOpenParams,
    FeedPageParams,
    FeedReadParams,
    FeedTakenParams,
    FeedView,
    TopicHeadsParams,
)
from topics.formats.wire.contract import Event
from topics.formats.wire.envelope import Notification, Success, decode
from topics.formats.wire.message import MessageFrame
from topics.storage.disk import Damaged
from topics.storage.recovery import recover
from topics.storage.wal.file import NoRoom

VIEW = FeedView([], tags=False, meta=True, data=True, limit=256, bytes=1 << 20, strong=False)
BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))
FULL = NoRoom(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Front(Desk):
    """A front with feeds. ``take`` sorts what the shard has sent; nothing is pumped before `turn`,
    `written` or `synced`.
    """

    def open(self, topic: str, feed: int = 1, **view: Any) -> int:
        return self.ask(FEED_OPEN, FeedOpenParams(feed, topic, VIEW._replace(**view)))

    def make(self, topic: str, **config: Any) -> None:
        self.wire.take()
        super().make(topic, **config)

    def feed_read(
        self,
        topic: str,
        from_seq: int = 0,
        until_seq: int | None = None,
        epoch: int | None = None,
        **view: Any,
    ) -> int:
        params = FeedReadParams(topic, VIEW._replace(**view), from_seq, until_seq, epoch)
        return self.ask(FEED_READ, params)

    def close(self, feed: int = 1) -> None:
        self.tell(FEED_CLOSE, FeedCloseParams(feed))

    def taken(self, feed: int = 1) -> None:
        self.tell(FEED_TAKEN, FeedTakenParams(feed))

    def turn(self) -> None:
        """What the actor does after each batch of messages."""
        self.loop.context.now = self.commits.now()
        self.loop.end_turn()

    def written(self) -> OSError | None:
        error = super().written()
        self.turn()
        return error

    def synced(self) -> OSError | None:
        error = super().synced()
        self.turn()
        return error

    def events(self) -> list[dict[str, Any]]:
        """Pages (their records decoded) and ends since the last call; answers are dropped."""
        return [found for found in map(_told, self.wire.take()) if "answer" not in found]

    def answer(self) -> dict[str, Any]:
        """The one answer since the last call."""
        (found,) = (found for found in map(_told, self.wire.take()) if "answer" in found)
        return found

    def pages(self, feed: int = 1) -> list[list[int]]:
        """Seqs of each page of a feed."""
        return [seqs(event) for event in self.events() if event["feed"] == feed]

    def everything(self, feed: int = 1) -> list[dict[str, Any]]:
        """All pages of a feed until it is at its head, each taken at once."""
        found: list[dict[str, Any]] = []
        while events := self.events():
            for event in events:
                found.append(event)
                self.taken(feed)
            self.turn()
        return found


def _told(frame: MessageFrame) -> dict[str, Any]:
    envelope = decode(frame.payload)
    records = {"records": msgspec.json.decode(b"[%b]" % bytes(frame.attachment))}
    if isinstance(envelope, Notification):
        (event,) = (event for event in EVENTS if event.subject == frame.subject)
        told = {"event": envelope.method, **_fields(event.params_of(envelope.params))}
        return told | (records if event is FEED_PAGE else {})
    if isinstance(envelope, Success):
        (call,) = (call for call in CALLS if call.subject == frame.subject)
        return {"answer": envelope.cid, **_fields(call.result_of(envelope.result)), **records}
    return {"answer": 0, "code": envelope.data["code"]}  # type: ignore[union-attr]


def _fields(params: Any) -> dict[str, Any]:
    """By the names of the API; without an error that is none."""
    fields: dict[str, Any] = params._asdict()
    if "record_count" in fields:
        fields["count"] = fields.pop("record_count")
    return {name: value for name, value in fields.items() if name != "error" or value}


def seqs(page: dict[str, Any]) -> list[int]:
    found = [record["$seq"] for record in page["records"]]
    assert page["count"] == len(found)
    return found


def contiguous(pages: list[dict[str, Any]], start: int) -> int:
    """Check that there is no hole; where they end."""
    for page in pages:
        assert page["from_seq"] == start < page["to_seq"] <= page["head_seq"]
        assert all(start < seq <= page["to_seq"] for seq in seqs(page))
        start = page["to_seq"]
    return start


@pytest.fixture
def front(tmp_path: Path, nursery: trio.Nursery) -> Iterator[Front]:
    return Front(tmp_path, nursery)


# Following the head


async def test_a_feed_begins_at_the_head_and_gives_what_is_committed_from_then_on(
    front: Front,
) -> None:
    front.make("a")
    front.append("a", "before")
    front.written()
    front.wire.take()
    front.open("a", 7)
    topic = front.engine.topic("a")
    assert front.answer() == {
        "answer": front._cid,
        "head_seq": 1,
        "earliest_seq": 1,
        "epoch": topic.epoch,
        "records": [],
    }
    front.turn()
    assert front.events() == []
    front.append("a", "x", {"y": [1]})
    front.flush()
    front.turn()
    assert front.events() == []  # not committed yet
    front.written()
    assert front.events() == [
        {
            "event": "feed.page", "feed": 7, "from_seq": 1, "to_seq": 3, "head_seq": 3, "earliest_seq": 1, "count": 2, "tombstone": None,
            "records": [{"$seq": 2, "$ts": topic.last_ts, "data": "x"}, {"$seq": 3, "$ts": topic.last_ts, "data": {"y": [1]}}],
        }
    ]  # fmt: skip
    front.append("b", 1)
    front.written()
    assert front.events() == []


async def test_two_pages_are_under_way_and_what_comes_meanwhile_makes_the_next_one_longer(
    front: Front,
) -> None:
    front.make("a")
    front.open("a")
    for number in range(5):
        front.append("a", number)
        front.written()
    assert front.pages() == [[1], [2]]
    front.taken()
    front.turn()
    assert front.pages() == [[3, 4, 5]]
    front.append("a", "more")
    front.written()
    front.turn()
    assert front.pages() == []
    front.taken()
    front.taken()
    front.taken()  # one too often: that gives no third page
    front.turn()
    assert front.pages() == [[6]]
    for number in range(3):
        front.append("a", number)
        front.written()
    assert front.pages() == [[7]]


async def test_writes_of_one_batch_share_a_page_of_at_most_the_views_limit_and_bytes(
    front: Front,
) -> None:
    front.make("a")
    front.open("a", 1)
    front.open("a", 2, limit=3)
    front.open("a", 3, bytes=1)
    for number in range(4):
        front.append("a", number)
    front.append("a", 4, 5)
    front.written()
    events = front.events()
    assert [(event["feed"], seqs(event)) for event in events if "records" in event] == [
        (1, [1, 2, 3, 4, 5, 6]), (2, [1, 2, 3]), (2, [4, 5, 6]), (3, [1]), (3, [2]),
    ]  # fmt: skip


async def test_a_filtered_record_moves_the_page_on_without_being_in_it(front: Front) -> None:
    front.make("a")
    front.open("a", nodes=["me"])
    front.append("a", "mine", node="me")
    front.written()
    (page,) = front.events()
    assert (page["from_seq"], page["to_seq"], page["count"], page["records"]) == (0, 1, 0, [])
    front.append("a", "mine", node="me")
    front.append("a", "yours", node="you")
    front.append("a", "mine", node="me")
    front.written()
    (page,) = front.events()
    assert (page["from_seq"], page["to_seq"], seqs(page)) == (1, 4, [3])


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize("tags", [True, False])
@pytest.mark.parametrize("meta", [True, False])
async def test_a_view_says_what_a_record_shows(
    front: Front, data: bool, tags: bool, meta: bool
) -> None:
    front.make("a")
    front.open("a", data=data, tags=tags, meta=meta)
    front.append("a", records=[{"data": 1, "tag": "t", "meta": {"m": 1}, "node": "n"}, {"data": 2}])
    front.written()
    (page,) = front.events()
    ts = front.engine.topic("a").last_ts
    first: dict[str, Any] = {"$seq": 1, "$ts": ts, "$node": "n"}
    first |= (
        ({"$tag": "t"} if tags else {})
        | ({"data": 1} if data else {})
        | ({"meta": {"m": 1}} if data and meta else {})
    )
    second = {"$seq": 2, "$ts": ts} | ({"data": 2} if data else {})
    assert [list(record.items()) for record in page["records"]] == [
        list(first.items()),
        list(second.items()),
    ]


async def test_a_feed_of_an_ephemeral_topic_gets_what_never_sees_the_log(front: Front) -> None:
    front.make("a", durability="ephemeral")
    front.open("a", strong=True)
    front.append("a", 1, 2)
    front.turn()
    assert front.pages() == [[1, 2]]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.lists(st.sampled_from([None, "me", "you"]), min_size=1, max_size=4),
        ),
        st.tuples(st.just("delete"), st.integers(0, 12)),
        st.sampled_from([("write", 0), ("sync", 0), ("taken", 0), ("turn", 0)]),
    ),
    max_size=30,
)


@pytest.mark.slow
@given(
    operations=OPERATIONS,
    cap=st.sampled_from([0, 0, 3]),
    durability=st.sampled_from(["ephemeral", "memory", "disk", "fsync"]),
    view=st.fixed_dictionaries(
        {
            "limit": st.sampled_from([1, 2, 256]),
            "nodes": st.sampled_from([[], ["me"]]),
            "strong": st.booleans(),
            "data": st.booleans(),
        }
    ),
)
def test_whatever_happens_pages_have_no_hole_and_tell_of_all_that_was_lost(
    tmp_path_factory: pytest.TempPathFactory,
    operations: list[tuple[str, Any]],
    cap: int,
    durability: str,
    view: dict[str, Any],
) -> None:
    async def run() -> None:
        async with trio.open_nursery() as nursery:
            front = Front(tmp_path_factory.mktemp("feeds"), nursery)
            front.make("a", durability=durability, cap_records=cap)
            front.open("a", **view)
            front.wire.take()
            nodes: dict[int, str | None] = {}
            pages: list[dict[str, Any]] = []
            under_way, deleted = 0, 0
            for step, what in operations:
                if step == "append":
                    nodes |= enumerate(what, len(nodes) + 1)
                    front.append(
                        "a",
                        records=[
                            {"data": 1} if node is None else {"data": 1, "node": node}
                            for node in what
                        ],
                    )
                elif step == "delete":
                    topic = front.engine.topic("a")
                    front.commits.submit(
                        front.engine.delete_records("a", what, None, front.commits.now()), None
                    )
                    deleted = max(deleted, min(what, topic.head_seq + 1))
                elif step == "write":
                    front.written()
                elif step == "sync":
                    front.synced()
                elif step == "taken":
                    front.taken()
                    under_way = max(under_way - 1, 0)
                else:
                    front.turn()
                new = front.events()
                under_way += len(new)
                assert under_way <= 2
                if new and view["strong"]:
                    assert (
                        new[-1]["to_seq"] == new[-1]["head_seq"]
                        or len(new[-1]["records"]) == view["limit"]
                        or new[-1]["count"] == 0
                    )
                pages += new
            front.synced()
            for _ in range(2):
                front.taken()
            front.turn()
            pages += front.everything()
            assert contiguous(pages, 0) == front.engine.topic("a").head_seq == len(nodes)
            shown = {seq for page in pages for seq in seqs(page)}
            lost = {
                seq
                for page in pages
                if (gap := page["tombstone"])
                for seq in range(gap["gap_from"], gap["gap_to"] + 1)
            }
            for page in pages:
                assert (
                    page["tombstone"] is None
                    or page["from_seq"] < page["tombstone"]["gap_to"] <= page["to_seq"]
                )
            for seq, node in nodes.items():
                assert seq in shown or seq in lost or node in view["nodes"] or seq < deleted
                assert seq not in shown or node not in view["nodes"]
            nursery.cancel_scope.cancel()

    trio.run(run)


# Loss


async def test_what_a_cap_took_from_a_lagging_feed_is_a_tombstone_of_its_next_page(
    front: Front,
) -> None:
    front.make("a", cap_records=2)
    front.open("a")
    for number in range(8):
        front.append("a", number)
        front.written()
    assert front.pages() == [[1], [2]]
    front.taken()
    front.turn()
    (page,) = front.events()
    assert page["tombstone"] == {
        "gap_from": 3, "gap_to": 6, "reason": "cap", "missed_estimate": 4, "earliest_seq": 7, "head_seq": 8,
    }  # fmt: skip
    assert (page["from_seq"], page["to_seq"], seqs(page)) == (2, 8, [7, 8])


async def test_age_is_looked_at_before_a_page_is_made(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = Now(10**12, 10**6)
    front.loop.context.clock = lambda: now
    front.commits.now = lambda: now
    front.make("a", ttl_ms=100)
    front.open("a")
    for number in range(4):
        front.append("a", number)
        front.written()
    assert front.pages() == [[1], [2]]
    now = Now(now.ts + 101, now.ms + 101)
    front.turn()
    front.append("a", "young")
    front.written()
    front.taken()
    front.turn()
    (page,) = front.events()
    assert (
        page["tombstone"]["gap_from"],
        page["tombstone"]["gap_to"],
        page["tombstone"]["reason"],
    ) == (3, 4, "ttl")
    assert seqs(page) == [5]


async def test_a_reader_with_a_cursor_of_an_earlier_topic_is_told_so(front: Front) -> None:
    front.make("a")
    front.append("a", 1, 2)
    front.written()
    front.wire.take()
    epoch = front.engine.topic("a").epoch
    front.feed_read("a", 1, epoch=epoch - 1)
    answer = front.answer()
    assert (answer["from_seq"], answer["to_seq"], seqs(answer), answer["epoch"]) == (
        0,
        2,
        [1, 2],
        epoch,
    )
    assert (
        answer["tombstone"]["reason"],
        answer["tombstone"]["gap_from"],
        answer["tombstone"]["gap_to"],
    ) == ("recreated", 1, 2)
    front.feed_read("a", 3)
    assert front.answer()["tombstone"]["reason"] == "recreated"
    front.feed_read("a", 1, epoch=epoch)
    answer = front.answer()
    assert (answer["tombstone"], seqs(answer)) == (None, [2])


# Readers behind a feed


async def test_a_reader_behind_a_feed_gets_nothing_past_the_seq_that_it_names(front: Front) -> None:
    front.make("a")
    front.append("a", 1, 2, 3)
    front.append("a", 4, 5, 6)
    front.written()
    front.wire.take()
    for from_seq, until_seq in itertools.product(range(8), repeat=2):
        front.feed_read("a", from_seq, until_seq, epoch=front.engine.topic("a").epoch)
        answer = front.answer()
        assert seqs(answer) == [*range(from_seq + 1, min(until_seq, 6) + 1)]
        assert (answer["to_seq"], answer["head_seq"]) == (
            max(min(until_seq, 6), min(from_seq, 6)),
            6,
        )
    front.feed_read("a", 1, limit=2)
    answer = front.answer()
    assert (seqs(answer), answer["from_seq"], answer["to_seq"]) == ([2, 3], 1, 3)


async def test_a_gap_that_goes_past_the_seq_that_the_reader_names_is_told_whole(
    front: Front,
) -> None:
    front.make("a", cap_records=2)
    front.append("a", *range(10))
    front.written()
    front.wire.take()
    front.feed_read("a", 1, until_seq=5)
    answer = front.answer()
    assert (
        seqs(answer),
        answer["to_seq"],
        answer["tombstone"]["gap_from"],
        answer["tombstone"]["gap_to"],
    ) == ([9, 10], 10, 2, 8)


async def test_a_read_that_has_too_much_to_pass_over_is_answered_with_how_far_it_came(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SCAN_RECORDS_MAX", 3)
    front.make("a")
    for _ in range(8):
        front.append("a", 0, node="me")
    front.append("a", 1)
    front.written()
    front.wire.take()
    ends, seq = [], 0
    while seq < 9:
        front.feed_read("a", seq, nodes=["me"])
        answer = front.answer()
        seq = answer["to_seq"]
        ends.append((seq, answer["count"]))
    assert ends == [(3, 0), (6, 0), (9, 1)]


async def test_heads_of_the_topics_that_are_there(front: Front) -> None:
    front.make("a", cap_records=1)
    front.make("b")
    front.append("a", 1, 2)
    front.written()
    front.wire.take()
    front.ask(TOPIC_HEADS, TopicHeadsParams(["b", "none", "a"]))
    a, b = front.engine.topic("a"), front.engine.topic("b")
    assert front.answer()["heads"] == {"b": [0, 1, b.epoch], "a": [2, 2, a.epoch]}
    assert a.last_read_ts is None


async def test_a_topic_that_is_not_there_is_not_found_and_reading_one_touches_it(
    front: Front,
) -> None:
    for ask in (front.open, front.feed_read):
        ask("a")
        assert front.answer()["code"] == "topic_not_found"
    assert len(front.loop.services.feeds) == 0
    for ask in (front.open, front.feed_read):
        front.make("a")
        ask("a")
        assert front.engine.topic("a").last_read_ts is not None
        front.delete("a")
        front.synced()


# Only what is synced


async def test_a_strong_feed_gives_what_is_synced_and_its_head_is_there_too(front: Front) -> None:
    front.make("a")
    front.append("a", 1, 2)
    front.synced()
    front.append("a", 3)
    front.written()
    front.wire.take()
    front.open("a", 1, strong=True)
    assert front.answer()["head_seq"] == 2
    front.open("a", 2)
    assert front.answer()["head_seq"] == 3
    front.turn()
    front.append("a", 4, 5)
    front.written()
    assert [(event["feed"], seqs(event)) for event in front.events()] == [(2, [4, 5])]
    front.feed_read("a", strong=True)
    answer = front.answer()
    assert (seqs(answer), answer["to_seq"], answer["head_seq"]) == ([1, 2], 2, 2)
    front.synced()
    (page,) = front.events()
    assert (page["feed"], seqs(page), page["from_seq"], page["head_seq"]) == (1, [3, 4, 5], 2, 5)
    front.append("a", 6)
    front.written()
    front.taken()
    front.append("a", 7)  # handed over after the sync began
    front.flush()
    front.log.synced = front.log.written
    front.turn()
    assert [(event["feed"], seqs(event)) for event in front.events()] == [(2, [6]), (1, [6])]


@pytest.mark.parametrize("durability", ["memory", "ephemeral"])
async def test_nothing_waits_for_a_sync_where_none_is_promised(
    front: Front, durability: str
) -> None:
    front.make("a", durability=durability)
    front.open("a", strong=True)
    front.append("a", 1)
    front.written()
    assert front.pages() == [[1]]
    front.feed_read("a", strong=True)
    assert seqs(front.answer()) == [1]


async def test_a_strong_feed_goes_on_when_its_topic_no_longer_promises_a_sync(front: Front) -> None:
    front.make("a")
    front.open("a", strong=True)
    front.append("a", 1)
    front.written()
    assert front.pages() == []
    front.put("a", durability="memory")
    front.synced()
    front.append("a", 2)
    front.written()
    assert front.pages() == [[1], [2]]


async def test_what_a_cap_took_before_it_was_synced_is_a_gap_for_a_strong_feed(
    front: Front,
) -> None:
    front.make("a", cap_records=1)
    front.open("a", strong=True)
    front.append("a", 1)
    front.synced()
    front.append("a", 2)
    front.append("a", 3)
    front.written()
    pages = front.events()
    front.taken()
    front.synced()
    pages += front.events()
    assert contiguous(pages, 0) == 3
    assert [seq for page in pages for seq in seqs(page)] == [1, 3]
    assert [
        (page["tombstone"]["gap_from"], page["tombstone"]["gap_to"])
        for page in pages
        if page["tombstone"]
    ] == [(2, 2)]


# Ends


async def test_a_deleted_topic_ends_its_feeds_at_once(front: Front) -> None:
    front.make("a")
    front.open("a", 1)
    front.open("a", 2)
    front.append("a", 1)
    front.delete("a")
    front.append("a", "of the next one")
    front.written()
    assert [(event["event"], event["feed"]) for event in front.events()] == [
        ("feed.page", 1),
        ("feed.page", 2),
    ]
    front.synced()
    ended = front.events()
    assert ended == [{"event": "feed.ended", "feed": number, "head_seq": 1} for number in (1, 2)]
    assert len(front.loop.services.feeds) == 0
    front.taken(1)
    front.append("a", 2)
    front.written()
    assert front.events() == []


@pytest.mark.parametrize("error", [BROKEN, FULL])
async def test_a_topic_that_was_never_made_ends_its_feeds_too(front: Front, error: OSError) -> None:
    front.make("b")
    front.put("a")
    front.open("a", 1)
    front.open("b", 2)
    front.delete("b")  # undone as well: its feed goes on
    front.wire.take()
    front.failed(error)
    if error is FULL:
        front.failed(error)  # the delete was done once more, by itself
    front.turn()
    assert front.events() == [{"event": "feed.ended", "feed": 1, "head_seq": 0}]
    assert len(front.loop.services.feeds) == 1


async def test_a_closed_feed_gives_nothing_more_and_its_number_is_free(front: Front) -> None:
    front.make("a")
    front.open("a", 1, strong=True)
    front.append("a", 1)
    front.written()
    front.close(1)
    front.synced()
    assert front.events() == []
    front.open("a", 1)
    front.append("a", 2)
    front.written()
    assert front.pages() == [[2]]
    front.make("b")
    front.open("b", 1)  # another one of the same number takes its place
    front.append("a", 3)
    front.append("b", 4)
    front.written()
    assert [seqs(event) for event in front.events()] == [[1]]
    assert len(front.loop.services.feeds) == 1
    assert set(front.loop.services.feeds._table._by_topic) == {front.engine.topic("b").id}


@pytest.mark.parametrize("event", [FEED_TAKEN, FEED_CLOSE], ids=["taken", "closed"])
async def test_events_about_an_unknown_feed_are_ignored(front: Front, event: Event[Any]) -> None:
    with structlog.testing.capture_logs() as logs:
        front.tell(event, event.params(5))
        front.make("a")
        front.open("a", 1)
        front.tell(event, event.params(5))
    front.turn()
    assert (front.events(), logs, len(front.loop.services.feeds)) == ([], [], 1)


async def test_feeds_go_with_their_session(front: Front) -> None:
    front.make("a")
    front.open("a", 1)
    front.open("a", 2, strong=True)
    front.append("a", 1)
    front.written()
    front.wire.take()
    front.session.close()
    store = front.loop.services.feeds
    assert (
        len(store),
        store._table._by_topic,
        store._table._by_session,
        store._due,
        store._unsynced,
        store._changed,
    ) == (0, {}, {}, {}, {}, {})
    front.session = front.loop.open_session("front-0", front.wire)
    front.open("a", 1)
    front.append("a", 2)
    front.written()
    assert front.pages() == [[2]]


async def test_a_front_that_cannot_be_reached_costs_nobody_else_their_page(front: Front) -> None:
    front.make("a")
    front.open("a", 1)
    first, front.wire.broken = front.wire, True
    front.wire = type(first)()
    front.session = front.loop.open_session("front-1", front.wire)
    front.open("a", 1)
    front.append("a", 1)
    front.written()
    assert front.pages() == [[1]]
    assert len(front.loop.services.feeds) == 1


async def test_a_feed_tells_of_damage_and_goes_on_behind_it(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    front.make("a")
    front.open("a", 1)
    locators = []
    for _ in range(3):
        front.flush()
        locators.append(front.log.position)
        front.append("a", 1)
    front.flush()
    front.log.write()
    real = front.commits.store.records

    def records(at: int) -> Any:
        if at == locators[1]:
            raise Damaged(Path("segment"), 5, "test")
        return real(at)

    monkeypatch.setattr(front.commits.store, "records", records)
    front.written()
    front.taken()
    front.written()
    pages = [event for event in front.events() if event["event"] == "feed.page"]
    gaps = [
        gap and (gap["reason"], gap["gap_from"], gap["gap_to"])
        for gap in (page["tombstone"] for page in pages)
    ]
    assert [(page["from_seq"], page["to_seq"], page["count"]) for page in pages] == [
        (0, 1, 1),
        (1, 3, 1),
    ]
    assert gaps == [None, ("damaged", 2, 2)]
    assert len(front.loop.services.feeds) == 1


async def test_records_that_cannot_be_read_for_now_end_the_feeds_that_want_them_and_no_other(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError(errno.EMFILE, "too many")
    front.make("a")
    front.make("b")
    front.open("a", 1)
    front.open("b", 2)
    front.append("a", 1)
    front.flush()
    locator = front.log.position
    front.append("b", 1)
    front.flush()
    front.log.write()
    real = front.commits.store.records

    def records(at: int) -> Any:
        if at < locator:
            raise error
        return real(at)

    monkeypatch.setattr(front.commits.store, "records", records)
    with structlog.testing.capture_logs() as logs:
        front.written()
    assert [(event["event"], event["feed"], event.get("error")) for event in front.events()] == [
        ("feed.ended", 1, "internal"), ("feed.page", 2, None),
    ]  # fmt: skip
    assert [entry["log_level"] for entry in logs] == ["error"]
    assert len(front.loop.services.feeds) == 1


# Giving way


async def test_a_feed_that_finds_nothing_for_long_lets_others_go_first(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SCAN_RECORDS_MAX", 3)
    front.make("a")
    front.open("a", 1, nodes=["me"])
    front.open("a", 2)
    for _ in range(8):
        front.append("a", 0, node="me")
    front.append("a", 1)
    front.written()
    assert [(event["feed"], event["to_seq"], event["count"]) for event in front.events()] == [
        (1, 3, 0),
        (2, 3, 3),
        (2, 6, 3),
    ]
    await wait_all_tasks_blocked()
    assert [(event["feed"], event["to_seq"], event["count"]) for event in front.events()] == [
        (1, 6, 0)
    ]
    front.taken(1)
    front.turn()
    assert [(event["feed"], event["to_seq"], event["count"]) for event in front.events()] == [
        (1, 9, 1)
    ]


async def test_many_feeds_are_served_in_turns_between_which_others_come(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "TURN_COST_MAX", 40 * feeds.PAGE_COST)
    names = [f"t{number}" for number in range(30)]
    for name in names:
        front.make(name)
        for number in range(10):
            front.open(name, hash((name, number)) & 0xFFFFFFFF, limit=number + 1)
    for name in names:
        front.append(name, "x")
    front.wire.take()
    front.written()
    first = front.events()
    assert 30 <= len(first) <= 40
    await wait_all_tasks_blocked()
    rest = front.events()
    assert len({event["feed"] for event in (*first, *rest)}) == len(first) + len(rest) == 300
    assert not front.loop.services.feeds.on_turn()


async def test_a_commit_on_a_topic_without_feeds_marks_nothing(front: Front) -> None:
    front.make("a")
    front.make("b")
    front.open("b")
    front.append("a", 1)
    front.flush()
    front.log.write()
    front.commits.advance()
    assert not front.loop.services.feeds._changed


def forbidden(*_: object) -> NoReturn:
    raise AssertionError("nothing has changed")


async def test_a_feed_is_looked_at_only_when_its_topic_has_changed(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        front.make(name)
    front.open("a")
    front.turn()
    monkeypatch.setattr(feeds, "read", forbidden)
    monkeypatch.setattr(feeds.Feeds, "_send_pages", forbidden)
    for _ in range(3):
        front.append("b", 1)
        front.written()
        front.synced()


# On a real disk


class OnDisk(Front):
    """A shard on a real directory, whose log is followed as the actor does it."""

    def __init__(self, path: Path, nursery: trio.Nursery, boot: str = "first") -> None:
        now = Now(10**12, 10**6)
        shard = recover(path, 0, 1, now, wal_file_bytes=FILE_BYTES, wal_sync_ms=20, boot=boot)
        super().__init__(path, nursery, shard=shard)
        self._following = trio.CancelScope()
        nursery.start_soon(self._follow)

    async def _follow(self) -> None:
        with self._following:
            await self.loop.follow_log()

    async def settled(self) -> None:
        """All is committed."""
        self.turn()
        with trio.fail_after(20):
            while len(self.commits):
                await trio.lowlevel.checkpoint()

    async def end(self) -> None:
        self._following.cancel()
        await wait_all_tasks_blocked()
        self.log.stop()


@pytest.fixture
async def disk(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[OnDisk]:
    front = OnDisk(tmp_path, nursery)
    yield front
    if front.log.writer._thread.is_alive():
        await front.end()


async def test_a_sealed_topic_is_read_on_and_followed(disk: OnDisk) -> None:
    disk.put("a")
    await disk.settled()
    for number in range(60):
        records = [
            {
                "data": "x" * 40,
                "tag": "t",
                "meta": {"m": number},
                "node": "me" if number % 2 else "you",
            },
            {"data": 0},
        ]
        disk.append("a", records=records)
        await disk.settled()
    topic = disk.engine.topic("a")
    disk.wire.take()
    disk.feed_read("a", 3, 101, limit=1000, nodes=["me"])
    before = disk.answer()
    disk.feed_read("a", 3, 101, limit=1000, data=False, tags=True)
    bare = disk.answer()
    with trio.fail_after(20):
        while topic.sealed_seq < 101:
            await disk.loop.services.sealing._round()
    assert any(locator & EXTENT for locator in topic.index.locators())
    disk.feed_read("a", 3, 101, limit=1000, nodes=["me"])
    assert disk.answer() == before | {"answer": disk._cid}
    disk.feed_read("a", 3, 101, limit=1000, data=False, tags=True)
    assert disk.answer() == bare | {"answer": disk._cid}
    assert (before["to_seq"], len(before["records"]), len(bare["records"])) == (101, 74, 98)
    assert bare["records"][0].keys() - {"$node", "$tag"} == {"$seq", "$ts"}
    disk.open("a")
    disk.append("a", "new")
    await disk.settled()
    assert disk.pages() == [[121]]


async def test_a_strong_reader_waits_for_the_regular_sync_and_no_longer(disk: OnDisk) -> None:
    disk.put("a")
    await disk.settled()
    disk.open("a", strong=True)
    seqs_seen: list[int] = []
    with trio.fail_after(20):
        for number in range(20):
            disk.append("a", number)
            disk.turn()
            await trio.lowlevel.checkpoint()
        while len(seqs_seen) < 20:
            disk.turn()
            await trio.lowlevel.checkpoint()
            for event in disk.events():
                assert event["to_seq"] <= event["head_seq"]
                seqs_seen += seqs(event)
                disk.taken()
    assert seqs_seen == [*range(1, 21)]


async def test_what_a_restart_took_is_a_gap_to_the_seq(
    tmp_path: Path, disk: OnDisk, nursery: trio.Nursery
) -> None:
    for durability in ("disk", "ephemeral", "disk"):
        disk.put("a", durability=durability)
        await disk.settled()
        disk.append("a", 1, 2)
        await disk.settled()
    await disk.end()
    front = OnDisk(tmp_path, nursery, "second")
    head = front.engine.topic("a").head_seq
    front.feed_read("a")
    answer = front.answer()
    assert (seqs(answer), answer["to_seq"], answer["tombstone"]) == ([1, 2], 2, None)
    front.feed_read("a", 2, 3)
    answer = front.answer()
    assert (seqs(answer), answer["to_seq"]) == ([5, 6], 6)
    assert (
        answer["tombstone"]["gap_from"],
        answer["tombstone"]["gap_to"],
        answer["tombstone"]["reason"],
    ) == (3, 4, "mixed")
    front.feed_read("a", 3)
    answer = front.answer()
    assert (seqs(answer), answer["tombstone"]["gap_from"], answer["tombstone"]["gap_to"]) == (
        [5, 6],
        4,
        4,
    )
    front.open("a", strong=True)
    assert front.answer()["head_seq"] == head
    front.append("a", 7)
    with trio.fail_after(20):
        while not (events := front.events()):
            front.turn()
            await trio.lowlevel.checkpoint()
    assert (events[0]["from_seq"], events[0]["tombstone"], len(seqs(events[0]))) == (head, None, 1)
    await front.end()


@pytest.mark.parametrize("size", [10, 300_000])
async def test_pages_go_over_a_real_link_short_or_long(
    tmp_path: Path, nursery: trio.Nursery, size: int
) -> None:
    """Three writes: two pages, and the third only when one of them was taken."""
    board = Board.create(shards=1, fronts=1)
    memory = LinkMemory(front_id(0), shard_id(0), LinkSizes.of(Settings()))
    shard = recover(tmp_path, 0, 1, clock(), wal_file_bytes=1 << 20, wal_sync_ms=20)
    stop = trio.Event()
    nursery.start_soon(
        ShardLoop(shard, 0, board, LIMITS).run, [Link(memory, board, shard_id(0))], stop
    )
    router, link = MessageRouter(), Link(memory, board, front_id(0))
    sessions: list[LinkSession] = []
    got, pages = trio.open_memory_channel[tuple[Any, bytes]](10)

    def page(message: InboundMessage, params: FeedPageParams) -> None:
        got.send_nowait((params, bytes(message.attachment)))

    def arrived(frames: list[MessageFrame]) -> None:
        for frame in frames:
            assert router.dispatch(sessions[0], frame) is None

    async def write() -> None:
        body = json_bytes({"records": [{"data": "x" * size}]})
        params = AppendParams("a", None, True, None, 0)
        call = typed_calls.call_soon(sessions[0], APPEND, params, body)
        link.flush()
        await call.wait()

    typed_calls.subscribe(router, FEED_PAGE, page)
    nursery.start_soon(
        link.run,
        lambda: sessions.append(router.open_session("shard-0", link)),
        arrived,
        lambda: None,
    )
    with trio.fail_after(20):
        while not sessions:
            await trio.lowlevel.checkpoint()
        await write()
        call = typed_calls.call_soon(sessions[0], FEED_OPEN, FeedOpenParams(3, "a", VIEW))
        link.flush()
        assert FEED_OPEN.result_of((await call.wait()).result).head_seq == 1
        for _ in range(3):
            await write()
        found = [await pages.receive(), await pages.receive()]
        with pytest.raises(trio.WouldBlock):
            pages.receive_nowait()
        typed_calls.notify(sessions[0], FEED_TAKEN, FeedTakenParams(3))
        link.flush()
        found.append(await pages.receive())
    assert [(params.from_seq, params.to_seq, params.record_count) for params, _ in found] == [
        (1, 2, 1),
        (2, 3, 1),
        (3, 4, 1),
    ]
    assert [msgspec.json.decode(records)["data"] for _, records in found] == ["x" * size] * 3
    stop.set()
    shard.wal.stop()
    nursery.cancel_scope.cancel()
