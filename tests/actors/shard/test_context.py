"""Tests of the shard context: the checks of every request, and the expiry before each reply."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.shard import ShardHarness
from topics.actors.link.liveness import DISK_STALLED
from topics.actors.shard.context import Clock
from topics.engine.now import Now
from topics.errors import NotReady, TopicNotFound
from topics.formats.disk.frames import FrameKind
from topics.storage.disk import Damaged


async def test_records_that_expired_before_the_start_was_logged_are_reported_later(
    harness: ShardHarness,
) -> None:
    harness.make("a", ttl_ms=1000)
    harness.append("a", 1)
    harness.synced()
    harness.answers()
    harness.loop.context.disk_space.unwritten = [object()]  # type: ignore[list-item]
    now = harness.loop.context.now
    harness.loop.context.now = Now(now.ts + 5000, now.ms + 5000)
    assert harness.seqs("a") == []
    harness.loop.context.disk_space.unwritten = []
    before = harness.log.next_lsn
    assert harness.seqs("a") == []
    assert [frame.kind for lsn, frame in harness.log.frames.items() if lsn >= before] == [
        FrameKind.FLOOR
    ]


async def test_a_damaged_topic_can_still_be_used(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.make("a", ttl_ms=1000)
    context = harness.loop.context
    reported: list[Damaged] = []

    def expire(*_: Any) -> None:
        raise Damaged(harness.log.folder, 0, "a bad checksum")

    monkeypatch.setattr(context.engine, "expire", expire)
    monkeypatch.setattr(context.store, "report", reported.append)
    assert context.find_topic("a").name == "a"
    assert [damage.reason for damage in reported] == ["a bad checksum"]
    with pytest.raises(TopicNotFound):
        context.find_topic("b")


async def test_writes_to_a_stalled_disk_are_refused_with_the_reason(harness: ShardHarness) -> None:
    harness.loop.context.check_writable(grows=True)
    harness.loop.context.disk.is_stalled = True
    with pytest.raises(NotReady) as refused:
        harness.loop.context.check_writable()
    assert refused.value.detail == {"reason": DISK_STALLED}


async def test_without_space_only_growing_requests_are_refused(harness: ShardHarness) -> None:
    harness.log.lacks_space = True
    harness.loop.context.check_writable(grows=False)
    with pytest.raises(NotReady):
        harness.loop.context.check_writable(grows=True)


async def test_requests_that_waited_for_a_topic_are_handled_in_order_in_a_separate_iteration(
    harness: ShardHarness,
) -> None:
    context = harness.loop.context
    order: list[tuple[object, int]] = []
    requests: list[Any] = [
        SimpleNamespace(number=number, is_open=True, session=SimpleNamespace(closed=False))
        for number in range(3)
    ]
    context.now = Now(0, 0)
    context.end_iteration = lambda: order.append(("end", 0))

    def handle(request: Any) -> None:
        order.append((context.now.ts > 0, request.number))

    context.held.hold("a")
    for request in requests[1:]:
        assert context.held.defer_if_held("a", handle, request)
    context.release_topic("a", (handle, requests[0]))
    assert order == [(True, 0), (True, 1), (True, 2), ("end", 0)]


def test_both_clocks_stay_in_step_until_the_wall_clock_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read_clock(wall_ms: float, ms: float) -> Now:
        monkeypatch.setattr("time.time_ns", lambda: round(wall_ms * 1_000_000))
        monkeypatch.setattr("time.monotonic_ns", lambda: round(ms * 1_000_000))
        return clock()

    clock = Clock()
    assert read_clock(5000.9, 7.2) == Now(5000, 7)
    assert read_clock(5001.2, 7.5) == Now(5001, 8)
    assert read_clock(5011.0, 17.3) == Now(5011, 18)
    assert read_clock(5012.6, 17.4) == Now(5011, 18)
    assert read_clock(1400.0, 27.0) == Now(1400, 27)
