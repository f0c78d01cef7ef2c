"""Event streams: their bytes, as a client takes them apart."""

from __future__ import annotations

from topics.front.live.event_stream import HEARTBEAT, RETRY, error_event


def test_an_error_says_its_status_and_what_it_concerns() -> None:
    assert error_event(409, "why", topics=["a"]) == (
        b'event: error\ndata: {"code":409,"error":"why","topics":["a"]}\n\n'
    )


def test_a_client_comes_back_after_two_seconds_and_a_heartbeat_is_a_comment() -> None:
    assert (RETRY, HEARTBEAT) == (b"retry: 2000\n\n", b": hb\n\n")
