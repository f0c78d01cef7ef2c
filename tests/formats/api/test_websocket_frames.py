"""WebSocket frames: the examples of RFC 6455, all protocol violations, and memory bounds."""

from __future__ import annotations

import base64
import random
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Close, Frame, Opcode
from wsproto.utilities import generate_accept_token

from tests.support.websocket_streams import KEY, MAX_BYTES, STREAMS, byte_by_byte, events_of, frame
from topics.formats.api import websocket_frames
from topics.formats.api.websocket_frames import (
    CHECK_BYTES,
    LONG_BYTES,
    WebSocketFrameReader,
    accept_key,
    close_frame,
    control_frame,
    is_key,
    text_frame,
    utf8_steps,
)

TEXT, BINARY, CLOSE, PING, PONG = list(Opcode)[1:]
TOO_BIG = "a message may have at most {} bytes"


@pytest.mark.parametrize(
    ("stream", "frames"),
    [
        ("8185 37fa213d 7f9f4d5158", [Frame(TEXT, b"Hello")]),
        ("0183 37fa213d 7f9f4d 8082 00000000 6c6f", [Frame(TEXT, b"Hello")]),
        ("8985 37fa213d 7f9f4d5158", [Frame(PING, b"Hello")]),
        ("8a85 37fa213d 7f9f4d5158", [Frame(PONG, b"Hello")]),
        ("8180 37fa213d", [Frame(TEXT, b"")]),
        ("0180 37fa213d 0080 37fa213d 8080 37fa213d", [Frame(TEXT, b"")]),
        ("8880 37fa213d", [Frame(CLOSE, b"")]),
        ("8882 37fa213d 3412", [Frame(CLOSE, b"\x03\xe8")]),
    ],
)
def test_the_examples_of_the_rfc_are_decoded(stream: str, frames: list[Frame]) -> None:
    assert events_of(bytes.fromhex(stream)) == frames
    assert byte_by_byte(bytes.fromhex(stream)) == frames


BROKEN = [
    (text_frame(b"Hello"), 1002, "masking"),
    *((frame(first, b"x"), 1002, "reserved bits") for first in (0xC1, 0xA1, 0x91)),
    *((frame(0x80 | code), 1002, "invalid opcode") for code in (3, 7, 11, 15)),
    *((frame(code), 1002, "fragmented control frame") for code in (8, 9, 10)),
    *((frame(0x80 | code, b"x" * 126), 1002, "too long") for code in (8, 9, 10)),
    (frame(0x80, b"x"), 1002, "must not be interleaved"),
    (frame(0x81, b"x") + frame(0x00, b"x"), 1002, "must not be interleaved"),
    (frame(0x01, b"x") + frame(0x81, b"x"), 1002, "must not be interleaved"),
    (frame(0x02) + frame(0x89) + frame(0x02), 1002, "must not be interleaved"),
    (b"\x82\xff" + (1 << 63).to_bytes(8) + KEY, 1009, f"{MAX_BYTES} bytes"),
    # Rejected by its header
    (b"\x82\xff" + (MAX_BYTES + 1).to_bytes(8), 1009, f"{MAX_BYTES} bytes"),
    (frame(0x02, b"x") + b"\x80\xff" + MAX_BYTES.to_bytes(8), 1009, f"{MAX_BYTES} bytes"),
    (frame(0x88, b"\x03"), 1002, "too short"),
    *(
        (frame(0x88, code.to_bytes(2)), 1002, "status code")
        for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65_535)
    ),
    *((frame(0x88, b"\x03\xe8" + cut), 1007, "reason") for cut in (b"\xff", b"\xc3")),
]


@pytest.mark.parametrize(("broken", "code", "reason"), BROKEN)
def test_a_broken_stream_ends_with_a_close_code(broken: bytes, code: int, reason: str) -> None:
    stream = frame(0x81, b"before") + broken
    for events in (
        events_of(stream + frame(0x81, b"after")),
        byte_by_byte(stream + frame(0x81, b"after")),
    ):
        assert events[0] == Frame(TEXT, b"before")
        failure = events[-1]
        assert isinstance(failure, Close)
        assert failure.code == code
        assert reason in failure.reason
        assert close_frame(failure.code, failure.reason)[4:].decode() == failure.reason, (
            "the reason fits into the frame"
        )


