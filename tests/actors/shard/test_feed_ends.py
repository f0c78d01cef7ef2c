"""Tests of feeds: reports of losses, and the causes that close a feed."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.support.feeds import BROKEN, FULL, Front, gap_of, seqs
from topics.engine.now import Now
from topics.formats.wire.calls import FEED_CLOSE, FEED_TAKEN
from topics.formats.wire.contract import Event
from topics.storage.disk import Damaged

# Loss


async def test_evictions_from_a_lagging_feed_are_reported_in_its_next_page(
    front: Front,
) -> None:
    front.make("a", cap_records=2)
    front.open("a")
    for number in range(8):
        front.append("a", number)
        front.written()
    assert front.pages() == [[1], [2]]
    front.taken()
    front.end_iteration()
    (page,) = front.events()
    assert gap_of(page) == ("cap", 3, 6)
    fields = ("missed_estimate", "earliest_seq", "head_seq")
    assert [page["tombstone"][name] for name in fields] == [4, 7, 8]
    assert (page["from_seq"], page["to_seq"], seqs(page)) == (2, 8, [7, 8])


async def test_age_is_applied_before_a_page_is_read(
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
    front.end_iteration()
    front.append("a", "young")
    front.written()
    front.taken()
    front.end_iteration()
    (page,) = front.events()
    assert (gap_of(page), seqs(page)) == (("ttl", 3, 4), [5])


# Ends


async def test_a_deleted_topic_closes_its_feeds_immediately(front: Front) -> None:
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
async def test_an_undone_topic_closes_its_feeds(front: Front, error: OSError) -> None:
    front.make("b")
    front.put("a")
    front.open("a", 1)
    front.open("b", 2)
    front.delete("b")  # undone as well, so its feed remains open
    front.wire.take()
    front.failed(error)
    if error is FULL:
        front.failed(error)  # the delete is retried alone
    front.end_iteration()
    assert front.events() == [{"event": "feed.ended", "feed": 1, "head_seq": 0}]
    assert len(front.loop.services.feeds) == 1


async def test_a_closed_feed_sends_no_pages_and_its_number_is_free(front: Front) -> None:
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
    front.open("b", 1)  # another feed with the same number replaces it
    front.append("a", 3)
    front.append("b", 4)
    front.written()
    assert [seqs(event) for event in front.events()] == [[1]]
    assert len(front.loop.services.feeds) == 1
    assert set(front.loop.services.feeds._table._by_topic) == {front.engine.topic("b").id}


@pytest.mark.parametrize("event", [FEED_TAKEN, FEED_CLOSE], ids=["taken", "closed"])
async def test_events_about_an_unknown_feed_are_ignored(front: Front, event: Event[Any]) -> None:
    with structlog.testing.capture_logs() as logs:
        front.notify(event, event.params(5))
        front.make("a")
        front.open("a", 1)
        front.notify(event, event.params(5))
    front.end_iteration()
    assert (front.events(), logs, len(front.loop.services.feeds)) == ([], [], 1)


async def test_feeds_are_closed_with_their_session(front: Front) -> None:
    front.make("a")
    front.open("a", 1)
    front.open("a", 2, strong=True)
    front.append("a", 1)
    front.written()
    front.wire.take()
    front.session.close()
    feeds = front.loop.services.feeds
    assert not any((feeds._table._by_topic, feeds._table._by_session))
    assert not any((feeds._due, feeds._unsynced, feeds._changed))
    front.session = front.loop.open_session("front-0", front.wire)
    front.open("a", 1)
    front.append("a", 2)
    front.written()
    assert front.pages() == [[2]]


async def test_an_unreachable_front_does_not_affect_other_feeds(front: Front) -> None:
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


async def test_a_feed_reports_damage_and_continues_after_it(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    front.make("a")
    front.open("a", 1)
    locators = []
    for _ in range(3):
        front.flush()
        locators.append(front.log.next_lsn)
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
    received = [(page["from_seq"], page["to_seq"], page["count"], gap_of(page)) for page in pages]
    assert received == [(0, 1, 1, None), (1, 3, 1, ("damaged", 2, 2))]
    assert len(front.loop.services.feeds) == 1


async def test_temporarily_unreadable_records_end_only_the_feeds_that_need_them(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError(errno.EMFILE, "too many")
    front.make("a")
    front.make("b")
    front.open("a", 1)
    front.open("b", 2)
    front.append("a", 1)
    front.flush()
    locator = front.log.next_lsn
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
        ("feed.ended", 1, "internal"),
        ("feed.page", 2, None),
    ]
    assert [entry["log_level"] for entry in logs] == ["error"]
    assert len(front.loop.services.feeds) == 1
