"""What a process stores of itself for the metrics."""

from __future__ import annotations

import trio
import trio.testing

from tests.actors.link.link_support import Pair
from topics.actors.link import counters
from topics.actors.link.counters import CounterWords
from topics.actors.link.process_id import shard_id
from topics.process.measure import BEAT_S, measure


async def test_each_beat_stores_how_late_it_is_and_what_the_links_and_the_process_count(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    pair = Pair()
    pair.connect()
    pair.shard.link.send("s", b"12345")
    words = CounterWords(pair.board, shard_id(0))
    fsyncs = iter(range(3, 100))
    nursery.start_soon(
        measure, words, [pair.shard.link], lambda: {"topics_wal_fsyncs_total": next(fsyncs)}
    )
    await trio.sleep(2.5 * BEAT_S)
    totals = counters.read(pair.board)
    assert totals["topics_link_backlog_bytes"] == (pair.shard.link.backlog_bytes,)
    assert totals["topics_link_unread_bytes"] == (pair.shard.link.statistics().unread_bytes,)
    assert totals["topics_wal_fsyncs_total"] == (4,)
    assert totals["topics_loop_lag_us"][-1] == 2
    pair.close()
