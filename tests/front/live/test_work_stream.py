"""Work streams: what a worker hears, when the next jobs may come, and that its shard hears of its
end.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from tests.front.live.streams_support import BUG, broken
from tests.front.live.work_support import Worker, event, jobs, opened, worker
from tests.support.live_desk import SEND_BYTES, Desk
from topics.front.held_memory import STALL_MAX_S
from topics.front.live.streams import TICK_S

TAKEN, CLOSED = ("work.taken", {"work": 1}), ("work.close", {"work": 1, "pages": 0})
LONG = b'"%b"' % (b"x" * 40 * SEND_BYTES)


async def test_no_more_jobs_come_before_the_socket_has_taken_all(front: Desk) -> None:
    client = await worker(front)
    await jobs(front, 1, data=LONG)
    assert front.shards.told == []
    assert await client.hear_all() == event(1, LONG)
    assert front.shards.told == [TAKEN]


async def test_jobs_behind_a_stalled_heartbeat_are_taken_when_they_are_sent_themselves(
    front: Desk,
) -> None:
    client = await worker(front)
    client.stream.outbox.write(LONG)
    await jobs(front, 1, data=LONG)
    assert client.stream.outbox.backlog
    while client.stream.outbox.backlog:
        client.hear()
        await wait_all_tasks_blocked()
    assert front.shards.told == []
    assert (await client.hear_all()).endswith(event(1, LONG)[-100:])
    assert front.shards.told == [TAKEN]


async def test_a_heartbeat_comes_only_when_nothing_else_was_sent(
    front: Desk, autojump_clock: trio.testing.MockClock
) -> None:
    client = await worker(front)
    await trio.sleep(TICK_S * 1.5)
    assert client.hear() == b""
    client.stream.outbox.last_sent -= client.stream.heartbeat_s
    await trio.sleep(TICK_S * 1.5)
    assert client.hear() == b": hb\n\n"
    client.stream.outbox.last_sent -= client.stream.heartbeat_s
    await jobs(front, 1)
    await trio.sleep(TICK_S * 1.5)
    assert client.hear() == event(1)
    assert front.shards.told == [TAKEN]


@pytest.mark.parametrize("half", [True, False])
async def test_the_leases_of_a_client_that_hangs_up_are_released(front: Desk, half: bool) -> None:
    client = await worker(front)
    client.hang_up(half=half)
    await wait_all_tasks_blocked(0.01)
    assert front.shards.told == [CLOSED]
    assert (client.stream.ended, front.live.streams, front.live.slots.streams.used) == (
        True,
        set(),
        0,
    )


async def test_the_leases_of_a_client_that_resets_are_released(front: Desk) -> None:
    client = await worker(front)
    client.stream.sock.shutdown(2)  # as after a reset: the next write fails
    await jobs(front, 1)
    assert front.shards.told == [CLOSED]


async def test_a_client_that_stalls_is_told_so_and_loses_its_leases(
    front: Desk, autojump_clock: trio.testing.MockClock
) -> None:
    client = await worker(front)
    await jobs(front, 1, data=LONG)
    await trio.sleep(STALL_MAX_S + TICK_S * 1.5)
    assert client.stream.ended
    assert front.shards.told[-1] == ("work.close", {"work": 1, "pages": 1})


@pytest.mark.parametrize(
    ("error", "code"), [("not_a_queue", 409), ("topic_not_found", 404), ("internal", 500)]
)
async def test_a_stream_that_its_shard_ends_says_why(front: Desk, error: str, code: int) -> None:
    client = await worker(front)
    front.event(0, "work.ended", {"work": 1, "error": error, "message": "it was"}, b"")
    await wait_all_tasks_blocked()
    assert client.hear() == b'event: error\ndata: {"code":%d,"error":"it was"}\n\n' % code
    assert (client.stream.ended, front.live.slots.streams.used) == (True, 0)
    assert front.shards.told == [], "the shard has released the leases itself"


async def test_the_drain_ends_a_stream_and_releases_its_leases(front: Desk) -> None:
    client = await worker(front)
    front.live.drain()
    await wait_all_tasks_blocked()
    assert b'"code":503,"error":"the server is shutting down"' in client.hear()
    assert front.shards.told == [CLOSED]


async def test_a_stream_that_begins_during_the_drain_is_told_so(front: Desk) -> None:
    subscription = await opened(front)
    await jobs(front, 1)
    front.live.drain()
    client = Worker(front, subscription)
    await wait_all_tasks_blocked()
    assert client.hear().startswith(b'event: error\ndata: {"code":503')
    assert (front.shards.told, front.live.slots.streams.used) == ([CLOSED], 0)


async def test_an_unexpected_error_ends_one_stream(
    front: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = await worker(front)
    second = await worker(front)
    monkeypatch.setattr(first.stream, "show", broken)
    await jobs(front, 1)
    assert b'"code":500' in first.hear()
    await jobs(front, 2, work=2)
    assert second.hear() == event(2)
    assert front.shards.told == [CLOSED, ("work.taken", {"work": 2})]
    assert [record.message for record in caplog.records] == [BUG]
