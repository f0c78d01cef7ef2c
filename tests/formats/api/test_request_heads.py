"""Request heads as bytes: pieces, bounds, malformed heads."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import InvalidRequest
from topics.formats.api import request_heads
from topics.formats.api.request_heads import FIELDS_MAX, PartialHead, parse_head


@given(st.binary(max_size=200))
def test_any_bytes_give_the_head_reader_an_answer(junk: bytes) -> None:
    for raw in (junk + b"\r\n\r\n", b"GET / HTTP/1.1\r\nhost: localhost\r\n" + junk + b"\r\n\r\n"):
        try:
            request_heads.parse_head(raw)
        except InvalidRequest:
            continue
        assert b"\0" not in raw


HEAD = b"POST /v0/topics/a HTTP/1.1\r\nhost: x\r\nx-a: \xc3\xa9\r\n\r\n"


@given(st.binary(max_size=30), st.lists(st.integers(1, 20), min_size=1))
def test_a_head_ends_at_the_same_byte_in_any_pieces(behind: bytes, sizes: list[int]) -> None:
    part, pos, turn = PartialHead(), 0, 0
    wire = HEAD + behind
    while True:
        piece = wire[pos : pos + sizes[turn % len(sizes)]]
        used = part.feed(piece)
        pos += len(piece) if used is None else used
        turn += 1
        if used is not None:
            break
    assert (part.whole(), wire[pos:]) == (HEAD, behind)


@pytest.mark.parametrize("bad", [b"\n", b"\ra", b"\0", b"\x7f"])
def test_a_partial_head_is_refused_at_its_first_malformed_byte(bad: bytes) -> None:
    part = PartialHead()
    said = [bytes([byte]) for byte in b"GET / HTTP/1.1\r\nx: " + bad]
    for byte in said[:-1]:
        part.feed(byte)
    with pytest.raises(InvalidRequest):
        part.feed(said[-1])


def test_every_byte_of_a_partial_head_is_searched_at_most_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at = 0

    class Counted:
        def search(self, part: bytearray, pos: int) -> re.Match[bytes] | None:
            nonlocal looked_at
            looked_at += len(part) - pos
            return NEVER.search(part, pos)

    NEVER = request_heads.NEVER_IN_HEAD  # noqa: N806 - it is the pattern's own name
    monkeypatch.setattr(request_heads, "NEVER_IN_HEAD", Counted())
    part = PartialHead()
    for _ in range(20_000):
        part.feed(b"a")
    assert looked_at <= 40_000


def test_a_head_has_at_most_fields_max_fields() -> None:
    fields = b"a:\r\n" * (FIELDS_MAX - 1)
    assert len(parse_head(b"GET / HTTP/1.1\r\nhost: x\r\n" + fields + b"\r\n").fields) == FIELDS_MAX
    with pytest.raises(InvalidRequest, match="more than"):
        parse_head(b"GET / HTTP/1.1\r\nhost: x\r\na:\r\n" + fields + b"\r\n")
