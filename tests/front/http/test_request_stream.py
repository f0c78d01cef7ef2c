"""The stream of requests, without a socket: any cut gives the same heads and bodies."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import InvalidRequest
from topics.formats.api.request_heads import HEAD_MAX_BYTES, parse_head
from topics.front.http.request_stream import RequestStream

HEAD = b"POST /v0/topics/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
REQUESTS = {
    "empty": HEAD % 0,
    "short": HEAD % 3 + b"abc",
    "a body like a head": HEAD % 4 + b"\r\n\r\n",
    "after empty lines": b"\r\n\r\n" + HEAD % 1 + b"x",
    "after many": b"\r\n" * 50 + HEAD % 2 + b"\r\n",
    "long": HEAD % 9000 + b"y" * 9000,
}


class Reader:
    """Takes all complete requests; bodies longer than 5,000 bytes are skipped."""

    def __init__(self) -> None:
        self.stream = RequestStream()
        self.seen: list[Any] = []
        self._length: int | None = None
        self._left = 0

    def receive(self, data: bytes) -> None:
        self.stream.receive(data)
        while self._step():
            pass

    def _step(self) -> bool:
        stream = self.stream
        if self._left:
            self._left = stream.skip(self._left)
            return not self._left
        if self._length is None:
            raw = stream.next_head()
            if raw is None:
                return False
            self.seen.append(raw)
            self._length = parse_head(raw).length or 0
            if self._length > 5000:
                self._left, self._length = self._length, None
                return True
        body = stream.take(self._length)
        if body is None:
            return False
        self.seen.append(body)
        self._length = None
        return True


WIRE = b"".join(REQUESTS.values())


def unsplit() -> Reader:
    reader = Reader()
    reader.receive(WIRE)
    assert len(reader.seen) == 2 * len(REQUESTS) - 1
    return reader


@given(cuts=st.lists(st.integers(1, len(WIRE) - 1), max_size=20))
def test_any_cut_gives_the_same_requests(cuts: list[int]) -> None:
    reader, ends = Reader(), sorted({0, *cuts, len(WIRE)})
    for start, end in pairwise(ends):
        reader.receive(WIRE[start:end])
    assert reader.seen == unsplit().seen
    assert reader.stream.is_idle


@pytest.mark.parametrize("fragment", [b"G", b"GET / HTTP/1.1\r\n", b"\r", b"\r\nG"])
def test_a_stream_with_part_of_a_head_is_not_idle(fragment: bytes) -> None:
    stream = RequestStream()
    assert stream.is_idle
    stream.receive(fragment)
    assert stream.next_head() is None
    assert not stream.is_idle


def test_a_stream_with_only_empty_lines_is_idle() -> None:
    stream = RequestStream(b"\r\n\r\n")
    assert stream.next_head() is None
    assert stream.is_idle


@pytest.mark.parametrize("bad", [b"\0", b"a\nb", b"x" * (HEAD_MAX_BYTES + 1)])
def test_an_invalid_head_is_refused_before_its_end(bad: bytes) -> None:
    with pytest.raises(InvalidRequest):
        RequestStream(bad).next_head()


def test_unread_bytes_keep_their_order() -> None:
    stream = RequestStream(b"abc")
    assert stream.take(2) == b"ab"
    assert stream.take(2) is None
    assert stream.take(1) == b"c"
    stream = RequestStream(b"c")
    stream.receive(b"de")
    assert stream.buffer[stream.pos :] == b"cde"
    assert (stream.skip(5), stream.is_idle) == (2, True)