@pytest.mark.parametrize("last", [frame(0x88), frame(0xFF)])
def test_nothing_is_decoded_after_the_end_of_the_stream(last: bytes) -> None:
    reader = WebSocketFrameReader(MAX_BYTES)
    assert not reader.ended
    assert len(reader.feed(last + frame(0x81, b"x"))) + (reader.failure is not None) == 1
    assert reader.ended
    assert reader.feed(frame(0x81, b"x")) == reader.feed(b"") == []
    assert (reader.held_bytes, reader.is_incomplete, reader.has_more) == (0, False, False)


def test_control_frames_are_returned_between_the_fragments_they_interrupt() -> None:
    stream = b"".join(
        (
            *(frame(0x01, b"\xe2"), frame(0x89, b"1"), frame(0x00, b"\x82"), frame(0x8A, b"2")),
            *(frame(0x80, b"\xac"), frame(0x81, b"x"), frame(0x01, b"y"), frame(0x88)),
        )
    )
    expected = [
        *(Frame(PING, b"1"), Frame(PONG, b"2"), Frame(TEXT, "€".encode()), Frame(TEXT, b"x")),
        Frame(CLOSE, b""),
    ]
    assert events_of(stream) == byte_by_byte(stream) == expected


@pytest.mark.parametrize("size", [0, 1, 100, 125, 126, 1024, 65_536, 65_537])
def test_a_message_may_have_the_maximum_length_but_not_one_byte_more(size: int) -> None:
    complete = Frame(TEXT, b"x" * size)
    assert events_of(frame(0x81, b"x" * size), (), size) == [complete]
    ping = frame(0x89, b"p" * 125)
    stream = frame(0x01, b"x" * size) + ping + frame(0x80)
    assert events_of(stream, (), size) == [Frame(PING, b"p" * 125), complete], (
        "a control frame is not counted"
    )
    for stream in (frame(0x81, b"x" * (size + 1)), frame(0x01, b"x" * size) + frame(0x80, b"x")):
        failure = [Close(1009, TOO_BIG.format(size))]
        assert events_of(stream, (), size) == byte_by_byte(stream, size) == failure


@pytest.mark.parametrize("length", [*range(9), 125, 126, LONG_BYTES - 1, LONG_BYTES, 200_001])
def test_a_payload_of_any_length_is_unmasked(length: int) -> None:
    rng = random.Random(length)
    payload, key = rng.randbytes(length), rng.randbytes(4)
    stream = frame(0x82, payload, key) * 2 + frame(0x81, b"x", key)
    expected = [Frame(BINARY, payload)] * 2 + [Frame(TEXT, b"x")]
    assert events_of(stream) == events_of(stream, (1000, len(stream) - 3)) == expected


@given(STREAMS, st.lists(st.integers(0, 4000)), st.sampled_from([MAX_BYTES, 1000, 30]))
def test_the_events_are_the_same_for_any_fragments_of_the_stream(
    stream: bytes, cuts: list[int], max_bytes: int
) -> None:
    assert events_of(stream, cuts, max_bytes) == events_of(stream, (), max_bytes)
    if len(stream) < 500:
        assert byte_by_byte(stream, max_bytes) == events_of(stream, (), max_bytes)


@given(STREAMS, st.binary(max_size=40))
def test_more_bytes_do_not_change_the_events_before_them(stream: bytes, more: bytes) -> None:
    events = events_of(stream)
    assert events_of(stream + more)[: len(events)] == events


@given(st.lists(st.binary(max_size=100), max_size=20), st.integers(0, 200))
def test_any_bytes_are_decoded_within_the_memory_bound(junk: list[bytes], max_bytes: int) -> None:
    reader = WebSocketFrameReader(max_bytes)
    for data in junk:
        for found in reader.feed(data):
            assert found.opcode >= CLOSE or len(found.data) <= max_bytes
    assert reader.held_bytes <= max_bytes + max(max_bytes, 125) + 14


