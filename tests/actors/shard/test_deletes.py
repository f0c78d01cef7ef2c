"""Deletes: without space in the log, of many records, and of topics with routers."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.engine.routing.test_graph import router
from tests.support.shard import ShardHarness
from tests.support.shards import FakeRegistry, Shards
from topics.engine.changes import delete_records
from topics.errors import NotReady
from topics.formats.disk.frames import Frame, FrameKind
from topics.formats.json_text import json_bytes
from topics.formats.wire.calls import ROUTER_CASCADE, ROUTER_OWNER
from topics.storage.wal.log_file import NoSpace

FULL = NoSpace(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_a_failed_delete_leaves_its_topic_unchanged(harness: ShardHarness) -> None:
    harness.make("a", durability="ephemeral")
    harness.append("a", "kept")
    harness.answers()
    deletion = harness.delete("a")
    new = harness.append("a", "of another topic")
    harness.failed(FULL)
    assert harness.answers() == [(new, "not_ready")]
    harness.failed(FULL)  # without the other delete, it could have used the reserve
    assert harness.answers() == [(deletion, "not_ready")]
    assert harness.seqs("a") == [1]
    second = harness.append("a", "next")
    assert harness.answers() == [(second, 200)]
    assert harness.seqs("a") == [1, 2]


async def test_a_delete_that_found_a_full_disk_among_appends_is_retried_alone(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    harness.append("a", 1, 2)
    harness.make("b")
    harness.append("b", 1)
    harness.synced()
    harness.answers()
    records_delete, topic_delete = harness.delete_records("a", before_seq=2), harness.delete("b")
    lost = harness.append("a", "lost")
    harness.failed(FULL)
    assert harness.answers() == [(lost, "not_ready")]
    assert [frame.kind for frame in list(harness.log.frames.values())[-2:]] == [
        FrameKind.DELETE,
        FrameKind.TOPIC_DELETED,
    ]
    harness.synced()
    assert harness.answers() == [(records_delete, 200), (topic_delete, 200)]
    assert harness.seqs("a") == [2]


# Deletes of many records

SLICES = {
    "SLICE_RECORDS": 2,
    "SLICE_ENTRIES": 1,
    "RUN_SHARE": 1,
    "WINDOW_MIN_SEQS": 2,
    "WINDOW_MAX_SEQS": 2,
}


@pytest.fixture
def sliced(harness: ShardHarness, monkeypatch: pytest.MonkeyPatch) -> ShardHarness:
    """A shard whose slices delete two records. Its topic "a" has seven records, and "b" one."""
    for name, value in SLICES.items():
        monkeypatch.setattr(delete_records, name, value)
    harness.make("a", durability="fsync")
    harness.make("b")
    for _ in range(7):
        tagged(harness)
    harness.append("b", 1)
    harness.synced()
    harness.answers()
    return harness


def tagged(harness: ShardHarness, tag: str = "t") -> int:
    return harness.append_raw("a", json_bytes({"records": [{"data": 1, "tag": tag}]}))


def delete_frames(harness: ShardHarness) -> list[Frame]:
    return [frame for frame in harness.log.frames.values() if frame.kind is FrameKind.DELETE]


async def finish(harness: ShardHarness, *numbers: int) -> dict[int, dict[str, Any]]:
    """Sync the log until these requests have replies, and return the replies by number."""
    found: dict[int, dict[str, Any]] = {}
    with trio.fail_after(10):
        while not found.keys() >= {*numbers}:
            await wait_all_tasks_blocked()
            harness.synced()
            found |= dict(harness.bodies())
    return found


@pytest.mark.parametrize(("selector", "slices"), [({"match": "t"}, 4), ({"before_seq": 8}, 7)])
async def test_a_large_delete_gets_one_reply_when_its_last_slice_is_durable(
    sliced: ShardHarness, selector: dict[str, Any], slices: int
) -> None:
    number = sliced.delete_records("a", **selector)
    for done in range(slices - 1):
        assert len(delete_frames(sliced)) == done + 1
        sliced.synced()
        await wait_all_tasks_blocked()
        assert sliced.answers() == []
    sliced.written()
    await wait_all_tasks_blocked()
    assert sliced.answers() == [], "the topic is of a class that is synced"
    sliced.synced()
    await wait_all_tasks_blocked()
    ((answered, body),) = sliced.bodies()
    assert (answered, body["deleted"], body["count"], body["earliest_seq"]) == (number, 7, 0, 8)


@pytest.mark.parametrize("outcome", ["done", "deleted"])
async def test_the_reply_to_a_large_delete_is_sent_in_an_iteration(
    sliced: ShardHarness, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    end_iteration, sent_in_iterations = sliced.loop.context.end_iteration, list[int]()

    def note_end() -> None:
        sent_in_iterations.append(len(sliced.wire.sent))
        end_iteration()

    monkeypatch.setattr(sliced.loop.context, "end_iteration", note_end)
    number = sliced.delete_records("a", match="t")
    deletion = [sliced.delete("a")] if outcome == "deleted" else []
    with trio.fail_after(10):
        while len(sliced.wire.sent) <= len(deletion):
            await wait_all_tasks_blocked()
            sliced.synced()
    assert sent_in_iterations[-1] == len(sliced.wire.sent), "the next iteration may come much later"
    expected = 200 if outcome == "done" else "topic_not_found"
    assert (number, expected) in sliced.answers()


async def test_appends_between_two_slices_are_kept(sliced: ShardHarness) -> None:
    number = sliced.delete_records("a", match="t")
    sliced.synced()
    assert sliced.seqs("a") == [3, 4, 5, 6, 7]
    later, other = tagged(sliced), sliced.append("b", 1)
    sliced.synced()
    assert sorted(sliced.answers()) == [(later, 200), (other, 200)]
    body = (await finish(sliced, number))[number]
    assert (body["deleted"], body["count"], body["head_seq"]) == (7, 1, 8)
    assert sliced.seqs("a") == [8]


async def test_two_large_deletes_of_the_same_records_count_each_record_once(
    sliced: ShardHarness,
) -> None:
    numbers = [sliced.delete_records("a", match=match) for match in ("t", ["tag", "Glob", "*"])]
    answers = await finish(sliced, *numbers)
    assert sum(answers[number]["deleted"] for number in numbers) == 7
    assert sliced.seqs("a") == []


async def test_a_small_delete_does_not_wait_for_a_large_one(sliced: ShardHarness) -> None:
    number = sliced.delete_records("a", match="t")
    sliced.synced()
    await wait_all_tasks_blocked()
    small = sliced.delete_records("b", before_seq=2)
    sliced.synced()
    assert sliced.answers() == [(small, 200)]
    assert (await finish(sliced, number))[number]["deleted"] == 7


async def test_the_delete_of_a_topic_ends_a_large_delete_of_its_records(
    sliced: ShardHarness,
) -> None:
    number = sliced.delete_records("a", match="t")
    sliced.synced()
    deletion = sliced.delete("a")
    assert (await finish(sliced, number, deletion))[number]["code"] == "topic_not_found"


async def test_a_large_delete_continues_after_a_failed_delete_of_its_topic(
    sliced: ShardHarness,
) -> None:
    number = sliced.delete_records("a", match="t")
    sliced.synced()
    deletion, other = sliced.delete("a"), sliced.append("b", 1)
    sliced.failed(FULL)
    await wait_all_tasks_blocked()
    sliced.failed(FULL)  # By itself it could have used the reserve
    answers = await finish(sliced, number)
    assert answers[deletion]["code"] == answers[other]["code"] == "not_ready"
    assert (answers[number]["deleted"], sliced.seqs("a")) == (7, [])


async def test_a_slice_that_found_a_full_disk_is_retried(sliced: ShardHarness) -> None:
    number = sliced.delete_records("a", match="t")
    sliced.synced()
    await wait_all_tasks_blocked()
    sliced.failed(FULL)
    assert (await finish(sliced, number))[number]["deleted"] == 7
    tagged(sliced)
    for _ in range(2):
        tagged(sliced)
    sliced.synced()
    number = sliced.delete_records("a", match="t")
    sliced.synced()
    for _ in range(2):
        await wait_all_tasks_blocked()
        sliced.failed(FULL)
    await wait_all_tasks_blocked()
    assert sliced.answers()[-1] == (number, "not_ready")
    assert sliced.seqs("a") == [10], "the first slice remains deleted"


async def test_a_slice_of_a_capped_topic_is_decided_while_no_change_is_pending(
    sliced: ShardHarness,
) -> None:
    """Otherwise a replay would evict other records than the shard did."""
    sliced.put("a", cap_records=6)
    sliced.synced()
    sliced.answers()
    number = sliced.delete_records("a", match="t")
    sliced.synced()
    assert sliced.seqs("a") == [4, 5, 6, 7]
    tagged(sliced)
    sliced.flush()
    await wait_all_tasks_blocked()
    late = tagged(sliced)
    await wait_all_tasks_blocked()
    assert len(delete_frames(sliced)) == 1, "the append is in flight"
    answers = await finish(sliced, number, late)
    assert (answers[number]["deleted"], sliced.seqs("a")) == (6, [8, 9])


async def test_a_large_delete_waits_for_a_held_topic(sliced: ShardHarness) -> None:
    number = sliced.delete_records("a", match="t")
    sliced.loop.context.held.hold("a")  # As a streamed append does
    sliced.synced()
    await wait_all_tasks_blocked()
    sliced.synced()
    assert sliced.seqs("a") == [3, 4, 5, 6, 7]
    sliced.loop.context.release_topic("a")
    assert (await finish(sliced, number))[number]["deleted"] == 7


# Topics with routers


@pytest.fixture
async def routed(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[Shards]:
    """Three shards with a router from "c" in the second to "b" in the third."""
    shards = Shards(tmp_path, nursery)
    await shards.put("r", "c", "b")
    yield shards
    await shards.close()


async def test_a_topic_is_kept_while_the_owner_of_the_routers_is_disconnected(
    routed: Shards,
) -> None:
    routed.disconnect(ROUTER_OWNER, 2)
    await routed.append("b", 1)
    assert isinstance(await routed.delete_topic("b"), NotReady)
    assert (await routed.append("b", 2))["seqs"] == [2], "the topic is no longer held"
    assert (await routed.delete_topic("other"))["deleted"] is False
    routed.connect(ROUTER_OWNER, 2)
    assert (await routed.delete_topic("b"))["routers_removed"] == ["r"]


async def test_requests_wait_for_the_delete_while_routers_are_removed(
    routed: Shards, nursery: trio.Nursery
) -> None:
    answers: dict[str, Any] = {}

    async def delete() -> None:
        answers["delete"] = await routed.delete_topic("b")

    async def append() -> None:
        answers["append"] = await routed.append("b", 1)

    await routed.append("b", "of the deleted topic")
    routed.on_message = lambda _, to, subject: (to, subject) != (0, ROUTER_CASCADE.subject)
    nursery.start_soon(delete)
    await trio.sleep(0.05)
    nursery.start_soon(append)
    await trio.sleep(0.05)
    assert answers == {}
    routed.on_message = lambda *_: True
    routed.deliver_held()
    with trio.fail_after(10):
        while len(answers) < 2:
            await trio.lowlevel.checkpoint()
    assert answers["delete"]["deleted"] is True
    assert (answers["append"]["created"], answers["append"]["seqs"]) == (True, [1])
    assert routed.names == []


async def test_a_delete_that_found_a_full_disk_reports_the_routers_that_were_removed_before(
    harness: ShardHarness,
) -> None:
    FakeRegistry(harness.loop)
    harness.make("a")
    harness.make("b")
    harness.engine.routers.put(router(1, "ax"))
    harness.loop.context.routers_of = lambda _: bool(harness.engine.routers)
    deletion = harness.delete("a")
    await wait_all_tasks_blocked()
    harness.synced()  # The routers are removed
    await wait_all_tasks_blocked()
    assert "a" not in harness.engine.topics
    lost = harness.append("b", "lost")
    harness.failed(FULL)
    assert harness.answers() == [(lost, "not_ready")]
    harness.synced()
    ((number, body),) = harness.bodies()
    assert (number, body["deleted"], body["routers_removed"]) == (deletion, True, ["a->x"])
