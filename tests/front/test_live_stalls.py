"""Clients that do not read: what waits for them, who waits with them, and what is left of them when
they go.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.front.live_support import SEND_BYTES, Client, Desk, desk, gap, page, socket_pair
from topics.config import Settings
from topics.engine.access import ANYONE
from topics.formats.api.requests import limits_of
from topics.formats.api.watch import Start, View
from topics.front.http.connections import Connection, Connections, Timings
from topics.front.live.live import TICK_S
from topics.front.live.web_socket import ASKED_MAX, SocketStream

LONG = b'{"$seq":1,"data":"%b"}' % (b"x" * 40 * SEND_BYTES)


@pytest.fixture
async def front() -> AsyncIterator[Desk]:
    async with desk() as made:
        yield made


async def live(front: Desk) -> Client:
    """A client at the head of its feed."""
    client = await front.client()
    await front.answer("feed.open", head_seq=0, earliest_seq=1, epoch=1)
    assert b"caught-up" in client.hear()
    return client


async def long_page(front: Desk) -> None:
    """One record, more than a socket takes at once."""
    front.event(0, "feed.page", {"feed": 1, **page(0, 1)}, LONG)
    await wait_all_tasks_blocked()


async def test_what_a_client_did_not_take_waits_and_comes_when_it_reads(front: Desk) -> None:
    client = await live(front)
    await long_page(front)
    assert client.stream.is_stalled
    assert LONG in await client.hear_all()
    assert not client.stream.is_stalled


async def test_nothing_is_left_of_a_stream_that_ended_while_its_client_did_not_read(
    front: Desk,
) -> None:
    client = await live(front)
    tasks = len(front.live.nursery.child_tasks)
    await long_page(front)
    assert client.stream.is_stalled
    client.close()
    await wait_all_tasks_blocked()
    assert len(front.live.nursery.child_tasks) == tasks


async def test_a_shard_that_takes_long_delays_its_own_topics_only(front: Desk) -> None:
    front.shards.elsewhere.add("u")
    client = await live(front)
    await client.follow("u")  # of a shard that does not answer
    client.stream.remove("t")
    await client.follow("t")
    assert [(method, params["topic"]) for method, params, _ in front.shards.asked] == [
        ("feed.open", "u"),
        ("feed.open", "t"),
    ]


async def test_what_waits_for_a_client_does_not_wait_for_a_shard_too(front: Desk) -> None:
    """A shard that takes long costs a stream the topics that it has, not those that came."""
    client = await live(front)
    await client.follow("u")
    await long_page(front)
    assert client.stream.is_stalled
    assert [method for method, _, _ in front.shards.asked] == ["feed.open"]
    assert LONG in await client.hear_all()
    assert not client.stream.is_stalled


async def test_what_is_said_to_a_client_that_does_not_read_comes_in_its_order(front: Desk) -> None:
    client = await live(front)
    await long_page(front)
    for number in range(3):
        client.stream.write(b": %d\n\n" % number)
    client.stream.write(b": " + LONG + b"\n\n")
    client.stream.write(b": last\n\n")
    told = await client.hear_all()
    assert told.endswith(b"\n\n: 0\n\n: 1\n\n: 2\n\n: " + LONG + b"\n\n: last\n\n")


async def test_a_page_that_was_asked_for_before_a_stall_is_read_again_after_it(front: Desk) -> None:
    """Nothing waits for a client but the rest of one frame."""
    client = await live(front)
    await client.follow("u")
    await front.answer("feed.open", head_seq=1, earliest_seq=1, epoch=1)
    await long_page(front)
    assert client.stream.is_stalled
    await front.answer("feed.read", LONG, **page(0, 1), epoch=1)
    assert not client.stream._behind
    assert (await client.hear_all()).count(LONG) == 1
    await front.answer("feed.read", LONG, **page(0, 1), epoch=1)
    assert (await client.hear_all()).count(LONG) == 1
    assert client.stream.readers["u"].is_live


async def test_a_session_has_not_shown_what_its_client_was_not_sent_whole(front: Desk) -> None:
    """Whoever comes back without an id is shown it again."""
    client = await live(front)
    await front.page(0, 1)
    assert client.session.cursors == {"t": (1, 1)}
    front.event(0, "feed.page", {"feed": 1, **page(1, 2)}, LONG)
    assert client.stream.is_stalled
    client.close()
    client.session.resume(b"")
    assert client.session.cursors == {"t": (1, 1)}


async def test_what_came_late_but_whole_has_been_shown(front: Desk) -> None:
    client = await live(front)
    await long_page(front)
    await client.hear_all()
    client.close()
    client.session.resume(b"")
    assert client.session.cursors == {"t": (1, 1)}


async def test_a_topic_that_ended_behind_what_was_not_taken_has_ended(front: Desk) -> None:
    client = await live(front)
    await long_page(front)
    front.event(0, "feed.ended", {"feed": 1, "head_seq": 1}, b"")
    client.close()
    client.session.resume(b"")
    assert (client.session.deleted, client.session.cursors) == ({"t": 1}, {"t": (0, 1)})


async def test_a_stream_that_was_taken_over_takes_nothing_back(front: Desk) -> None:
    client = await live(front)
    await long_page(front)
    client.session.stream = None
    client.close()
    client.session.resume(b"")
    assert client.session.cursors == {"t": (1, 1)}


async def test_a_topic_made_again_is_told_although_its_page_came_in_a_stall(front: Desk) -> None:
    client = await live(front)
    client.session.cursors["u"] = 5, 1
    client.stream.add("u", View(), Start(5, epoch=1))
    client.stream.catch_up()
    await wait_all_tasks_blocked()
    await front.answer("feed.open", head_seq=9, earliest_seq=1, epoch=2)
    await long_page(front)
    again = page(0, 9) | {"tombstone": gap(1, 9, "recreated")}
    await front.answer("feed.read", b'"first"', **again, epoch=2)
    await client.hear_all()
    asked = await front.answer("feed.read", b'"first"', **again, epoch=2)
    assert (asked["from_seq"], asked["epoch"]) == (5, 1)
    assert b'"recreated"' in client.hear()
    assert client.session.cursors["u"] == (9, 2)


async def test_a_stream_that_begins_while_the_server_goes_down_hears_so(front: Desk) -> None:
    front.live.drain()
    client = await front.client()
    assert b'"code":503' in client.hear()
    assert (client.stream.ended, front.live.streams) == (True, set())


PATIENCE = Timings(body_grace_s=0.3, body_bytes_per_s=20)
BEGUN = bytes.fromhex("81 85 00000000") + b"four"  # of five


@asynccontextmanager
async def web_socket(front: Desk) -> AsyncIterator[tuple[SocketStream, socket.socket]]:
    ours, theirs = socket_pair()
    stream = SocketStream(
        front.live,
        Connection(ours, Connections(PATIENCE, 0.0)),
        ANYONE,
        Settings(),
        limits_of(Settings()),
    )
    with ours, theirs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.run)
            await wait_all_tasks_blocked()
            yield stream, theirs
            nursery.cancel_scope.cancel()


async def test_a_message_that_does_not_come_to_its_end_ends_its_socket(front: Desk) -> None:
    async with web_socket(front) as (stream, client), web_socket(front) as (idle, _):
        client.send(BEGUN)
        await trio.sleep(PATIENCE.body_grace_s + 2 * TICK_S)
        assert stream.ended
        assert b'"code":"throttled","message":"the message took too long to come"' in client.recv(
            1000
        )
        assert not idle.ended


async def test_a_message_that_comes_slowly_but_steadily_is_waited_for(front: Desk) -> None:
    """Ten bytes a fragment buy half a second, and come every 0.2."""
    async with web_socket(front) as (stream, client):
        client.send(bytes.fromhex("01 80 00000000"))
        for _ in range(6):
            await trio.sleep(PATIENCE.body_grace_s / 1.5)
            client.send(bytes.fromhex("00 84 00000000") + b"four")
        assert not stream.ended
        client.send(bytes.fromhex("80 80 00000000") + bytes.fromhex("88 80 00000000"))
        await trio.sleep(0.05)
        assert b"invalid_request" in client.recv(1000)  # it was heard as a whole, and is no JSON


async def test_a_message_whose_rest_is_not_read_because_a_shard_takes_long_is_not_late(
    front: Desk,
) -> None:
    publish = b'{"op":"publish","topic":"t","request_id":1,"data":1}'
    async with web_socket(front) as (stream, client):
        said = (bytes((0x81, 0x80 | len(publish), 0, 0, 0, 0)) + publish) * ASKED_MAX + BEGUN
        client.send(said[:10])
        await wait_all_tasks_blocked()
        client.send(said[10:])
        await trio.sleep(PATIENCE.body_grace_s + 2 * TICK_S)
        assert not stream.ended
