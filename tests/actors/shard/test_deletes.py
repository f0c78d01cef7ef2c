"""Deletes: what becomes of them when the log has no room."""

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
from tests.support.shard import Desk
from tests.support.shards import FakeRegistry, Shards
from topics.errors import NotReady, TopicNotEmpty
from topics.formats.disk.frames import FrameKind
from topics.formats.wire.calls import ROUTER_CASCADE, ROUTER_OWNER
from topics.storage.wal.file import NoRoom

FULL = NoRoom(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_a_deletion_that_failed_leaves_its_topic_as_it_was(desk: Desk) -> None:
    desk.make("a", durability="ephemeral")
    desk.append("a", "kept")
    desk.answers()
    gone = desk.delete("a")
    new = desk.append("a", "of another topic")
    desk.failed(FULL)
    assert desk.answers() == [(new, "not_ready")]
    desk.failed(FULL)  # alone it could have had the reserve
    assert desk.answers() == [(gone, "not_ready")]
    assert desk.seqs("a") == [1]
    again = desk.append("a", "next")
    assert desk.answers() == [(again, 200)]
    assert desk.seqs("a") == [1, 2]


async def test_a_delete_that_met_a_full_disk_among_appends_is_done_once_more_by_itself(
    desk: Desk,
) -> None:
    desk.make("a")
    desk.append("a", 1, 2)
    desk.make("b")
    desk.append("b", 1)
    desk.synced()
    desk.answers()
    some, whole = desk.delete_records("a", before_seq=2), desk.delete("b")
    lost = desk.append("a", "lost")
    desk.failed(FULL)
    assert desk.answers() == [(lost, "not_ready")]
    assert [frame.kind for frame in list(desk.log.frames.values())[-2:]] == [
        FrameKind.DELETE,
        FrameKind.TOPIC_DELETED,
    ]
    desk.synced()
    assert desk.answers() == [(some, 200), (whole, 200)]
    assert desk.seqs("a") == [2]


# Topics with routers


@pytest.fixture
async def routed(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[Shards]:
    """Of three shards: a router from "c", in the second, to "b", in the third."""
    shards = Shards(tmp_path, nursery)
    await shards.put("r", "c", "b")
    yield shards
    await shards.close()


async def test_a_topic_goes_with_its_routers(routed: Shards) -> None:
    answer = await routed.delete_topic("c")
    assert (answer["deleted"], answer["routers_removed"]) == (True, ["r"])
    assert routed.names == []
    assert (await routed.delete_topic("c"))["deleted"] is False


async def test_a_key_sees_those_routers_that_its_prefixes_cover(routed: Shards) -> None:
    await routed.put("s", "c", "f")
    assert (await routed.delete_topic("c", prefixes=["c", "s"]))["routers_removed"] == ["s"]


async def test_while_the_owner_of_the_routers_is_away_the_topic_stays(routed: Shards) -> None:
    routed.disconnect(ROUTER_OWNER, 2)
    await routed.append("b", 1)
    assert isinstance(await routed.delete_topic("b"), NotReady)
    assert (await routed.append("b", 2))["seqs"] == [2], "it is free again"
    assert (await routed.delete_topic("other"))["deleted"] is False
    routed.connect(ROUTER_OWNER, 2)
    assert (await routed.delete_topic("b"))["routers_removed"] == ["r"]


async def test_a_topic_that_is_not_empty_keeps_its_routers(routed: Shards) -> None:
    await routed.append("b", 1)
    assert isinstance(await routed.delete_topic("b", if_empty=True), TopicNotEmpty)
    assert routed.names == ["r"]


async def test_what_comes_while_routers_are_removed_waits_for_the_delete(
    routed: Shards, nursery: trio.Nursery
) -> None:
    answers: dict[str, Any] = {}

    async def delete() -> None:
        answers["delete"] = await routed.delete_topic("b")

    async def append() -> None:
        answers["append"] = await routed.append("b", 1)

    await routed.append("b", "of the topic that goes")
    routed.on_message = lambda _, to, subject: (to, subject) != (0, ROUTER_CASCADE.subject)
    nursery.start_soon(delete)
    await trio.sleep(0.05)
    nursery.start_soon(append)
    await trio.sleep(0.05)
    assert answers == {}
    routed.on_message = lambda *_: True
    routed.let_go()
    with trio.fail_after(10):
        while len(answers) < 2:
            await trio.lowlevel.checkpoint()
    assert answers["delete"]["deleted"] is True
    assert (answers["append"]["created"], answers["append"]["seqs"]) == (True, [1])
    assert routed.names == []


async def test_a_delete_that_met_a_full_disk_tells_the_routers_that_went_before(
    desk: Desk,
) -> None:
    FakeRegistry(desk.loop)
    desk.make("a")
    desk.make("b")
    desk.engine.routers.put(router(1, "ax"))
    desk.loop.context.routers_of = lambda _: bool(desk.engine.routers)
    gone = desk.delete("a")
    await wait_all_tasks_blocked()
    desk.synced()  # the routers are gone
    await wait_all_tasks_blocked()
    assert "a" not in desk.engine.topics
    lost = desk.append("b", "lost")
    desk.failed(FULL)
    assert desk.answers() == [(lost, "not_ready")]
    desk.synced()
    ((number, body),) = desk.bodies()
    assert (number, body["deleted"], body["routers_removed"]) == (gone, True, ["a->x"])
