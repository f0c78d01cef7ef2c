"""Forwards between whole shards: what a dest gets, whatever becomes of a session or a link."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.shards import Shards
from topics.actors.shard.routing import pushes
from topics.engine.changes import put_topic
from topics.engine.topic import Topic
from topics.formats.api.topic_config import TopicConfigPatch
from topics.formats.wire.calls import ROUTER_SYNC


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


async def until(is_done: Callable[[], bool], most_s: float = 20.0) -> None:
    with trio.fail_after(most_s):
        while True:
            if is_done():
                return
            await trio.sleep(0.002)


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
    await until(lambda: topic(shards, "c").head_seq > 1)
    shards.disconnect(1, 2)
    source = shards.loops[1].context
    for number in range(5):
        await shards.append("c", number)
    source.begin_turn()
    change = put_topic.decide(source.engine.table, "c", TopicConfigPatch(cap_records=2), source.now)
    await source.commits.submit_and_wait(change)
    shards.connect(1, 2)
    heads = [0, 0]
    while (now := [topic(shards, name).head_seq for name in "bc"]) != heads:
        heads = now
        await trio.sleep(0.2)
        assert max(heads) < 100
    assert topic(shards, "b").trimmed
