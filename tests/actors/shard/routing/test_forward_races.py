"""Forwards between whole shards: what a dest gets, whatever becomes of a session or a link."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.shards import Shards
from topics.actors.shard.routing import pushes
from topics.engine.topic import Topic
from topics.formats.api.topic_config import TopicConfigPatch
from topics.formats.disk.copies import decode_copies
from topics.formats.wire.calls import FORWARD, ROUTER_SYNC
from topics.storage.linked_logs import LinkedLogs, Payload


@pytest.fixture
async def shards(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[Shards]:
    """As the fixture of the same name, with routers that forward."""
    found = Shards(tmp_path, nursery, forwards=True)
    yield found
    await found.close()


def topic(shards: Shards, name: str) -> Topic:
    return shards.loops[shards.shard_of(name)].context.engine.topic(name)


def has(shards: Shards, name: str, count: int) -> bool:
    return topic(shards, name).head_seq == count


async def until(is_done: Callable[[], bool], most_s: float = 5.0) -> None:
    with trio.fail_after(most_s):
        while True:
            if is_done():
                return
            await trio.sleep(0.002)


async def test_a_source_that_never_rests_is_forwarded_sync_by_sync(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shards.put("r", "c", "b")
    commits = shards.loops[1].context.commits
    heads: list[int] = []
    wait_synced = commits.wait_synced

    async def wait(lsn: int) -> bool:
        found = await wait_synced(lsn)
        if len(heads) < 10:
            heads.append(topic(shards, "b").head_seq)
            await shards.append("c", "meanwhile")
        return found

    monkeypatch.setattr(commits, "wait_synced", wait)
    await shards.append("c", "first")
    await until(lambda: topic(shards, "b").head_seq == 11)
    assert heads == [*range(10)]


async def test_a_dest_that_cannot_link_is_asked_less_and_less_often(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()

    def on_message(_: int, to: int, subject: str) -> bool:
        asked[subject] += to == 2
        return True

    def link(_self: LinkedLogs, _wanted: Iterable[Payload]) -> None:
        raise OSError(errno.EMLINK, "no more links")

    shards.on_message = on_message
    await shards.put("r", "c", "b")
    with monkeypatch.context() as patch:
        patch.setattr(LinkedLogs, "link", link)
        await shards.append("c", 1)
        await trio.sleep(0.3)
        assert 3 < asked[FORWARD.subject] < 12
    await until(lambda: topic(shards, "b").head_seq == 1)


async def test_what_is_unlinked_while_another_file_is_linked_is_not_named(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shards.put("r", "c", "b")
    for number in range(1, 10):
        await shards.append("c", "x" * 100_000)
        await until(partial(has, shards, "b", number))
    source, dest = shards.loops[1].context.wal, shards.loops[2].context.wal
    shards.disconnect(1, 2)
    while not source.full_files():
        await shards.append("c", "x" * 60_000)
    link = LinkedLogs.link
    places: list[list[Payload]] = []
    released: list[int] = []  # where the log stood

    def slow(self: LinkedLogs, wanted: Iterable[Payload]) -> None:
        if self is dest.linked:
            places.append([*wanted])
            if len(places) == 1:
                released.append(dest.next_lsn)
                self.release(1 << 60)
                self.unlink_released()
            link(self, places[-1])

    monkeypatch.setattr(LinkedLogs, "link", slow)
    shards.connect(1, 2)
    head = topic(shards, "c").head_seq
    await until(lambda: topic(shards, "b").head_seq == head)
    assert places
    for entry in topic(shards, "b").index.from_seq(10):
        if entry.locator < released[0]:
            continue  # it named what was linked then
        header, body = dest.frame_at(entry.locator)
        for row in decode_copies(header, body).rows:
            assert dest.linked.is_linked(row.shard, row.lsn)


async def test_a_source_that_has_not_heard_of_the_end_of_a_router_doubles_nothing(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushes, "ANSWER_MAX_S", 0.1)
    await shards.put("r", "c", "b")
    await shards.append("c", 1, 2, 3)
    await until(lambda: topic(shards, "b").head_seq == 3)
    shards.on_message = lambda _, to, subject: (to, subject) != (1, ROUTER_SYNC.subject)
    assert (await shards.delete("r"))["deleted"]
    await shards.append("c", 4)
    await trio.sleep(0.1)
    assert topic(shards, "b").head_seq == 3
    shards.on_message = lambda *_: True
    shards.let_go()
    await shards.append("c", 5)
    await trio.sleep(0.1)
    assert topic(shards, "b").head_seq == 3


async def test_a_request_is_not_deferred_for_shards_that_are_silent(shards: Shards) -> None:
    await shards.put("r", "c", "b")
    barriers = shards.loops[2].services.barriers
    request: Any = None
    handled: list[Any] = []
    barriers._silent_until[1] = trio.current_time() + 60
    assert not barriers.defer_if_behind(["b"], handled.append, request)
    assert handled == [], "the caller goes on by itself"


async def test_what_is_lost_in_a_circle_is_not_told_round_and_round(shards: Shards) -> None:
    await shards.put("r", "c", "b")
    await shards.put("s", "b", "c", allow_cycle=True)
    await shards.append("c", 1)
    await until(partial(has, shards, "c", 2))
    shards.disconnect(1, 2)
    source = shards.loops[1].context
    for number in range(5):
        await shards.append("c", number)
    source.begin_turn()
    change = source.engine.put("c", TopicConfigPatch(cap_records=2), source.now)
    await source.commits.submit_and_wait(change)
    shards.connect(1, 2)
    heads = [0, 0]
    while (now := [topic(shards, name).head_seq for name in "bc"]) != heads:
        heads = now
        await trio.sleep(0.2)
        assert max(heads) < 100
    assert topic(shards, "b").trimmed
