"""Tests of feeds: pages are contiguous, and records stay in the topic while the front is busy."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from tests.support.feeds import Front, contiguous, seqs
from topics.actors.shard import feeds
from topics.engine import reading
from topics.engine.changes import delete_records

# Following the head


async def test_a_feed_begins_at_the_head_and_sends_the_records_committed_after_it(
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
    front.end_iteration()
    assert front.events() == []
    front.append("a", "x", {"y": [1]})
    front.flush()
    front.end_iteration()
    assert front.events() == []  # not committed yet
    front.written()
    assert front.events() == [
        {
            "event": "feed.page",
            "feed": 7,
            "from_seq": 1,
            "to_seq": 3,
            "head_seq": 3,
            "earliest_seq": 1,
            "count": 2,
            "tombstone": None,
            "band": 3,
            "is_awaited": False,
            "records": [
                {"$seq": 2, "$ts": topic.last_ts, "data": "x"},
                {"$seq": 3, "$ts": topic.last_ts, "data": {"y": [1]}},
            ],
        }
    ]
    front.append("b", 1)
    front.written()
    assert front.events() == []


def _pages_and_waits(front: Front) -> list[tuple[list[int], bool]]:
    """Return the seqs of each page, and whether the shard waits for the front after it."""
    return [(seqs(event), event["is_awaited"]) for event in front.events()]


async def test_two_pages_are_in_flight_and_the_next_one_contains_all_records_committed_since(
    front: Front,
) -> None:
    front.make("a")
    front.open("a")
    for number in range(5):
        front.append("a", number)
        front.written()
    assert _pages_and_waits(front) == [([1], False), ([2], True)]
    front.taken()
    front.end_iteration()
    assert _pages_and_waits(front) == [([3, 4, 5], True)]
    front.append("a", "more")
    front.written()
    front.end_iteration()
    assert front.pages() == []
    front.taken()
    front.taken()
    front.taken()  # once too often, which allows no third page
    front.end_iteration()
    assert _pages_and_waits(front) == [([6], False)]
    for number in range(3):
        front.append("a", number)
        front.written()
    assert front.pages() == [[7]]


async def test_sending_a_page_counts_as_a_read_of_the_topic(front: Front) -> None:
    front.make("a")
    front.open("a")
    topic = front.engine.topic("a")
    topic.last_read_ms = None
    front.append("a", 1)
    front.written()
    (event,) = front.events()
    assert (topic.effective_priority(front.loop.context.now.ms), event["band"]) == (500, 3)


async def test_writes_of_one_batch_share_a_page_within_the_limit_and_bytes_of_the_view(
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
        (1, [1, 2, 3, 4, 5, 6]),
        (2, [1, 2, 3]),
        (2, [4, 5, 6]),
        (3, [1]),
        (3, [2]),
    ]


NODES = st.lists(st.sampled_from([None, "me", "you"]), min_size=1, max_size=4)
APPENDS, DELETES = (
    st.tuples(st.just("append"), NODES),
    st.tuples(st.just("delete"), st.integers(0, 12)),
)
STEPS = st.sampled_from([("write", 0), ("sync", 0), ("taken", 0), ("end_iteration", 0)])
OPERATIONS = st.lists(st.one_of(APPENDS, DELETES, STEPS), max_size=30)
VIEW = {
    "limit": st.sampled_from([1, 2, 256]),
    "nodes": st.sampled_from([[], ["me"]]),
    "strong": st.booleans(),
    "data": st.booleans(),
}


@pytest.mark.slow
@given(
    operations=OPERATIONS,
    cap=st.sampled_from([0, 0, 3]),
    durability=st.sampled_from(["ephemeral", "memory", "disk", "fsync"]),
    view=st.fixed_dictionaries(VIEW),
)
def test_pages_are_contiguous_and_report_all_lost_records_after_any_operations(
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
            in_flight, deleted = 0, 0
            for step, what in operations:
                if step == "append":
                    nodes |= enumerate(what, len(nodes) + 1)
                    named = [{"node": node} if node else {} for node in what]
                    front.append("a", records=[{"data": 1} | node for node in named])
                elif step == "delete":
                    topic, table = front.engine.topic("a"), front.engine.table
                    remaining = delete_records.remaining_delete(table, "a", what, None)
                    change = delete_records.decide(table, remaining, front.commits.now())
                    front.commits.submit(change, None)
                    deleted = max(deleted, min(what, topic.head_seq + 1))
                elif step == "write":
                    front.written()
                elif step == "sync":
                    front.synced()
                elif step == "taken":
                    front.taken()
                    in_flight = max(in_flight - 1, 0)
                else:
                    front.end_iteration()
                new = front.events()
                in_flight += len(new)
                assert in_flight <= 2
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
            front.end_iteration()
            pages += front.everything()
            assert contiguous(pages, 0) == front.engine.topic("a").head_seq == len(nodes)
            shown = {seq for page in pages for seq in seqs(page)}
            lost = set[int]()
            for page in pages:
                if (gap := page["tombstone"]) is not None:
                    assert page["from_seq"] < gap["gap_to"] <= page["to_seq"]
                    lost |= {*range(gap["gap_from"], gap["gap_to"] + 1)}
            for seq, node in nodes.items():
                assert seq in shown or seq in lost or node in view["nodes"] or seq < deleted
                assert seq not in shown or node not in view["nodes"]
            nursery.cancel_scope.cancel()

    trio.run(run)


# Fairness


async def test_a_feed_without_matching_records_yields_to_other_feeds_after_a_bounded_scan(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pages() -> list[tuple[int, int, int]]:
        return [(event["feed"], event["to_seq"], event["count"]) for event in front.events()]

    monkeypatch.setattr(reading, "SCAN_RECORDS_MAX", 3)
    front.make("a")
    front.open("a", 1, nodes=["me"])
    front.open("a", 2)
    for _ in range(8):
        front.append("a", 0, node="me")
    front.append("a", 1)
    front.written()
    assert pages() == [(1, 3, 0), (2, 3, 3), (2, 6, 3)]
    await wait_all_tasks_blocked()
    assert pages() == [(1, 6, 0)]
    front.taken(1)
    front.end_iteration()
    assert pages() == [(1, 9, 1)]


async def test_many_feeds_are_served_in_several_iterations(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "ITERATION_COST_MAX", 40 * feeds.PAGE_COST)
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
    assert not front.loop.services.feeds.is_due


def forbidden(*_: object) -> NoReturn:
    raise AssertionError("nothing has changed")


async def test_a_feed_is_checked_only_when_its_topic_has_changed(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        front.make(name)
    front.open("a")
    front.end_iteration()
    monkeypatch.setattr(feeds, "read", forbidden)
    monkeypatch.setattr(feeds.Feeds, "_send_pages", forbidden)
    for _ in range(3):
        front.append("b", 1)
        front.written()
        front.synced()
