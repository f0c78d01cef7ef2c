"""Feed reads: readers with equal requests share one call and its result."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.live_harness import Shards, page, records
from topics.errors import NotReady
from topics.formats.api.watch import Start, View
from topics.front.live.catch_up_reads import READING_MAX_BYTES, CatchUpReads
from topics.front.live.pages import FeedPage
from topics.front.live.subscriptions import Reader

PAGE = {**page(0, 2), "epoch": 1}


def reader(seq: int = 0, view: View | None = None) -> Reader:
    stream = SimpleNamespace(is_following=lambda _: True)
    return Reader(cast("Any", stream), "t", 0, view or View(), Start(seq, epoch=1))


class ConcurrentReaders:
    """Readers that send requests at the same time, and the results that they get."""

    def __init__(self) -> None:
        self.shards = Shards()
        self.reads = CatchUpReads(cast("Any", self.shards))
        self.received: list[FeedPage | NotReady] = []

    async def read(self, live_reader: Reader, until_seq: int | None = None) -> None:
        try:
            found, epoch = await self.reads.read(live_reader, until_seq)
            assert epoch == 1
            self.received.append(found)
        except NotReady as failure:
            self.received.append(failure)


async def test_equal_reads_in_flight_share_one_call_and_one_page(
    nursery: trio.Nursery,
) -> None:
    clients = ConcurrentReaders()
    for _ in range(3):
        nursery.start_soon(clients.read, reader())
    await wait_all_tasks_blocked()
    assert len(clients.shards.pending) == 1
    clients.shards.settle("feed.read", records(0, 2), **PAGE)
    await wait_all_tasks_blocked()
    assert len(clients.received) == 3
    assert len({id(each) for each in clients.received}) == 1, "the readers did not share one page"


async def test_different_reads_have_separate_calls(nursery: trio.Nursery) -> None:
    clients = ConcurrentReaders()
    nursery.start_soon(clients.read, reader())
    nursery.start_soon(clients.read, reader(1))
    nursery.start_soon(clients.read, reader(), 7)
    nursery.start_soon(clients.read, reader(view=View(limit=3)))
    await wait_all_tasks_blocked()
    assert len(clients.shards.pending) == 4
    nursery.cancel_scope.cancel()


async def test_the_bytes_that_a_shard_reads_at_a_time_are_bounded(nursery: trio.Nursery) -> None:
    """The next page is requested after one was shown. A page without a reader is not requested."""
    clients, view = ConcurrentReaders(), View(bytes=READING_MAX_BYTES // 2)
    readers = [reader(seq, view) for seq in range(4)]
    for each in readers:
        nursery.start_soon(clients.read, each)
        await wait_all_tasks_blocked()
    assert [one.params["from_seq"] for one in clients.shards.pending] == [0, 1]
    cast("Any", readers[2].stream).is_following = lambda _: False
    clients.shards.settle("feed.read", records(0, 2), **PAGE)
    await wait_all_tasks_blocked()
    assert [one.params["from_seq"] for one in clients.shards.pending] == [1, 3]
    assert [type(each) for each in clients.received] == [FeedPage, NotReady]
    nursery.start_soon(clients.read, reader(9, View(bytes=8 * READING_MAX_BYTES)))
    for _ in range(2):
        clients.shards.refuse("feed.read", NotReady("the shard is down"))
        await wait_all_tasks_blocked()
    assert clients.shards.pending, "a single page of any length is requested"
    clients.shards.settle("feed.read", records(0, 2), **PAGE)
    await wait_all_tasks_blocked()
    assert len(clients.received) == 5


async def test_a_failure_fails_all_waiting_readers_and_later_reads_call_again(
    nursery: trio.Nursery,
) -> None:
    clients = ConcurrentReaders()
    failure = NotReady("the shard is down")
    for _ in range(2):
        nursery.start_soon(clients.read, reader())
    await wait_all_tasks_blocked()
    clients.shards.refuse("feed.read", failure)
    await wait_all_tasks_blocked()
    assert clients.received == [failure, failure]
    nursery.start_soon(clients.read, reader())
    await wait_all_tasks_blocked()
    assert len(clients.shards.pending) == 1
    clients.shards.settle("feed.read", records(0, 2), **PAGE)
