"""WebSocket streams: their events as frames, and subscriptions."""

from __future__ import annotations

import json

import pytest
from trio.testing import wait_all_tasks_blocked

from tests.front.conftest import Logged
from tests.support.live_harness import LiveHarness, press
from topics.errors import Internal, InvalidRequest
from topics.formats.api.watch import Start, View, WatchRequest
from topics.front.live.web_socket_stream import refusal


@pytest.mark.parametrize(
    ("code", "name", "close_code"),
    [(408, "throttled", 1008), (500, "internal", 1011), (503, "shutting_down", 1001)],
)
async def test_a_websocket_gets_the_error_and_a_close_code(
    front: LiveHarness, code: int, name: str, close_code: int
) -> None:
    client = front.socket()
    client.stream.fail(code, "why")
    received = client.receive()
    assert b'"code":"%b"' % name.encode() in received
    assert received.endswith(close_code.to_bytes(2, "big") + b"why")
    assert (client.stream.ended, len(front.live.streams)) == (True, 0)


def watch_request(**starts: Start) -> WatchRequest:
    return WatchRequest(starts, View(), 15_000)


async def test_topics_of_repeated_subscriptions_count_once(front: LiveHarness) -> None:
    front.shards.heads = dict.fromkeys("tuv", (0, 1, 1))
    client = front.socket()
    stream = client.stream
    await stream.subscribe(b"1", watch_request(t=Start(0), u=Start(0)), 2)
    await stream.subscribe(b"2", watch_request(t=Start(0)), 2)
    with pytest.raises(InvalidRequest, match="more than 2 topics"):
        await stream.subscribe(b"3", watch_request(v=Start(0)), 2)
    assert b'"op":"unsubscribed"' in stream.unsubscribe(b"4", "u")
    await stream.subscribe(b"5", watch_request(v=Start(0)), 2)
    assert stream.readers.keys() == {"t", "v"}


async def test_a_paced_socket_gets_a_notice_after_a_page_and_continues(front: LiveHarness) -> None:
    front.shards.heads = {"t": (0, 1, 1)}
    client = front.socket()
    stream = client.stream
    await stream.subscribe(b"7", watch_request(t=Start(0)), 1)
    await wait_all_tasks_blocked()
    await front.answer("feed.open", head_seq=0, earliest_seq=1, epoch=1)
    press(front.pressure, pace=1.0)
    client.receive()
    await front.page(0, 1)
    received = client.receive()
    at = received.index(b'{"op":"error"')
    assert b'"op":"record"' in received[:at]
    assert json.loads(received[at:]) == {
        "op": "error",
        "request_id": None,
        "code": "throttled",
        "message": "watch throttled under CPU pressure",
        "retry_after_ms": 750,
        "topics": ["t"],
    }
    await front.page(1, 2)
    assert client.receive().count(b'"op"') == 1


def test_an_unexpected_error_is_logged_but_not_sent_to_the_client(logged: Logged) -> None:
    refused = refusal(b"1", Internal("a secret of the shard"))
    assert b'"request_id":1,"code":"internal","message":"internal error"}' in refused
    assert b"secret" not in refused
    assert logged[0]["error"] == "a secret of the shard"
