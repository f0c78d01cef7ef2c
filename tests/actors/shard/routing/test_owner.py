"""Tests of the owner of the routers: mutations run in sequence, every shard receives their changes,
and reads return the current routers.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from tests.support.shards import Shards
from topics.actors.shard.group_commit import GroupCommit
from topics.actors.shard.routing import mutations, pushes
from topics.engine.changes import delete_topic
from topics.engine.changes.change import Change
from topics.errors import (
    Internal,
    NotReady,
)
from topics.formats.wire import calls
from topics.formats.wire.calls import ROUTER_OWNER, ROUTER_STATS, ROUTER_SYNC

SYNC = ROUTER_SYNC.subject


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeout and the retry pause for a shard that does not reply."""
    monkeypatch.setattr(mutations, "CALL_MAX_S", 0.1)
    monkeypatch.setattr(pushes, "RETRY_S", 0.02)
    monkeypatch.setattr(pushes, "REPLY_MAX_S", 0.1)


def frames_of(shards: Shards, shard: int = ROUTER_OWNER) -> int:
    """Return the next LSN of the log of a shard."""
    return shards.loops[shard].context.wal.next_lsn


def topics_of(shards: Shards) -> set[str]:
    return {name for loop in shards.loops.values() for name in loop.context.engine.topics}


def id_of(shards: Shards, name: str) -> int:
    """Return the id of the router."""
    return shards.loops[ROUTER_OWNER].context.engine.routers.router(name).id


# New routers


def graph_of(shards: Shards) -> Any:
    return shards.loops[ROUTER_OWNER].context.engine.routers


# Changed routers


async def test_an_identical_put_writes_and_sends_nothing(shards: Shards) -> None:
    await shards.put("r", "c", "b", preserve_tag=False)
    before = frames_of(shards)
    messages = [len(registry.messages) for registry in shards.registries.values()]
    answer = await shards.put("r", "c", "b")
    assert (answer["created"], answer["preserve_tag"]) == (False, False)
    assert frames_of(shards) == before
    assert [len(registry.messages) for registry in shards.registries.values()] == messages


async def test_a_router_with_a_new_source_begins_at_its_head_and_keeps_its_total(
    shards: Shards,
) -> None:
    await shards.put("r", "c", "b")
    earlier = id_of(shards, "r")
    shards.registries[1].totals[earlier] = 5
    await shards.append("a", 1, 2)
    assert (await shards.put("r", "a", "b"))["created"] is False
    (row,) = shards.registries[0].rows.values()
    assert (row.id, row.start_seq) == (earlier + 1, 2)
    shards.registries[0].totals[row.id] = 7
    assert (await shards.get("r"))["forwarded_total"] == 12
    await shards.put("r", "a", "f")
    assert (await shards.get("r"))["forwarded_total"] == 12
    assert shards.ends_agree()


async def test_a_changed_router_begins_where_its_previous_incarnation_stopped(
    shards: Shards,
) -> None:
    await shards.put("r", "c", "b")
    engine, registry = shards.loops[1].context.engine, shards.registries[1]
    has_owner_list = False

    def forward_more(_: int, to: int, subject: str) -> bool:
        """Let the old incarnation copy records before its shard receives the change."""
        nonlocal has_owner_list
        if (to, subject) == (1, SYNC) and not has_owner_list:
            has_owner_list = True
            registry.totals[1] = 4
            engine.topics["c"].head_seq = 4
        return True

    shards.on_message = forward_more
    await shards.put("r", "c", "f")
    router = graph_of(shards).router("r")
    assert (router.id, router.start_seq, router.base_total) == (2, 4, 4)
    assert [row.start_seq for row in registry.rows.values()] == [4]


async def test_router_ids_are_not_reused(shards: Shards) -> None:
    await shards.put("r", "c", "b")
    earlier = id_of(shards, "r")
    await shards.delete("r")
    for shard in range(3):
        await shards.kill(shard)
    for shard in range(3):
        shards.start(shard)
    await shards.put("r", "c", "b")
    assert id_of(shards, "r") > earlier


