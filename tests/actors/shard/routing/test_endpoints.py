"""Ends of routers: topics that are there, or are made."""

from __future__ import annotations

import errno
import os

from tests.support.quota import Caps
from tests.support.shard import Desk
from topics.formats.disk.frames import FrameKind
from topics.formats.wire.calls import ROUTER_ENDPOINT, EndpointParams, EndpointResult
from topics.formats.wire.envelope import Failure, Success, decode


def ask(desk: Desk, topic: str, *, create: bool = False, place_until_ms: int = 0) -> None:
    desk.ask(ROUTER_ENDPOINT, EndpointParams(topic, create, place_until_ms))


def results(desk: Desk) -> list[EndpointResult | str]:
    found: list[EndpointResult | str] = []
    for frame in desk.wire.take():
        answer = decode(frame.payload)
        if isinstance(answer, Failure):
            found.append(answer.data["code"])
        else:
            assert isinstance(answer, Success)
            found.append(ROUTER_ENDPOINT.result._make(answer.result))
    return found


def expected(desk: Desk, name: str, head_seq: int) -> EndpointResult:
    topic = desk.engine.topic(name)
    return EndpointResult(topic.id, topic.epoch, head_seq)


async def test_a_topic_that_is_there_is_told_at_once_with_what_is_committed(desk: Desk) -> None:
    desk.make("a")
    desk.append("a", 1, 2)
    desk.written()
    desk.answers()
    desk.append("a", 3)
    ask(desk, "a", create=True)
    ask(desk, "a")
    assert results(desk) == [expected(desk, "a", 2)] * 2


async def test_a_topic_that_is_held_is_told_at_once(desk: Desk) -> None:
    desk.make("a")
    desk.loop.context.held.take("a")
    ask(desk, "a", create=True)
    assert results(desk) == [expected(desk, "a", 0)]


async def test_a_topic_that_is_absent_is_none(desk: Desk) -> None:
    ask(desk, "a")
    assert results(desk) == [EndpointResult(0, 0, 0)]
    assert not desk.engine.topics
    assert not desk.log.frames


async def test_a_topic_that_is_made_is_told_when_it_is_synced(desk: Desk) -> None:
    ask(desk, "a", create=True)
    ask(desk, "a")
    assert [frame.kind for frame in desk.log.frames.values()] == [FrameKind.TOPIC]
    desk.written()
    assert results(desk) == []
    desk.synced()
    assert results(desk) == [expected(desk, "a", 0)] * 2


async def test_a_topic_that_could_not_be_made_is_none(desk: Desk) -> None:
    ask(desk, "a", create=True)
    ask(desk, "a")
    desk.failed(OSError(errno.EIO, os.strerror(errno.EIO)))
    assert results(desk) == ["not_ready"] * 2
    ask(desk, "a", create=True)
    ask(desk, "a")
    assert results(desk) == ["not_ready", EndpointResult(0, 0, 0)]


async def test_a_place_is_taken_as_long_as_it_is_kept(desk: Desk) -> None:
    caps = Caps(desk.engine, max_topics=1)
    caps.topics.others = 1  # kept for this end
    now_ms = desk.loop.context.now.ms
    ask(desk, "late", create=True, place_until_ms=now_ms - 1)
    ask(desk, "a", create=True, place_until_ms=now_ms + 60_000)
    desk.synced()
    assert results(desk) == ["throttled", expected(desk, "a", 0)]
    assert caps.topics.own == 1
