"""WebSocket streams: their events as frames, and what a subscription tells."""

from __future__ import annotations

import json
import socket

import pytest
from trio.testing import wait_all_tasks_blocked

from tests.support.live_desk import Desk, desk, page, press, records, socket_pair
from topics.config import Settings
from topics.engine.access import ANYONE
from topics.errors import InvalidRequest, TopicNotFound
from topics.formats.api.limits import limits_of
from topics.formats.api.watch import Start, View, WatchRequest
from topics.formats.wire.calls import FeedReadResult
from topics.front.http.connection import Connection, Connections, Timings
from topics.front.live.pages import FeedPage
from topics.front.live.web_socket import WebSocket
from topics.front.live.web_socket_stream import WebSocketStream


@pytest.mark.parametrize(
    ("code", "name", "close_code"),
    [(408, "throttled", 1008), (500, "internal", 1011), (503, "shutting_down", 1001)],
)
async def test_a_websocket_is_told_what_went_wrong(code: int, name: str, close_code: int) -> None:
    ours, theirs = socket.socketpair()
    async with desk() as front:
        with ours, theirs:
            connection = Connection(ours, Connections(Timings(), 0.0))
            stream = WebSocket(front.live, connection, ANYONE, Settings(), limits_of(Settings()))
            stream.begin()
            stream.fail(code, "why")
            told = theirs.recv(1000)
            assert b'"code":"%b"' % name.encode() in told
            assert told.endswith(close_code.to_bytes(2, "big") + b"why")
            assert (stream.ended, len(front.live.streams)) == (True, 0)


def joined(front: Desk) -> tuple[WebSocketStream, socket.socket]:
    """A socket that follows nothing yet, and its client's end."""
    ours, theirs = socket_pair()
    stream = WebSocketStream(front.live, ours, ANYONE, 15.0)
    stream.begin()
    return stream, theirs


def asked(**starts: Start) -> WatchRequest:
    return WatchRequest(starts, View(), 15_000)


async def test_a_subscription_is_answered_before_any_event_of_its_topics(front: Desk) -> None:
    front.shards.heads = {"t": (5, 2, 1), "u": (0, 1, 1)}
    stream, client = joined(front)
    with client, stream.sock:
        await stream.subscribe(b"7", asked(t=Start(3), u=Start(0, tail=True)), 2)
        told = client.recv(4096)
        assert json.loads(told[told.index(b"{") :]) == {
            "op": "subscribed",
            "request_id": 7,
            "topics": {
                "t": {"from_seq": 3, "head_seq": 5, "earliest_seq": 2, "epoch": 1},
                "u": {"from_seq": 0, "head_seq": 0, "earliest_seq": 1, "epoch": 1},
            },
        }
        assert stream.readers.keys() == {"t", "u"}
        await wait_all_tasks_blocked()
        assert [params["topic"] for _, params, _ in front.shards.asked] == ["t"]
        stream.end()


async def test_a_subscription_with_an_unknown_topic_follows_none_of_its_topics(
    front: Desk,
) -> None:
    front.shards.heads = {"t": (5, 2, 1)}
    stream, client = joined(front)
    with client, stream.sock:
        with pytest.raises(TopicNotFound):
            await stream.subscribe(b"7", asked(t=Start(0), u=Start(0)), 9)
        assert stream.readers == {}
        stream.end()


async def test_topics_that_are_followed_already_count_once(front: Desk) -> None:
    front.shards.heads = dict.fromkeys("tuv", (0, 1, 1))
    stream, client = joined(front)
    with client, stream.sock:
        await stream.subscribe(b"1", asked(t=Start(0), u=Start(0)), 2)
        await stream.subscribe(b"2", asked(t=Start(0)), 2)
        with pytest.raises(InvalidRequest, match="more than 2 topics"):
            await stream.subscribe(b"3", asked(v=Start(0)), 2)
        assert b'"op":"unsubscribed"' in stream.unsubscribe(b"4", "u")
        await stream.subscribe(b"5", asked(v=Start(0)), 2)
        assert stream.readers.keys() == {"t", "v"}
        stream.end()


async def test_all_sockets_are_sent_the_same_frame_of_a_page(front: Desk) -> None:
    front.shards.heads = {"t": (0, 1, 1)}
    stream, client = joined(front)
    with client, stream.sock:
        await stream.subscribe(b"1", asked(t=Start(0)), 1)
        reader = stream.readers["t"]
        shown = FeedPage("t", FeedReadResult(**page(0, 2), epoch=1), records(0, 2))
        (frame,) = stream.page_event(reader, shown)
        assert frame is stream.page_event(reader, shown)[0]
        assert json.loads(frame[2:]) == {
            "op": "record",
            "topic": "t",
            "from_seq": 0,
            "to_seq": 2,
            "head_seq": 2,
            "records": [{"$seq": 1}, {"$seq": 2}],
        }
        stream.end()


async def test_a_paced_socket_is_told_so_behind_a_page_and_goes_on(front: Desk) -> None:
    front.shards.heads = {"t": (0, 1, 1)}
    stream, client = joined(front)
    with client, stream.sock:
        await stream.subscribe(b"7", asked(t=Start(0)), 1)
        await wait_all_tasks_blocked()
        await front.answer("feed.open", head_seq=0, earliest_seq=1, epoch=1)
        press(front.pressure, pace=1.0)
        client.recv(4096)
        await front.page(0, 1)
        told = client.recv(4096)
        at = told.index(b'{"op":"error"')
        assert b'"op":"record"' in told[:at]
        assert json.loads(told[at:]) == {
            "op": "error",
            "request_id": None,
            "code": "throttled",
            "message": "watch throttled under CPU pressure",
            "retry_after_ms": 750,
            "topics": ["t"],
        }
        await front.page(1, 2)
        assert client.recv(4096).count(b'"op"') == 1
        stream.end()
