"""Body framing: the dechunker."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topics.formats.api import body_framing


@given(
    body=st.binary(max_size=300),
    cuts=st.lists(st.integers(1, 40), max_size=20),
    feeds=st.lists(st.integers(1, 30), min_size=1),
)
def test_the_dechunker_gives_the_body_and_stops_at_its_end(
    body: bytes, cuts: list[int], feeds: list[int]
) -> None:
    wire, rest = b"", body
    for cut in [*cuts, 10_000]:
        if rest:
            wire += b"%x\r\n%b\r\n" % (len(rest[:cut]), rest[:cut])
            rest = rest[cut:]
    wire += b"0\r\n\r\n" + b"NEXT"
    parts, got, pos, turn = body_framing.Dechunker(), b"", 0, 0
    while not parts.done:
        size = feeds[turn % len(feeds)]
        turn += 1
        pieces, used = parts.take(wire[pos : pos + size], 0)
        got += b"".join(pieces)
        pos += used
    assert got == body
    assert wire[pos:] == b"NEXT"
