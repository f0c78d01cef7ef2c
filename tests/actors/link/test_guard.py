"""The timer that finds what was never rung for."""

from __future__ import annotations

import os

import pytest
import trio
import trio.testing

from tests.actors.link.link_support import Pair, Running, asleep
from topics.actors.link.link import GUARD_S, Guard


async def test_the_guard_finds_data_whose_bell_was_lost_and_counts_it(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair()
    shard = await asleep(nursery, pair)
    with monkeypatch.context() as lost:
        lost.setattr(os, "eventfd_write", lambda fd, value: None)
        pair.front.link.send("n", b"")
        pair.front.link.flush()
    started = trio.current_time()
    await shard.inbox.receive()
    assert trio.current_time() - started <= GUARD_S
    assert pair.shard.link.late_bells == 1


async def test_a_release_that_nobody_flushes_goes_out_with_the_guard(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    pair = Pair()
    pair.connect()
    shard = Running(pair.shard.link)
    nursery.start_soon(shard.run)
    pair.front.link.send("a", b"", bytes(5000))
    pair.front.link.flush()
    shard.link.release(await shard.inbox.receive())
    await trio.sleep(2 * GUARD_S)
    assert shard.link.backlog_bytes == 0
    pair.front.turn()
    assert pair.front.link.writer.used_bytes == 0


async def test_all_links_of_a_process_share_one_guard(nursery: trio.Nursery) -> None:
    pairs = [Pair() for _ in range(3)]
    for pair in pairs:
        nursery.start_soon(Running(pair.front.link).run)
    await trio.testing.wait_all_tasks_blocked()
    assert Guard.of_this_run().links == {pair.front.link for pair in pairs}
    nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True):
        await trio.testing.wait_all_tasks_blocked()
    assert Guard.of_this_run().links == set()