@pytest.mark.parametrize(
    "complete",
    [
        *(frame(0x81, b"short"), frame(0x82, b"x" * 70_000), frame(0x89, b"a ping")),
        frame(0x01, b"in ") + frame(0x89, b"?") + frame(0x80, b"two"),
    ],
)
def test_an_incomplete_message_or_frame_is_recognized(complete: bytes) -> None:
    for cut in (1, 2, 5, 6, 7, len(complete) // 2, len(complete) - 1):
        reader = WebSocketFrameReader(MAX_BYTES)
        assert not reader.is_incomplete
        reader.feed(frame(0x81, b"before") + complete[:cut])
        assert reader.is_incomplete
        reader.feed(complete[cut:])
        assert (reader.is_incomplete, reader.held_bytes) == (False, 0)


def test_memory_is_bounded_by_the_message_limit_for_any_fragments() -> None:
    bound = 1 << 18
    chunk = frame(0x00, b"x" * 50)
    reader = WebSocketFrameReader(bound)
    tracemalloc.start()
    try:
        reader.feed(frame(0x02, b"x" * 50))
        reader.feed(b"\x00\xff" + (bound // 2).to_bytes(8) + KEY)
        assert tracemalloc.get_traced_memory()[1] < bound / 16, (
            "a length in a header allocates no memory"
        )
        for _ in range(bound // 128):
            reader.feed(bytes(64))
            assert reader.held_bytes <= bound
        for _ in range(bound // 100 + 1):
            reader.feed(chunk)
            if reader.ended:
                break
        held, highest = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reader.failure == Close(1009, TOO_BIG.format(bound))
    assert highest < bound * 2
    assert held < bound / 16, "an ended stream keeps no data"


def test_the_reader_stops_after_the_given_number_and_continues_there() -> None:
    chunks = [frame(0x01, b"%d" % number) + frame(0x80, b"!") for number in range(50)]
    chunks += [frame(0x81, b"%d!" % number) for number in range(50, 100)]
    reader, found, calls, data = WebSocketFrameReader(1000), list[Frame](), 0, b"".join(chunks)
    while data or reader.has_more:
        frames = reader.feed(data, 7)
        assert len(frames) <= 7
        found += frames
        calls, data = calls + 1, b""
    assert found == [Frame(TEXT, b"%d!" % number) for number in range(100)]
    assert calls > 10
    assert not reader.is_incomplete


@pytest.mark.parametrize("bad", [b"\xff", b"\xe2\x82", b"\xed\xa0\x80"])
def test_long_text_is_checked_in_steps_that_may_split_a_character(bad: bytes) -> None:
    text = b"x" * (CHECK_BYTES - 1) + "€".encode() * 10
    assert len(list(utf8_steps(text))) == 2
    for broken in (text + bad, bad + text):
        with pytest.raises(UnicodeDecodeError):
            list(utf8_steps(broken))


# Frames of the server


@pytest.mark.parametrize(("length", "x"), [(0, 0), (125, 0), (126, 2), (65_535, 2), (65_536, 8)])
def test_a_text_frame_is_written_as_in_the_docstring_table(length: int, x: int) -> None:
    rows = re.findall(
        r"^    (\d(?: \+ x)?) {2,}(\w.*?) {2,}(\w+) {2,}",
        websocket_frames.__doc__ or "",
        re.MULTILINE,
    )
    assert [name for _, _, name in rows] == ["first", "length", "extended", "payload"]
    offsets = {name: eval(at, {"x": x}) for at, _, name in rows}
    payload = b"p" * length
    written = text_frame(payload[:10], payload[10:])
    assert written[offsets["first"]] == 0x81
    assert written[offsets["payload"] :] == payload
    assert written == Frame(TEXT, payload).serialize(mask=False)


def test_control_frames_equal_the_examples_of_the_rfc() -> None:
    assert control_frame(PING, b"Hello").hex() == "890548656c6c6f"
    assert control_frame(PONG, b"Hello").hex() == "8a0548656c6c6f"
    assert close_frame(1000, "bye").hex() == "880503e8627965"


def test_a_reason_is_cut_between_characters() -> None:
    assert close_frame(1008, "x" * 200) == b"\x88\x7d\x03\xf0" + b"x" * 123
    assert close_frame(1008, "x" * 122 + "é") == b"\x88\x7c\x03\xf0" + b"x" * 122


# The keys of a WebSocket handshake


@given(st.binary(min_size=16, max_size=16))
def test_the_handshake_equals_that_of_another_implementation(nonce: bytes) -> None:
    key = base64.b64encode(nonce)
    assert is_key(key)
    assert accept_key(key) == generate_accept_token(key)


@pytest.mark.parametrize(
    "key",
    [
        *(b"", b"dGhlIHNhbXBsZSBub25jZQ=", b"dGhlIHNhbXBsZSBub25jZQ==\n", b"dGhlIHNhbXBsZSBub25j"),
        *(b"dGhl*HNhbXBsZSBub25jZQ==", b"A" * 24),
    ],
)
def test_a_key_that_is_not_16_bytes_of_base64_is_invalid(key: bytes) -> None:
    assert not is_key(key)
