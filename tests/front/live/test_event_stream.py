"""Event streams: their bytes, as a client takes them apart."""

from __future__ import annotations

import pytest

from topics.front.live.event_stream import HEARTBEAT, RETRY, data_lines, error_event


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"], ids=["LF", "CR", "CRLF"])
def test_line_ends_within_json_begin_another_data_line(end: bytes) -> None:
    assert data_lines(b'{"a":' + end + b"1}") == b'data: {"a":\ndata: 1}'


def test_json_without_line_ends_is_one_data_line() -> None:
    assert data_lines(b'{"a":"\\n"}') == b'data: {"a":"\\n"}'


def test_an_error_says_its_status_and_what_it_concerns() -> None:
    assert error_event(409, "why", topics=["a"]) == (
        b'event: error\ndata: {"code":409,"error":"why","topics":["a"]}\n\n'
    )


def test_a_client_comes_back_after_two_seconds_and_a_heartbeat_is_a_comment() -> None:
    assert (RETRY, HEARTBEAT) == (b"retry: 2000\n\n", b": hb\n\n")
