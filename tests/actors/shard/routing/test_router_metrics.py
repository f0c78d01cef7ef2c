"""Metrics of routers: which rows a page gets, and what they say."""

from __future__ import annotations

import trio

from tests.actors.shard.test_metrics import made_again
from tests.support.routing import RoutedShards
from topics.formats.wire.calls import FORWARD, METRICS_READ, MetricsParams, RouterMetrics


async def routers(
    routed: RoutedShards, prefixes: list[str] | None = None, routers_max: int = 100
) -> tuple[list[RouterMetrics], bool]:
    """Those that have their source in the first shard."""
    params = MetricsParams(prefixes, 0, routers_max)
    found = made_again(await routed.call(METRICS_READ, params))
    assert found.topics == []
    return [*found.routers], found.routers_truncated


async def test_a_router_is_shown_where_its_source_is(routed: RoutedShards) -> None:
    await routed.make("b", cap_records=2, discard="reject")
    await routed.route("a>b", "a>f", "c>k")
    await routed.write("a", [{"data": each} for each in range(5)])
    await routed.until(lambda: routed.datas("b") == [0, 1])
    await routed.until(lambda: routed.datas("f") == [0, 1, 2, 3, 4])
    await trio.sleep(0.05)
    (behind, done), is_truncated = await routers(routed)
    assert not is_truncated
    assert behind._replace(lag_ms=0) == RouterMetrics("a>b", 3, 0, 2)
    assert 10 <= behind.lag_ms < 20_000
    assert done == RouterMetrics("a>f", 0, 0, 5)
    (first,), is_truncated = await routers(routed, routers_max=1)
    assert (first.router, is_truncated) == ("a>b", True)


async def test_a_router_is_shown_to_a_key_that_may_see_it_and_both_ends(
    routed: RoutedShards,
) -> None:
    await routed.route("a>b", "a>f")
    await routed.settle()
    for prefixes, seen in ((["a"], []), (["a", "b"], ["a>b"]), (["a", "f", "b"], ["a>b", "a>f"])):
        found, is_truncated = await routers(routed, prefixes)
        assert ([row.router for row in found], is_truncated) == (seen, False)


async def test_a_router_whose_dest_has_not_told_of_it_is_left_out(routed: RoutedShards) -> None:
    routed.on_message = lambda *found: found[2] != FORWARD.subject
    await routed.route("a>b")
    assert await routers(routed) == ([], True)
    routed.go_on()
    await routed.settle()
    assert await routers(routed) == ([RouterMetrics("a>b", 0, 0, 0)], False)
