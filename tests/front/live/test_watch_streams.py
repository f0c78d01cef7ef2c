"""Server-sent events: their bytes, and the cursors of a session after its stream has ended."""

from __future__ import annotations

import socket

from tests.front.live.streams_support import LONG, live, long_page, two
from tests.support.live_harness import LiveHarness, page, records
from topics.engine.access import ANYONE
from topics.formats.api.watch import Start, View
from topics.formats.wire.calls import FeedReadResult
from topics.front.http.connection import Connection, Connections, Timings
from topics.front.live.pages import FeedPage
from topics.front.live.subscriptions import Reader
from topics.front.live.watch_sessions import WatchSession
from topics.front.live.watch_streams import WatchStream

CONNECTIONS = Connections(Timings(), 0.0)


async def test_a_session_sends_partly_sent_records_again(front: LiveHarness) -> None:
    """A client that reconnects without an id gets the record again."""
    client = await live(front)
    await front.page(0, 1)
    assert client.session.cursors == {"t": (1, 1)}
    front.event(0, "feed.page", {"feed": 1, **page(1, 2)}, LONG)
    assert client.stream.is_stalled
    client.close()
    client.session.resume(b"")
    assert client.session.cursors == {"t": (1, 1)}


async def test_records_that_were_sent_late_but_completely_are_not_sent_again(
    front: LiveHarness,
) -> None:
    client = await live(front)
    await long_page(front)
    await client.receive_all()
    client.close()
    client.session.resume(b"")
    assert client.session.cursors == {"t": (1, 1)}


async def test_a_topic_deleted_during_a_stall_is_recorded_as_deleted(front: LiveHarness) -> None:
    client = await live(front)
    await long_page(front)
    front.event(0, "feed.ended", {"feed": 1, "head_seq": 1}, b"")
    client.close()
    client.session.resume(b"")
    assert (client.session.deleted, client.session.cursors) == ({"t": 1}, {"t": (0, 1)})


async def test_a_replaced_stream_changes_no_cursor(front: LiveHarness) -> None:
    client = await live(front)
    await long_page(front)
    client.session.stream = None
    client.close()
    client.session.resume(b"")
    assert client.session.cursors == {"t": (1, 1)}


async def test_sessions_of_one_topic_get_the_same_bytes(front: LiveHarness) -> None:
    first, second = await two(front)
    await front.client(topic="u")
    await front.answer("feed.open", head_seq=0, earliest_seq=1, epoch=1)
    await front.page(0, 1)
    (kept,) = front.live.feeds.by_number[1].kept.pages
    assert first.receive() == second.receive() == kept.renderings[WatchStream]


async def test_sessions_of_several_topics_have_their_own_ids(front: LiveHarness) -> None:
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
