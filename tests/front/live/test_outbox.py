"""Stalled clients: their unsent data, and the state that remains after they are closed."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Iterator

import pytest
from trio.testing import wait_all_tasks_blocked

from tests.front.live.streams_support import LONG, live, long_page
from tests.support.live_harness import Client, LiveHarness, gap, page
from tests.support.sse import Unchunk
from topics.formats.api.watch import Start, View


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    tracemalloc.start()
    yield
    tracemalloc.stop()
    gc.enable()


async def test_a_stalled_stream_frees_its_memory_immediately_at_its_end(
    front: LiveHarness, without_collector: None
) -> None:
    size, tasks = 0, len(front.live.nursery.child_tasks)
    for number in range(20):
        client = await live(front)
        for part in (b"first", b"second", b"third"):
            client.stream.outbox.write(b"%b %d %b" % (part, number, LONG))
        await wait_all_tasks_blocked()
        assert front.live.held.size > 2 * len(LONG)
        stream = weakref.ref(client.stream)
        client.close()
        client.session.stream = None
        front.clients.remove(client)
        del client
        await wait_all_tasks_blocked()
        assert (front.live.held.size, stream()) == (0, None)
        assert len(front.live.nursery.child_tasks) == tasks
        size = size or tracemalloc.get_traced_memory()[0]
    assert tracemalloc.get_traced_memory()[0] - size < len(LONG)


async def test_the_unsent_part_is_sent_when_the_client_reads(front: LiveHarness) -> None:
    client = await live(front)
    await long_page(front)
    await front.page(1, 2)
    assert client.stream.is_stalled
    assert not client.stream.outbox.backlog, "a stalled stream got another page"
    assert LONG in await client.receive_all()
    assert not client.stream.is_stalled


async def test_a_slow_shard_delays_only_its_own_topics(front: LiveHarness) -> None:
    front.shards.elsewhere.add("u")
    client = await live(front)
    await client.follow("u")  # on a shard that does not reply
    client.stream.remove("t")
    await client.follow("t")
    assert [(one.method, one.params["topic"]) for one in front.shards.pending] == [
        ("feed.open", "u"),
        ("feed.open", "t"),
    ]


async def test_a_stalled_stream_resumes_while_a_shard_is_slow(front: LiveHarness) -> None:
    """A shard that does not respond delays its own topics, not the pages already received."""
    client = await live(front)
    await client.follow("u")
    await long_page(front)
    assert client.stream.is_stalled
    assert [one.method for one in front.shards.pending] == ["feed.open"]
    assert LONG in await client.receive_all()
    assert not client.stream.is_stalled


async def test_a_backlog_is_sent_in_the_order_in_which_it_was_written(front: LiveHarness) -> None:
    client = await live(front)
    await long_page(front)
    for number in range(3):
        client.stream.outbox.write(b": %d\n\n" % number)
    client.stream.outbox.write(b": " + LONG + b"\n\n")
    client.stream.outbox.write(b": last\n\n")
    received = await client.receive_all()
    assert received.endswith(b"\n\n: 0\n\n: 1\n\n: 2\n\n: " + LONG + b"\n\n: last\n\n")


async def test_a_page_that_arrives_during_a_stall_is_read_again_after_it(
    front: LiveHarness,
) -> None:
    """Only the rest of one frame is stored for a stalled client."""
    client = await live(front)
    await client.follow("u")
    await front.answer("feed.open", head_seq=1, earliest_seq=1, epoch=1)
    await long_page(front)
    assert client.stream.is_stalled
    await front.answer("feed.read", LONG, **page(0, 1), epoch=1)
    assert not client.stream.outbox.backlog
    assert (await client.receive_all()).count(LONG) == 1
    await front.answer("feed.read", LONG, **page(0, 1), epoch=1)
    assert (await client.receive_all()).count(LONG) == 1
    assert client.stream.readers["u"].is_live


async def test_a_recreation_is_reported_even_if_its_page_arrives_during_a_stall(
    front: LiveHarness,
) -> None:
    client = await live(front)
    client.session.cursors["u"] = 5, 1
    client.stream.add("u", View(), Start(5, epoch=1))
    client.stream.catch_up()
    await wait_all_tasks_blocked()
    await front.answer("feed.open", head_seq=9, earliest_seq=1, epoch=2)
    await long_page(front)
    again = page(0, 9) | {"tombstone": gap(1, 9, "recreated")}
    await front.answer("feed.read", b'"first"', **again, epoch=2)
    await client.receive_all()
    feed_params = await front.answer("feed.read", b'"first"', **again, epoch=2)
    assert (feed_params["from_seq"], feed_params["epoch"]) == (5, 1)
    assert b'"recreated"' in client.receive()
    assert client.session.cursors["u"] == (9, 2)


async def chunked(front: LiveHarness) -> Client:
    """Return a client like `live`, with a chunked stream."""
    client = await front.client(is_chunked=True)
    await front.answer("feed.open", head_seq=0, earliest_seq=1, epoch=1)
    assert b"caught-up" in Unchunk().feed(client.receive())
    return client


async def test_a_stalled_chunked_stream_sends_complete_chunks(front: LiveHarness) -> None:
    """Waiting data and the end of the body are framed like data that is sent immediately."""
    client = await chunked(front)
    await long_page(front)
    assert client.stream.is_stalled
    for text in (b": first\n\n", b"", b": " + LONG + b"\n\n"):
        client.stream.outbox.write(text)
    body = Unchunk()
    received = body.feed(await client.receive_all())
    assert received.endswith(b"\n\n: first\n\n: " + LONG + b"\n\n")
    assert not body.ended, "an empty write ended the body"
    client.stream.fail(503, "over")
    assert body.feed(client.receive()).startswith(b"event: error\n")
    assert body.ended


async def test_a_chunked_stream_that_ends_during_a_stall_sends_the_last_chunk(
    front: LiveHarness,
) -> None:
    client = await chunked(front)
    while not client.stream.is_stalled:
        client.stream.outbox.write(b": %b\n\n" % (b"x" * 1000))
    client.stream.outbox.write(b": last\n\n")
    body, received = Unchunk(), client.receive()
    client.stream.fail(503, "over")
    events = body.feed(received + client.receive())
    assert b": last\n\nevent: error\n" in events
    assert body.ended


async def test_a_short_event_is_framed_once_for_all_chunked_streams(front: LiveHarness) -> None:
    first, second = await chunked(front), await front.client(is_chunked=True)
    assert second.receive()
    await front.page(0, 1)
    shared = front.live.shared_chunk
    await front.page(1, 2)
    assert front.live.shared_chunk is not shared
    for client in (first, second):
        assert Unchunk().feed(client.receive()).count(b"event: record") == 2
    event = b": x\n\n"
    for client in (first, second):
        client.stream.outbox.write(event)
        assert client.receive() == b"5\r\n: x\n\n\r\n"
        shared, before = front.live.shared_chunk, shared
    assert shared is before
