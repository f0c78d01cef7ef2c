"""Response heads as bytes."""

from __future__ import annotations

from topics.formats.api.response_heads import NO_STORE, ResponseHeads, field_lines

DATE = b"Sun, 22 Nov 2026 18:00:00 GMT"
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    b"date: Sun, 22 Nov 2026 18:00:00 GMT\r\ncontent-length: 7\r\n"
)


def heads() -> ResponseHeads:
    response_heads = ResponseHeads()
    response_heads.set_date(DATE)
    return response_heads


def test_further_headers_and_the_close_follow_the_length() -> None:
    head = heads().render(200, 7, ((b"a", b"1"), (b"b", b"2")), close=True)
    assert head == HEAD + b"a: 1\r\nb: 2\r\n" + NO_STORE + b"connection: close\r\n\r\n"


def test_a_cache_control_header_of_the_response_replaces_the_default() -> None:
    head = heads().render(200, 7, ((b"cache-control", b"no-cache"),))
    assert head == HEAD + b"cache-control: no-cache\r\n\r\n"


def test_a_cached_head_start_uses_the_current_media_type_and_date() -> None:
    response_heads = heads()
    response_heads.render(200, 7)
    assert b"content-type: text/plain\r\n" in response_heads.render(
        200, 7, media_type=b"text/plain"
    )
    response_heads.set_date(b"later")
    assert b"date: later\r\n" in response_heads.render(200, 7)


def test_field_lines_of_the_exchange_are_in_every_head() -> None:
    lines = field_lines(((b"a", b"1"), (b"b", b"2")))
    assert heads().render(200, 7, lines=lines) == HEAD + b"a: 1\r\nb: 2\r\n" + NO_STORE + b"\r\n"


def test_a_response_without_a_body_has_neither_length_nor_type() -> None:
    expected = (
        b"HTTP/1.1 204 No Content\r\ndate: Sun, 22 Nov 2026 18:00:00 GMT\r\n"
        b"a: 1\r\nb: 2\r\ncache-control: no-store\r\nconnection: close\r\n\r\n"
    )
    assert heads().render_bare(204, ((b"b", b"2"),), lines=b"a: 1\r\n", close=True) == expected
