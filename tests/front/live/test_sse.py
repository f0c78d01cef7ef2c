"""Server-sent events: their bytes, and which cursors a session has when its stream ends."""

from __future__ import annotations

from tests.front.live.streams_support import LONG, live, long_page
from tests.support.live_desk import Desk, page


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
