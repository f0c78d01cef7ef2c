"""Request heads as bytes: fragments, bounds, malformed heads."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import InvalidRequest
from topics.formats.api import body_framing, request_heads
from topics.formats.api.request_heads import (
    FIELDS_MAX,
    LIST_MAX,
    HeadFields,
    PartialHead,
    authority_of,
    list_members,
    origin_form,
    parse_head,
)


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_rejected_as_a_head(junk: bytes) -> None:
    for raw in (junk + b"\r\n\r\n", b"GET / HTTP/1.1\r\nhost: localhost\r\n" + junk + b"\r\n\r\n"):
        try:
            request_heads.parse_head(raw)
        except InvalidRequest:
            continue
        assert b"\0" not in raw


HEAD = b"POST /v0/topics/a HTTP/1.1\r\nhost: x\r\nx-a: \xc3\xa9\r\n\r\n"


@given(st.binary(max_size=30), st.lists(st.integers(1, 20), min_size=1))
def test_a_head_ends_at_the_same_byte_for_any_fragments(following: bytes, sizes: list[int]) -> None:
    part, pos, step = PartialHead(), 0, 0
    wire = HEAD + following
    while True:
        chunk = wire[pos : pos + sizes[step % len(sizes)]]
        used = part.feed(chunk)
        pos += len(chunk) if used is None else used
        step += 1
        if used is not None:
            break
    assert (part.complete(), wire[pos:]) == (HEAD, following)


@pytest.mark.parametrize("bad", [b"\n", b"\ra", b"\0", b"\x7f"])
def test_a_partial_head_is_refused_at_its_first_malformed_byte(bad: bytes) -> None:
    part = PartialHead()
    sent = [bytes([byte]) for byte in b"GET / HTTP/1.1\r\nx: " + bad]
    for byte in sent[:-1]:
        part.feed(byte)
    with pytest.raises(InvalidRequest):
        part.feed(sent[-1])


@pytest.mark.parametrize("cut", range(5))
def test_a_partial_head_is_accepted_or_rejected_alike_for_any_fragments(cut: int) -> None:
    malformed = re.compile(rb"(?<!\r)\n|\r(?=[^\n])|\0")
    for letters in itertools.product(b"a\t\r\n\0", repeat=5):
        sent, part, is_rejected = bytes(letters), PartialHead(), False
        if request_heads.HEAD_END in sent:
            continue
        try:
            part.feed(sent[:cut])
            part.feed(sent[cut:])
        except InvalidRequest:
            is_rejected = True
        assert is_rejected == bool(malformed.search(sent)), sent


def test_every_byte_of_a_partial_head_is_searched_at_most_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched_bytes = 0

    class Counted:
        def fullmatch(self, part: bytearray, pos: int) -> re.Match[bytes] | None:
            nonlocal searched_bytes
            searched_bytes += len(part) - pos
            return original.fullmatch(part, pos)

    original = request_heads.SO_FAR
    monkeypatch.setattr(request_heads, "SO_FAR", Counted())
    part = PartialHead()
    for _ in range(20_000):
        part.feed(b"a")
    assert searched_bytes <= 40_000


def test_a_head_has_at_most_fields_max_fields() -> None:
    fields = b"a:\r\n" * (FIELDS_MAX - 1)
    assert len(parse_head(b"GET / HTTP/1.1\r\nhost: x\r\n" + fields + b"\r\n").fields) == FIELDS_MAX
    with pytest.raises(InvalidRequest, match="more than"):
        parse_head(b"GET / HTTP/1.1\r\nhost: x\r\na:\r\n" + fields + b"\r\n")


# Request targets in origin form and absolute form


@pytest.mark.parametrize(
    ("target", "authority", "origin"),
    [
        (b"/a?b", (), b"/a?b"),
        (b"http://host:1/a?b", (b"host:1",), b"/a?b"),
        (b"HTTPS://host", (b"host",), b"/"),
        (b"http://host?b", (b"host",), b"/?b"),
        (b"http:///a", (), b"http:///a"),
        (b"ftp://host/a", (), b"ftp://host/a"),
    ],
)
def test_an_absolute_form_target_is_split_into_authority_and_origin_form(
    target: bytes, authority: tuple[bytes, ...], origin: bytes
) -> None:
    assert (authority_of(target), origin_form(target)) == (authority, origin)


# Header fields that contain lists


def test_a_list_has_at_most_list_max_members() -> None:
    assert list_members(b" A ,b") == [b"a", b"b"]
    assert list_members(b"a," * LIST_MAX + b"close") == [b"a"] * LIST_MAX


def test_removing_a_field_keeps_all_others_in_order() -> None:
    fields = HeadFields([(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4")])
    rest = fields.without(b"a")
    assert (len(rest), rest.values(b"a")) == (2, [])
    assert (rest.values(b"b"), rest.values(b"c")) == ([b"2"], [b"4"])


# Body framing: the dechunker


@given(
    body=st.binary(max_size=300),
    cuts=st.lists(st.integers(1, 40), max_size=20),
    feeds=st.lists(st.integers(1, 30), min_size=1),
)
def test_the_dechunker_returns_the_body_and_stops_at_its_end(
    body: bytes, cuts: list[int], feeds: list[int]
) -> None:
    wire, rest = b"", body
    for cut in [*cuts, 10_000]:
        if rest:
            wire += b"%x\r\n%b\r\n" % (len(rest[:cut]), rest[:cut])
            rest = rest[cut:]
    wire += b"0\r\n\r\n" + b"NEXT"
    parts, received, pos, step = body_framing.ChunkedBody(), b"", 0, 0
    while not parts.done:
        size = feeds[step % len(feeds)]
        step += 1
        chunks, used = parts.take(wire[pos : pos + size], 0)
        received += b"".join(chunks)
        pos += used
    assert received == body
    assert wire[pos:] == b"NEXT"


@pytest.mark.parametrize("wire", [b"1\na\r\n", b"1\r\nab\r\n", b"0\r\nx: \0\r\n", b"-1\r\n"])
def test_a_malformed_chunk_is_rejected(wire: bytes) -> None:
    with pytest.raises(InvalidRequest):
        body_framing.ChunkedBody().take(wire, 0)
