"""Workers: what is appended to a source comes to the dests of its routers, whatever happens."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.support.routing import RoutedShards, rows_of
from topics.actors.shard.routing import workers as workers_module
from topics.actors.shard.routing.worker import WorkerState
from topics.engine.routing.hops import HOPS_MAX
from topics.formats.disk.frames import FrameKind
from topics.formats.wire import calls
from topics.formats.wire.calls import FORWARD, IN_MESSAGE

FORWARD_TO = FORWARD.subject


def datas(*values: Any) -> list[dict[str, Any]]:
    return [{"data": value} for value in values]


def hold(shards: RoutedShards, subject: str, *, answers: bool = False) -> None:
    """Hold back messages of a kind, or all answers."""
    shards.on_message = lambda _one, _other, each: each != ("" if answers else subject)


def let_go(shards: RoutedShards) -> None:
    shards.on_message = lambda *_: True
    shards.let_go()


async def test_records_come_to_dests_of_all_shards_in_order(routed: RoutedShards) -> None:
    await routed.route("a>b", "a>c", "a>d")
    await routed.write("a", datas(1, 2))
    await routed.write("a", datas(3))
    await routed.settle()
    assert [routed.datas(name) for name in "bcd"] == [[1, 2, 3]] * 3
    assert routed.reached("a>b") == (3, 3)
