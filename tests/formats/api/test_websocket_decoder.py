"""Every way to break a stream of WebSocket frames, and that neither the cut of a stream nor junk in
it matters.
"""

from __future__ import annotations

import random
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.websocket_streams import (
    KEY,
    MAX_BYTES,
    STREAMS,
    byte_by_byte,
    frame,
    parse,
)
from topics.formats.api import websocket_decoder
from topics.formats.api.websocket_decoder import WebSocketDecoder
from topics.formats.api.websocket_frames import (
    Binary,
    Close,
    Event,
    Failure,
    Ping,
    Pong,
    Text,
    close_frame,
    text_frame,
    unmask,
)


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        ("8185 37fa213d 7f9f4d5158", [Text(b"Hello")]),
        ("0183 37fa213d 7f9f4d 8082 00000000 6c6f", [Text(b"Hello")]),
        ("8985 37fa213d 7f9f4d5158", [Ping(b"Hello")]),
        ("8a85 37fa213d 7f9f4d5158", [Pong(b"Hello")]),
        ("8180 37fa213d", [Text(b"")]),
        ("0180 37fa213d 0080 37fa213d 8080 37fa213d", [Text(b"")]),
        ("8880 37fa213d", [Close(1005, "")]),
        ("8882 37fa213d 3412", [Close(1000, "")]),
    ],
)
def test_the_examples_of_the_rfc_are_decoded(stream: str, events: list[Event]) -> None:
    assert parse(bytes.fromhex(stream)) == events
    assert byte_by_byte(bytes.fromhex(stream)) == events


BROKEN = [
    (text_frame(b"Hello"), 1002, "must be masked"),
    *((frame(first, b"x"), 1002, "reserved bits") for first in (0xC1, 0xA1, 0x91)),
    *((frame(0x80 | code), 1002, f"unknown opcode {code}") for code in (3, 7, 11, 15)),
    *((frame(code), 1002, "must not be fragmented") for code in (8, 9, 10)),
    *((frame(0x80 | code, b"x" * 126), 1002, "at most 125") for code in (8, 9, 10)),
    (frame(0x80, b"x"), 1002, "continuation without"),
    (frame(0x81, b"x") + frame(0x00, b"x"), 1002, "continuation without"),
    (frame(0x01, b"x") + frame(0x81, b"x"), 1002, "within a fragmented"),
    (frame(0x02) + frame(0x89) + frame(0x02), 1002, "within a fragmented"),
    (b"\x81\xfe\x00\x7d" + KEY, 1002, "shortest form"),
    (b"\x82\xff" + (65_535).to_bytes(8) + KEY, 1002, "shortest form"),
    (b"\x82\xff" + (1 << 63).to_bytes(8) + KEY, 1002, "top bit"),
    (b"\x82\xff" + (MAX_BYTES + 1).to_bytes(8), 1009, f"{MAX_BYTES} bytes"),  # by its header
    (frame(0x02, b"x") + b"\x80\xff" + MAX_BYTES.to_bytes(8), 1009, f"{MAX_BYTES} bytes"),
    (frame(0x88, b"\x03"), 1002, "one byte"),
    *((frame(0x88, b"\x03\xe8" + cut), 1007, "reason") for cut in (b"\xff", b"\xc3")),
    *((frame(0x81, cut), 1007, "UTF-8") for cut in (b"\xff", b"abc\xe2\x82", b"\xed\xa0\x80")),
    *((frame(0x81, b"x" * size + b"\xff"), 1007, "UTF-8") for size in (2000, 70_000)),
    (frame(0x01, b"\xe2\x82") + frame(0x80, b"A"), 1007, "UTF-8"),
    (frame(0x01, b"\xe2\x82") + frame(0x80), 1007, "UTF-8"),
    (frame(0x01, b"\xff"), 1007, "UTF-8"),  # before the message ends
]


@pytest.mark.parametrize(("broken", "code", "reason"), BROKEN)
def test_what_breaks_the_protocol_ends_the_stream(broken: bytes, code: int, reason: str) -> None:
    stream = frame(0x81, b"before") + broken
    for events in (
        parse(stream + frame(0x81, b"after")),
        byte_by_byte(stream + frame(0x81, b"after")),
    ):
        assert events[0] == Text(b"before")
        failure = events[-1]
        assert isinstance(failure, Failure)
        assert failure.code == code
        assert reason in failure.reason
        assert close_frame(failure.code, failure.reason)[4:].decode() == failure.reason, "it fits"


@pytest.mark.parametrize("last", [frame(0x88), frame(0xFF)])
def test_nothing_is_decoded_after_the_end(last: bytes) -> None:
    parser = WebSocketDecoder(MAX_BYTES)
    assert not parser.ended
    assert len(parser.feed(last + frame(0x81, b"x"))) == 1
    assert parser.ended
    assert parser.feed(frame(0x81, b"x")) == parser.feed(b"") == []


def test_control_frames_come_between_the_fragments_they_interrupt() -> None:
    stream = (
        frame(0x01, b"\xe2")
        + frame(0x89, b"1")
        + frame(0x00, b"\x82")
        + frame(0x8A, b"2")
        + frame(0x80, b"\xac")
        + frame(0x81, b"x")
    )
    assert (
        parse(stream)
        == byte_by_byte(stream)
        == [Ping(b"1"), Pong(b"2"), Text("€".encode()), Text(b"x")]
    )


