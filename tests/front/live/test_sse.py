"""Server-sent events: their bytes, and which cursors a session has when its stream ends."""

from __future__ import annotations

import socket

import pytest

from tests.front.live.streams_support import LONG, live, long_page, two
from tests.support.live_desk import Desk, gap, page, records
from topics.engine.access import ANYONE
from topics.formats.api.watch import Start, View
from topics.formats.wire.calls import FeedReadResult
from topics.front.http.connection import Connection, Connections, Timings
from topics.front.live.pages import FeedPage
from topics.front.live.sse import WatchStream
from topics.front.live.subscriptions import Reader
from topics.front.live.watch_sessions import WatchSession

CONNECTIONS = Connections(Timings(), 0.0)


async def test_a_session_shows_again_what_was_not_sent_whole(front: Desk) -> None:
    """Whoever comes back without an id is shown it again."""
    client = await live(front)
    await front.page(0, 1)
    assert client.session.cursors == {"t": (1, 1)}
    front.event(0, "feed.page", {"feed": 1, **page(1, 2)}, LONG)
    assert client.stream.is_stalled
    client.close()
    client.session.resume(b"")
    assert client.session.cursors == {"t": (1, 1)}


async def test_what_was_sent_late_but_whole_was_shown(front: Desk) -> None:
    client = await live(front)
    await long_page(front)
    await client.hear_all()
    client.close()
    client.session.resume(b"")
    assert client.session.cursors == {"t": (1, 1)}


async def test_a_topic_deleted_during_a_stall_is_noted_as_deleted(front: Desk) -> None:
    client = await live(front)
    await long_page(front)
    front.event(0, "feed.ended", {"feed": 1, "head_seq": 1}, b"")
    client.close()
    client.session.resume(b"")
    assert (client.session.deleted, client.session.cursors) == ({"t": 1}, {"t": (0, 1)})


async def test_a_stream_that_was_taken_over_changes_no_cursor(front: Desk) -> None:
    client = await live(front)
    await long_page(front)
    client.session.stream = None
    client.close()
    client.session.resume(b"")
    assert client.session.cursors == {"t": (1, 1)}


async def test_every_event_but_errors_has_the_id_of_its_session(front: Desk) -> None:
    client = await live(front)
    await front.page(0, 1, tombstone=gap(1, 1))
    first = client.session.id()
    await front.page(1, 2)
    told = client.hear()
    assert told.startswith(b"id: %b\nevent: tombstone\ndata: {" % first)
    data = b'{"topic":"t","records":[{"$seq":2}],"from_seq":1,"to_seq":2,"head_seq":2}'
    assert told.endswith(b"id: %b\nevent: record\ndata: %b\n\n" % (client.session.id(), data))
    client.stream.fail(503, "bye")
    assert client.hear() == b'event: error\ndata: {"code":503,"error":"bye"}\n\n'


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
async def test_a_line_end_in_a_payload_begins_another_line_of_data(front: Desk, end: bytes) -> None:
    client = await live(front)
    body = b'{"data":[1,%b2]}' % end
    front.event(0, "feed.page", {"feed": 1, **page(0, 1)}, body)
    told = client.hear()
    assert b'{"data":[1,\ndata: 2]}' in told
    assert told.count(b"\n\n") == 1


async def test_sessions_of_one_topic_are_sent_the_same_bytes(front: Desk) -> None:
    first, second = await two(front)
    await front.client(topic="u")
    await front.answer("feed.open", head_seq=0, earliest_seq=1, epoch=1)
    await front.page(0, 1)
    (kept,) = front.live.feeds.by_number[1].kept.pages
    assert first.hear() == second.hear() == kept.renderings[WatchStream]


async def test_a_resumed_stream_is_told_again_which_topics_were_deleted(front: Desk) -> None:
    client = await live(front)
    client.stream.repeat_deleted()
    assert client.hear() == b""
    client.session.deleted["gone"] = 7
    client.stream.repeat_deleted()
    assert client.hear().endswith(
        b'event: topic-deleted\ndata: {"topic":"gone","head_seq":7,"reason":"deleted"}\n\n'
    )


async def test_sessions_of_several_topics_have_ids_of_their_own(front: Desk) -> None:
    shown = FeedPage("t", FeedReadResult(**page(0, 1), epoch=1), records(0, 1))
    events = []
    for seq in (3, 4):
        session = WatchSession("wid", ANYONE, View(), 15.0, {"t": (1, 1), "u": (seq, 1)})
        with socket.socket() as sock:
            stream = WatchStream(front.live, session, Connection(sock, CONNECTIONS))
            reader = Reader(stream, "t", 0, View(), Start(1))
            events.append(b"".join(stream.page_event(reader, shown)))
            assert events[-1].startswith(b"id: %b\n" % session.id())
    assert events[0] != events[1]
