"""Request heads without the name of their topic: exactly a plain name is cut out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import TopicsError
from topics.formats.api.request_heads import HEAD_MAX_BYTES, cut_topic_name, parse_head
from topics.formats.names import valid_topic_name
from topics.front.table import match

FIELDS = b"Host: localhost\r\nContent-Length: 2\r\n\r\n"


def head(line: bytes) -> bytes:
    return line + b" HTTP/1.1\r\n" + FIELDS


@pytest.mark.parametrize(
    ("line", "without", "name"),
    [
        (b"PUT /v0/topics/a", b"PUT /v0/topics/", "a"),
        (b"POST /v0/topics/a.b:c-1_Z/diff", b"POST /v0/topics//diff", "a.b:c-1_Z"),
        (b"POST /v0/topics/a?return_seqs=false", b"POST /v0/topics/?return_seqs=false", "a"),
        (b"GET /v0/topics/" + b"n" * 255, b"GET /v0/topics/", "n" * 255),
    ],
)
def test_the_name_of_a_topic_is_cut_out(line: bytes, without: bytes, name: str) -> None:
    assert cut_topic_name(head(line)) == (head(without), name)


@pytest.mark.parametrize(
    "line",
    [
        *(b"GET /v0/topics", b"GET /v0/topics?prefix=a", b"GET /v0/topics/"),
        *(b"POST /v0/topics//diff", b"GET /v0/topics/-a", b"GET /v0/topics/%61"),
        *(b"GET /v0/topics/a%2Fdiff", b"GET /v0/topics/a#b", b"GET /v0/topics/\xc3\xa9"),
        *(b"GET /v0/topics/" + b"n" * 256, b"GET /v0/routers/a"),
        *(b"GET http://localhost/v0/topics/a", b"get /v0/topics/a"),
        *(b"G" * 17 + b" /v0/topics/a", b"GET  /v0/topics/a"),
    ],
)
def test_other_heads_are_not_cut(line: bytes) -> None:
    assert cut_topic_name(head(line)) is None


def test_a_head_is_cut_only_up_to_the_maximum_size() -> None:
    raw = head(b"PUT /v0/topics/abc")
    long = raw[:-2] + b"x: " + b"y" * (HEAD_MAX_BYTES - len(raw) - 5) + b"\r\n\r\n"
    assert len(long) == HEAD_MAX_BYTES
    assert cut_topic_name(long) is not None
    assert cut_topic_name(long.replace(b"y", b"yy", 1)) is None


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_heads_that_are_equal_without_names_differ_only_in_their_names(
    start: bytes, end: bytes
) -> None:
    raw = b"PUT /v0/topics/" + start + b" HTTP/1.1\r\n" + end
    cut = cut_topic_name(raw)
    if cut is None:
        return
    without, name = cut
    assert valid_topic_name(name)
    assert raw == without[:15] + name.encode() + without[15:]
    assert without[15:16] in (b" ", b"/", b"?")


@given(
    st.from_regex(r"[A-Za-z0-9._:/?%#=-]{0,40}", fullmatch=True), st.sampled_from(["POST", "PUT"])
)
def test_the_route_table_and_cut_topic_name_find_the_same_name(rest: str, method: str) -> None:
    raw = head(f"{method} /v0/topics/{rest}".encode())
    cut = cut_topic_name(raw)
    if cut is None:
        return
    try:
        matched = match(method, parse_head(raw).target)
    except TopicsError:
        return
    assert matched.topic == cut[1]