@pytest.mark.parametrize("size", [0, 1, 100, 125, 126, 1024, 1025, 65_536, 65_537])
def test_a_message_of_the_longest_length_passes_and_one_byte_more_fails(size: int) -> None:
    assert parse(frame(0x81, b"x" * size), size) == [Text(b"x" * size)]
    assert parse(frame(0x01, b"x" * size) + frame(0x80), size) == [Text(b"x" * size)]
    for stream in (frame(0x81, b"x" * (size + 1)), frame(0x01, b"x" * size) + frame(0x80, b"x")):
        assert (
            parse(stream, size)
            == byte_by_byte(stream, size)
            == [Failure(1009, f"a message may have at most {size} bytes")]
        )
    assert parse(frame(0x89, b"x" * 125), 0) == [Ping(b"x" * 125)], "a control frame is no message"


@pytest.mark.parametrize(
    "length", [*range(20), 125, 126, 1023, 1024, 1025, 1026, 1027, 65_535, 65_536, 65_537, 200_001]
)
def test_every_length_is_unmasked(length: int) -> None:
    chance = random.Random(length)
    payload, key = chance.randbytes(length), chance.randbytes(4)
    assert parse(frame(0x82, payload, key)) == [Binary(payload)]
    text = payload.hex()[:length].encode()
    assert parse(frame(0x81, text, key) * 2) == [Text(text)] * 2


@given(STREAMS, st.lists(st.integers(0, 4000)), st.sampled_from([MAX_BYTES, 1000, 30]))
def test_the_events_are_the_same_wherever_the_stream_is_cut(
    stream: bytes, cuts: list[int], max_bytes: int
) -> None:
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    parser = WebSocketDecoder(max_bytes)
    assert [
        event for start, end in pairwise(bounds) for event in parser.feed(stream[start:end])
    ] == parse(stream, max_bytes)
    if len(stream) < 500:
        assert byte_by_byte(stream, max_bytes) == parse(stream, max_bytes)


@given(STREAMS, st.binary(max_size=40))
def test_more_bytes_do_not_change_the_events_before_them(stream: bytes, more: bytes) -> None:
    events = parse(stream)
    assert parse(stream + more)[: len(events)] == events


@given(st.lists(st.binary(max_size=100), max_size=20), st.integers(0, 200))
def test_any_bytes_give_an_answer(junk: list[bytes], max_bytes: int) -> None:
    parser = WebSocketDecoder(max_bytes)
    for data in junk:
        for event in parser.feed(data):
            assert not isinstance(event, Text | Binary) or len(event.payload) <= max_bytes
    assert len(parser._data) < 2 + 8 + 4 + 125
    assert parser._message.tell() <= max_bytes


@pytest.mark.parametrize(
    "whole",
    [
        *(frame(0x81, b"short"), frame(0x82, b"x" * 70_000), frame(0x89, b"a ping")),
        frame(0x01, b"in ") + frame(0x89, b"?") + frame(0x80, b"two"),
    ],
)
def test_an_incomplete_message_or_frame_is_known(whole: bytes) -> None:
    for cut in (1, 2, 5, 6, 7, len(whole) // 2, len(whole) - 1):
        parser = WebSocketDecoder(MAX_BYTES)
        assert not parser.is_amid
        parser.feed(frame(0x81, b"before") + whole[:cut])
        assert parser.is_amid
        parser.feed(whole[cut:])
        assert not parser.is_amid


def test_memory_is_bounded_by_the_message_however_it_is_cut() -> None:
    bound = 1 << 18
    piece = frame(0x00, b"x" * 50)
    parser = WebSocketDecoder(bound)
    tracemalloc.start()
    try:
        parser.feed(frame(0x02, b"x" * 50))
        parser.feed(b"\x00\xff" + (bound // 2).to_bytes(8) + KEY)
        assert tracemalloc.get_traced_memory()[1] < bound / 16, (
            "an announced length reserves nothing"
        )
        for _ in range(bound // 128):
            parser.feed(bytes(64))
        for _ in range(bound // 100 + 1):
            events = parser.feed(piece)
            if events:
                break
        held, highest = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert events == [Failure(1009, f"a message may have at most {bound} bytes")]
    assert highest < bound * 1.25
    assert held < bound / 16, "a stream that has ended holds nothing"


def test_a_long_message_in_small_reads_is_unmasked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    unmasked: list[int] = []

    def counting(data: bytes, key: int) -> bytes:
        unmasked.append(len(data))
        return unmask(data, key)

    monkeypatch.setattr(websocket_decoder, "unmask", counting)
    stream = frame(0x81, "é".encode() * 100_000)
    parser = WebSocketDecoder(MAX_BYTES)
    events = [
        event for at in range(0, len(stream), 101) for event in parser.feed(stream[at : at + 101])
    ]
    assert events == [Text("é".encode() * 100_000)]
    assert sum(unmasked) == 200_000
    assert max(unmasked) <= 101


def test_the_decoder_stops_after_the_given_number_and_goes_on_there() -> None:
    pieces = [frame(0x01, b"%d" % number) + frame(0x80, b"!") for number in range(50)]
    pieces += [frame(0x81, b"%d!" % number) for number in range(50, 100)]
    parser, found, calls, data = WebSocketDecoder(1000), [], 0, b"".join(pieces)
    while data or parser.has_more:
        events = parser.feed(data, 7)
        assert len(events) <= 8
        found += events
        calls, data = calls + 1, b""
    assert found == [Text(b"%d!" % number) for number in range(100)]
    assert calls > 10
    assert not parser.is_amid
