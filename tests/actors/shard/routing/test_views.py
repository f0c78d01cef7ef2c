"""Views of routers: config from the owner, counters from the shards of the sources."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

from tests.support.shards import Shards
from topics.errors import Forbidden, NotReady, RouterNotFound
from topics.formats.wire.calls import ROUTER_OWNER, ROUTER_STATS, ROUTER_SYNC


async def three(shards: Shards) -> None:
    for name, source, dest in (("c->b", "c", "b"), ("x", "a", "f"), ("y", "c", "k")):
        await shards.put(name, source, dest)


def names(listed: Any) -> list[str]:
    return [name for name, _ in listed.items]


async def test_a_router_is_shown_with_its_counters(shards: Shards) -> None:
    await three(shards)
    shards.registries[1].totals[1] = 42
    shown = await shards.get("c->b")
    assert shown.pop("performance")["server_total_ms"] > 0
    assert shown == {
        "router": "c->b",
        "source": "c",
        "dest": "b",
        "preserve_node": True,
        "preserve_tag": True,
        "filter": None,
        "allow_cycle": False,
        "guarantee": "at_least_once",
        "forwarded_total": 42,
        "lag_records": 2,
        "lag_ms": 30,
    }


async def test_what_is_not_there_or_not_for_the_key_is_not_shown(shards: Shards) -> None:
    await three(shards)
    assert isinstance(await shards.get("z"), RouterNotFound)
    assert isinstance(await shards.get("c->b", ["c"]), Forbidden)
    assert (await shards.get("c->b", ["c", "b"]))["source"] == "c"


async def test_the_list_is_in_order_and_in_pages(shards: Shards) -> None:
    await three(shards)
    shards.registries[0].totals[2] = 9
    first = await shards.list_routers(limit=2)
    assert names(first) == ["c->b", "x"]
    assert msgspec.json.decode(first.items[1][1]) == {
        "router": "x",
        "source": "a",
        "dest": "f",
        "guarantee": "at_least_once",
        "forwarded_total": 9,
    }
    assert names(await shards.list_routers(after="x")) == ["y"]
    assert names(await shards.list_routers("c")) == ["c->b"]
    assert names(await shards.list_routers(source="c")) == ["c->b", "y"]
    assert names(await shards.list_routers(dest="f")) == ["x"]
    assert names(await shards.list_routers(source="c", dest="f")) == []


async def test_a_page_asks_each_shard_once(shards: Shards) -> None:
    await three(shards)
    asked = []

    def on_message(own: int, to: int, subject: str) -> bool:
        if own == ROUTER_OWNER and subject == ROUTER_STATS.subject:
            asked.append(to)
        return True

    shards.on_message = on_message
    await shards.list_routers()
    assert asked == [1], "and the own shard through the loopback"


async def test_a_shard_that_is_away_fails_what_needs_it(shards: Shards) -> None:
    await three(shards)
    shards.caller = 2
    shards.disconnect(ROUTER_OWNER, 1)
    assert isinstance(await shards.get("c->b"), NotReady)
    assert isinstance(await shards.list_routers(), NotReady)
    assert names(await shards.list_routers(dest="f")) == ["x"]


@pytest.mark.parametrize("is_list", [False, True])
async def test_a_router_that_is_being_changed_is_shown_when_that_is_done(
    shards: Shards, nursery: trio.Nursery, is_list: bool
) -> None:
    await three(shards)
    shards.registries[1].totals[1] = 5
    shown: list[Any] = []

    async def look() -> None:
        shown.append(await (shards.list_routers() if is_list else shards.get("c->b")))

    async def change() -> None:
        await shards.put("c->b", "d", "b")

    # The shard of the old source has given the router up, and its answer is on its way.
    shards.caller = 2
    shards.on_message = lambda own, _, subject: (own, subject) != (1, ROUTER_SYNC.subject)
    nursery.start_soon(change)
    while 1 in shards.registries[1].rows:
        await trio.lowlevel.checkpoint()
    nursery.start_soon(look)
    await trio.sleep(0.05)
    assert shown == []
    shards.on_message = lambda *_: True
    shards.let_go()
    with trio.fail_after(5):
        while not shown:
            await trio.lowlevel.checkpoint()
    if is_list:
        assert msgspec.json.decode(shown[0].items[0][1])["forwarded_total"] == 5
    else:
        assert (shown[0]["source"], shown[0]["forwarded_total"]) == ("d", 5)


async def test_a_router_that_its_shard_does_not_know_is_not_shown_with_wrong_counters(
    shards: Shards,
) -> None:
    await three(shards)
    shards.registries[1].rows.clear()
    assert isinstance(await shards.get("c->b"), NotReady)
    assert isinstance(await shards.list_routers(), NotReady)