async def test_a_router_continues_unchanged_if_its_change_cannot_be_logged(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shards.put("r", "c", "b")
    before = id_of(shards, "r"), (await shards.get("r"))

    async def fail(commits: GroupCommit, change: Change) -> OSError:
        commits.engine.undo(change)
        return OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(GroupCommit, "submit_and_wait", fail)
        answer = await shards.put("r", "a", "b")
    assert isinstance(answer, NotReady)
    await shards.agree()
    after = await shards.get("r")
    after.pop("performance"), before[1].pop("performance")
    assert (id_of(shards, "r"), after) == before
    assert (await shards.put("r", "a", "b"))["source"] == "a"
    assert shards.ends_agree()


# Unreachable shards


@pytest.mark.parametrize("away", [1, 2])
async def test_no_router_is_created_while_the_shard_of_one_end_is_unreachable(
    shards: Shards, away: int
) -> None:
    shards.disconnect(ROUTER_OWNER, away)
    answer = await shards.put("r", "c", "b")
    assert isinstance(answer, NotReady)
    assert answer.detail["reason"] == "shard_away"
    assert (shards.names, topics_of(shards)) == ([], set())
    shards.connect(ROUTER_OWNER, away)
    assert (await shards.put("r", "c", "b"))["created"]


async def test_a_router_is_not_changed_while_the_shard_of_its_source_is_unreachable(
    shards: Shards,
) -> None:
    await shards.put("r", "c", "b")
    before = id_of(shards, "r")
    shards.disconnect(ROUTER_OWNER, 1)
    assert isinstance(await shards.put("r", "a", "b"), NotReady)
    assert isinstance(await shards.put("r", "c", "b", preserve_tag=False), NotReady)
    assert id_of(shards, "r") == before
    shards.connect(ROUTER_OWNER, 1)
    await shards.agree()
    assert shards.registries[1].names == ["r"]


async def test_a_removal_does_not_wait_for_an_unreachable_shard(shards: Shards) -> None:
    await shards.put("r", "c", "b")
    await shards.put("s", "c", "f")
    shards.disconnect(ROUTER_OWNER, 1)
    assert (await shards.delete("r"))["deleted"] is True
    assert shards.registries[2].names == ["s"]
    assert shards.registries[1].names == ["r", "s"]
    shards.connect(ROUTER_OWNER, 1)
    await shards.agree()
    assert shards.registries[1].names == ["s"]


@pytest.mark.slow
async def test_an_unresponsive_shard_delays_other_mutations_only_briefly(
    shards: Shards, impatient: None
) -> None:
    await shards.put("r", "c", "b")
    shards.on_message = lambda _, to, subject: (to, subject) != (2, SYNC)
    assert isinstance(await shards.put("s", "c", "k"), NotReady)
    assert (await shards.delete("r"))["deleted"] is True
    assert (await shards.put("t", "c", "a"))["created"] is True
    shards.on_message = lambda *_: True
    shards.deliver_held()
    await shards.agree()
    assert shards.names == ["s", "t"]
    assert (await shards.put("s", "c", "k"))["created"] is False


async def test_a_shard_that_refused_a_change_receives_the_complete_list_again(
    shards: Shards, impatient: None
) -> None:
    await shards.put("r", "c", "b")
    shards.registries[1].failure = Internal("a bug")
    assert isinstance(await shards.put("s", "c", "b"), Internal)
    assert shards.names == ["r", "s"]
    shards.registries[1].failure = None
    await shards.agree()
    assert shards.registries[1].names == ["r", "s"]
    assert (await shards.put("s", "c", "b"))["created"] is False


async def test_a_repeated_put_is_sent_again_to_a_shard_that_refused_it(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushes, "RETRY_S", 3600)
    shards.registries[1].failure = Internal("a bug")
    assert isinstance(await shards.put("s", "c", "b"), Internal)
    assert isinstance(await shards.put("s", "c", "b"), Internal)
    shards.registries[1].failure = None
    assert (await shards.put("s", "c", "b"))["created"] is False
    assert shards.ends_agree()


# Topics that are deleted


async def test_an_end_that_is_deleted_while_a_router_is_created_is_created_again(
    shards: Shards,
) -> None:
    topic_ids: list[int] = []

    def release_it(_: int, to: int, subject: str) -> bool:
        """Delete the dest after it was found and before its shard receives the router."""
        engine = shards.loops[2].context.engine
        is_sync = (to, subject) == (2, SYNC) and "b" in engine.topics
        if is_sync and len(topic_ids) < 2:
            topic_ids.append(engine.topics["b"].id)
            change = delete_topic.decide(engine.table, "b", False, shards.loops[2].context.now)
            assert change is not None
            shards.loops[2].commits.submit(change, None)
        return True

    shards.on_message = release_it
    answer = await shards.put("r", "c", "b")
    assert answer["created"] is True
    assert len({*topic_ids, shards.loops[2].context.engine.topic("b").id}) == 3
    assert shards.ends_agree()


async def test_creating_a_router_fails_if_its_end_is_deleted_repeatedly(shards: Shards) -> None:
    def release_it(_: int, to: int, subject: str) -> bool:
        context = shards.loops[2].context
        if (to, subject) == (2, SYNC) and "b" in context.engine.topics:
            change = delete_topic.decide(context.engine.table, "b", False, context.now)
            assert change is not None
            context.commits.submit(change, None)
        return True

    shards.on_message = release_it
    assert isinstance(await shards.put("r", "c", "b"), NotReady)
    assert shards.names == []
    assert shards.ends_agree()


async def test_other_shards_refuse_calls_for_the_owner(shards: Shards) -> None:
    for call, params in (
        (calls.ROUTER_GET, calls.RouterParams("r", None, 1)),
        (calls.ROUTER_DELETE, calls.RouterParams("r", None, 1)),
        (calls.ROUTER_CASCADE, calls.CascadeParams("b")),
        (calls.ROUTER_LIST, calls.RouterListParams("", None, None, None, 9, None)),
    ):
        assert isinstance(await shards.call(call, params, shard=1), Internal)


# Kills


async def make(shards: Shards) -> Any:
    return await shards.put("r", "c", "b")


async def point_elsewhere(shards: Shards) -> Any:
    return await shards.put("r", "l", "k")


async def configure(shards: Shards) -> Any:
    return await shards.put("r", "c", "b", preserve_tag=False)


async def remove(shards: Shards) -> Any:
    return await shards.delete("r")


async def delete_dest(shards: Shards) -> Any:
    return await shards.delete_topic("b")


@pytest.mark.slow
@pytest.mark.parametrize("act", [make, configure, point_elsewhere, remove, delete_dest])
@pytest.mark.parametrize("victim", [0, 1, 2])
async def test_all_shards_agree_after_one_is_killed_between_any_two_messages(
    tmp_path: Path, nursery: trio.Nursery, act: Callable[[Shards], Any], victim: int
) -> None:
    """A repeated request then succeeds."""
    for step in range(1, 50):
        shards = Shards(tmp_path / str(step), nursery)
        if act is not make:
            await make(shards)
            shards.registries[1].totals[1] = 5
        shards.caller = 2 if victim == 1 else 1
        is_over = await _kill_at(shards, act, victim, step)
        await shards.agree()
        answer = await act(shards)
        if act is delete_dest and "b" not in topics_of(shards):
            assert answer["deleted"] in (True, False)
            assert shards.names == []
        else:
            assert isinstance(answer, dict)
        await shards.agree()
        if act is point_elsewhere and victim != 1:  # shard 1 has the counts in memory only
            assert graph_of(shards).router("r").base_total == 5
        await shards.close()
        if is_over:
            assert step > 4
            return
    raise AssertionError("the mutation did not complete")


async def _kill_at(shards: Shards, act: Callable[[Shards], Any], victim: int, step: int) -> bool:
    """Kill ``victim`` when message number ``step`` is sent. Return True if the mutation completed
    with fewer messages.
    """
    count = 0
    reached = trio.Event()

    def on_message(*_: object) -> bool:
        nonlocal count
        count += 1
        if count >= step:
            reached.set()
        return count < step

    shards.on_message = on_message
    done = trio.Event()

    async def try_it() -> None:
        await act(shards)
        done.set()
        reached.set()

    shards.nursery.start_soon(try_it)
    await reached.wait()
    is_over = done.is_set()
    if is_over:
        shards.on_message = lambda *_: True
        return True
    await shards.kill(victim)
    shards.on_message = lambda *_: True
    shards.deliver_held()
    shards.start(victim)
    with trio.move_on_after(2):
        await done.wait()
    return False


async def test_routers_without_an_end_are_removed_when_their_shard_reports_them(
    shards: Shards,
) -> None:
    await shards.put("r", "c", "b")
    await shards.put("s", "c", "f")
    context = shards.loops[2].context
    context.routers_of = lambda _: False
    assert (await shards.delete_topic("b"))["routers_removed"] == []
    assert shards.names == ["r", "s"]
    shards.disconnect(ROUTER_OWNER, 2)
    shards.connect(ROUTER_OWNER, 2)
    with trio.fail_after(10):
        while shards.names != ["s"]:
            await trio.lowlevel.checkpoint()
    await shards.agree()


# Reads of routers: config from the graph, counters from the shards of the sources


async def three(shards: Shards) -> None:
    for name, source, dest in (("c->b", "c", "b"), ("x", "a", "f"), ("y", "c", "k")):
        await shards.put(name, source, dest)


def names(listed: Any) -> list[str]:
    return [name for name, _ in listed.items]


async def test_a_page_of_routers_queries_each_shard_once(shards: Shards) -> None:
    await three(shards)
    called_shards = []

    def on_message(own: int, to: int, subject: str) -> bool:
        if own == ROUTER_OWNER and subject == ROUTER_STATS.subject:
            called_shards.append(to)
        return True

    shards.on_message = on_message
    await shards.list_routers()
    assert called_shards == [1], "the owner's own shard is called through the loopback"


async def test_an_unreachable_shard_fails_only_requests_that_need_it(shards: Shards) -> None:
    await three(shards)
    shards.caller = 2
    shards.disconnect(ROUTER_OWNER, 1)
    assert isinstance(await shards.get("c->b"), NotReady)
    assert isinstance(await shards.list_routers(), NotReady)
    assert names(await shards.list_routers(dest="f")) == ["x"]


@pytest.mark.parametrize("is_list", [False, True])
async def test_a_router_is_shown_only_after_its_pending_change(
    shards: Shards, nursery: trio.Nursery, is_list: bool
) -> None:
    await three(shards)
    shards.registries[1].totals[1] = 5
    shown: list[Any] = []

    async def read() -> None:
        shown.append(await (shards.list_routers() if is_list else shards.get("c->b")))

    async def change() -> None:
        await shards.put("c->b", "d", "b")

    # The shard of the old source has removed the router, and its reply is in flight.
    shards.caller = 2
    shards.on_message = lambda own, _, subject: (own, subject) != (1, ROUTER_SYNC.subject)
    nursery.start_soon(change)
    while 1 in shards.registries[1].rows:
        await trio.lowlevel.checkpoint()
    nursery.start_soon(read)
    await trio.sleep(0.05)
    assert shown == []
    shards.on_message = lambda *_: True
    shards.deliver_held()
    with trio.fail_after(5):
        while not shown:
            await trio.lowlevel.checkpoint()
    if is_list:
        assert msgspec.json.decode(shown[0].items[0][1])["forwarded_total"] == 5
    else:
        assert (shown[0]["source"], shown[0]["forwarded_total"]) == ("d", 5)


async def test_a_router_that_its_shard_does_not_know_is_not_shown(
    shards: Shards,
) -> None:
    await three(shards)
    shards.registries[1].rows.clear()
    assert isinstance(await shards.get("c->b"), NotReady)
    assert isinstance(await shards.list_routers(), NotReady)
