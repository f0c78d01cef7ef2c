"""Deferred requests: requests for a held topic keep their order, and a retried change is written
alone."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.shard import ShardHarness
from topics.actors.rpc.replies import CONTRACT_ERROR
from topics.actors.shard.held_topics import HeldTopics, handle_late
from topics.errors import TopicNotFound
from topics.formats.disk.frames import FrameKind
from topics.storage.wal.log_file import NoSpace


class Request:
    """A deferred request that records its outcome."""

    subject = "about"

    def __init__(self, *, is_open: bool = True, closed: bool = False) -> None:
        self.is_open, self.session = is_open, SimpleNamespace(closed=closed)
        self.released = 0
        self.codes: list[int] = []

    def release(self) -> None:
        self.released += 1

    def error(self, code: int, *_: Any) -> None:
        self.codes.append(code)


def test_only_requests_for_a_held_topic_wait_and_they_keep_their_order() -> None:
    held, handled = HeldTopics(), list[Any]()
    first, last = requests = Request(), Request()
    deferrable: list[Any] = [*requests]
    assert not held.defer_if_held("a", handled.append, deferrable[0])
    assert not held.defer_call_if_held("a", handled.clear)
    held.hold("a")
    assert held.defer_if_held("a", handled.append, deferrable[0])
    assert held.defer_call_if_held("a", lambda: handled.append("work of the shard"))
    assert held.defer_if_held("a", handled.append, deferrable[1])
    assert not held.defer_if_held("b", handled.append, deferrable[0])
    assert not held.defer_call_if_held("b", handled.clear)
    deferred = held.release("a")
    assert handled == []
    for call in deferred:
        call()
    assert handled == [first, "work of the shard", last]
    assert not held.defer_if_held("a", handled.append, deferrable[0])


def test_a_topic_is_held_once_at_a_time() -> None:
    held = HeldTopics()
    held.hold("a")
    with pytest.raises(AssertionError, match="held once"):
        held.hold("a")
    held.release("a")
    held.hold("a")


@pytest.mark.parametrize(
    ("is_open", "closed"), [(False, False), (True, True)], ids=["timed out", "front disconnected"]
)
def test_a_request_without_a_waiting_caller_is_dropped_and_its_memory_is_freed(
    is_open: bool, closed: bool
) -> None:
    request: Any = Request(is_open=is_open, closed=closed)
    handled: list[Any] = []
    handle_late(handled.append, request)
    assert (handled, request.released, request.codes) == ([], 1, [])


def test_a_deferred_request_that_fails_gets_a_reply_and_its_memory_is_freed() -> None:
    def fail(_: Any) -> None:
        raise TopicNotFound("a")

    request: Any = Request()
    handle_late(fail, request)
    assert (request.released, request.codes) == (1, [CONTRACT_ERROR])


def test_a_deferred_request_keeps_its_memory_for_its_handler() -> None:
    request: Any = Request()
    handled: list[Any] = []
    handle_late(handled.append, request)
    assert (handled, request.released) == ([request], 0)


# Retries


FULL = NoSpace(errno.ENOSPC, os.strerror(errno.ENOSPC))
BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))


async def test_a_retried_change_shares_its_group_with_no_other_change(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    harness.append("a", 1)
    harness.written()
    harness.answers()
    deletion = harness.delete_records("a", before_seq=2)
    harness.failed(FULL)
    before = len(harness.log.groups)
    lost = harness.append("a", 2)
    harness.flush()
    assert len(harness.log.groups) == before + 1
    kinds = [frame.kind for frame in harness.log.frames.values()]
    assert kinds[-2:] == [FrameKind.DELETE, FrameKind.APPEND]
    harness.synced()
    assert harness.answers() == [(deletion, 200), (lost, 200)]


async def test_a_change_that_fails_twice_or_for_another_reason_is_rejected(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    harness.append("a", 1)
    harness.written()
    harness.answers()
    twice = harness.delete_records("a", before_seq=2)
    harness.failed(FULL)
    assert harness.answers() == []
    harness.failed(FULL)
    assert harness.answers() == [(twice, "not_ready")]
    other = harness.delete_records("a", before_seq=2)
    harness.failed(BROKEN)
    assert harness.answers() == [(other, "not_ready")]


async def test_a_request_of_a_disconnected_front_is_not_retried(harness: ShardHarness) -> None:
    harness.make("a")
    harness.append("a", 1)
    harness.written()
    harness.delete_records("a", before_seq=2)
    harness.flush()
    harness.session.close()
    groups = len(harness.log.groups)
    harness.failed(FULL)
    assert len(harness.log.groups) == groups
