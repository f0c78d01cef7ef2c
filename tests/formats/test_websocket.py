"""Frames as RFC 6455 has them, every way to break them, and that neither the cut of a stream nor
junk in it matters.
"""

from __future__ import annotations

import base64
import random
import re
import struct
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto import events as peer
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.utilities import generate_accept_token

from topics.formats.api import websocket
from topics.formats.api.websocket import (
    Binary,
    Close,
    CloseCode,
    Event,
    Failure,
    FrameParser,
    Opcode,
    Ping,
    Pong,
    Text,
    accept_key,
    close_frame,
    is_close_code,
    is_key,
    ping_frame,
    pong_frame,
    text_frame,
    text_header,
)

MAX_BYTES = 1 << 20
KEY = bytes.fromhex("37fa213d")  # of the examples in §5.7
UTF8 = "aé€😀"

PAYLOADS = st.one_of(
    st.text(max_size=20).map(str.encode),
    st.binary(max_size=20),
    st.sampled_from(
        [
            b"",
            b"x" * 125,
            b"x" * 126,
            b"y" * 1023,
            b"z" * 1025,
            "é".encode() * 700,
            b"a" * 65_535,
            b"b" * 65_537,
        ]
    ),
)
CLOSES = st.one_of(
    st.just(b""),
    st.binary(max_size=6),
    st.builds(lambda code, why: code.to_bytes(2) + why, st.integers(990, 5010), PAYLOADS),
)


def masked(payload: bytes, key: bytes) -> bytes:
    if len(payload) < 5000:
        return bytes(byte ^ key[at % 4] for at, byte in enumerate(payload))
    mask = (key * (len(payload) // 4 + 1))[: len(payload)]
    return (int.from_bytes(payload) ^ int.from_bytes(mask)).to_bytes(len(payload))


def frame(first: int, payload: bytes = b"", key: bytes = KEY) -> bytes:
    """A client's frame with these bits in its first byte."""
    length = len(payload)
    if length <= 125:
        header = bytes((first, 0x80 | length))
    elif length < 1 << 16:
        header = struct.pack(">BBH", first, 0xFE, length)
    else:
        header = struct.pack(">BBQ", first, 0xFF, length)
    return header + key + masked(payload, key)


@st.composite
def pieces_of_a_message(draw: st.DrawFn) -> bytes:
    """A message in fragments with control frames between them; sometimes without an end or a start."""
    opcode = draw(st.sampled_from([1, 1, 2, 0]))
    parts = draw(
        st.lists(
            st.one_of(PAYLOADS, st.sampled_from([bytes([byte]) for byte in UTF8.encode()])),
            max_size=5,
        )
    )
    out = []
    for at, part in enumerate(parts):
        fin = 0x80 if at == len(parts) - 1 else 0
        out.append(
            frame(fin | (0 if at else opcode), part, draw(st.binary(min_size=4, max_size=4)))
        )
        out.append(draw(st.sampled_from([b"", b"", frame(0x89, b"hi"), frame(0x8A)])))
    return b"".join(out)


FRAMES = st.one_of(
    st.builds(
        lambda payload, key: frame(0x81, payload, key), PAYLOADS, st.binary(min_size=4, max_size=4)
    ),
    st.builds(
        lambda first, payload: frame(first, payload[:125]),
        st.sampled_from([0x81, 0x82, 0x89, 0x8A]),
        PAYLOADS,
    ),
    pieces_of_a_message(),
    st.builds(lambda payload: frame(0x88, payload[:125]), CLOSES),
    st.builds(frame, st.integers(0, 255), PAYLOADS),
    st.binary(max_size=12),
)
STREAMS = st.lists(FRAMES, max_size=8).map(b"".join)


def parse(stream: bytes, max_message_bytes: int = MAX_BYTES) -> list[Event]:
    return FrameParser(max_message_bytes).feed(stream)


def byte_by_byte(stream: bytes, max_message_bytes: int = MAX_BYTES) -> list[Event]:
    parser = FrameParser(max_message_bytes)
    return [event for byte in stream for event in parser.feed(bytes([byte]))]


def test_the_table_in_the_docstring_is_how_a_frame_is_read() -> None:
    rows = re.findall(
        r"^    (\d(?: \+ x)?) {2,}(\w.*?) {2,}(\w+) {2,}", websocket.__doc__ or "", re.MULTILINE
    )
    assert [name for _, _, name in rows] == ["first", "second", "extended", "key", "payload"]
    sizes = {name: size for _, size, name in rows}
    for length, x in ((125, 0), (126, 2), (65_536, 8)):
        stream = frame(0x82, b"p" * length)
        offsets = {name: eval(at, {"x": x}) for at, _, name in rows}
        assert str(x) in sizes["extended"]
        assert stream[offsets["first"]] == 0x82
        assert stream[offsets["key"] : offsets["payload"]] == KEY
        assert len(stream) == offsets["payload"] + length
        assert parse(stream) == [Binary(b"p" * length)]


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
def test_the_examples_of_the_document_are_understood(stream: str, events: list[Event]) -> None:
    assert parse(bytes.fromhex(stream)) == events
    assert byte_by_byte(bytes.fromhex(stream)) == events


@pytest.mark.parametrize("length", [256, 65_536])
def test_a_binary_message_has_the_length_of_the_documents_examples(length: int) -> None:
    header = {256: "82fe0100", 65_536: "82ff0000000000010000"}[length]
    assert parse(bytes.fromhex(header) + b"\0\0\0\0" + b"\7" * length) == [Binary(b"\7" * length)]


def test_our_frames_are_the_documents() -> None:
    assert text_frame(b"Hello").hex() == "810548656c6c6f"
    assert ping_frame(b"Hello").hex() == "890548656c6c6f"
    assert pong_frame(b"Hello").hex() == "8a0548656c6c6f"
    assert close_frame(1000, "bye").hex() == "880503e8627965"
    assert close_frame(CloseCode.NO_STATUS, "never sent").hex() == "8800"


@pytest.mark.parametrize(
    ("length", "header"),
    [
        (0, "8100"),
        (125, "817d"),
        (126, "817e007e"),
        (65_535, "817effff"),
        (65_536, "817f0000000000010000"),
    ],
)
def test_a_length_is_in_its_shortest_form(length: int, header: str) -> None:
    assert text_header(length).hex() == header
    assert text_frame(b"x" * length) == bytes.fromhex(header) + b"x" * length


def test_control_frames_that_do_not_fit_are_refused() -> None:
    assert len(ping_frame(b"x" * 125)) == len(pong_frame(b"x" * 125)) == 127
    for encode in (ping_frame, pong_frame):
        with pytest.raises(ValueError, match="126 bytes"):
            encode(b"x" * 126)


def test_a_reason_is_cut_between_characters() -> None:
    assert close_frame(1008, "x" * 200) == b"\x88\x7d\x03\xf0" + b"x" * 123
    assert close_frame(1008, "x" * 122 + "é") == b"\x88\x7c\x03\xf0" + b"x" * 122


def test_the_handshake_answers_the_documents_key() -> None:
    assert accept_key(b"dGhlIHNhbXBsZSBub25jZQ==") == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


@given(st.binary(min_size=16, max_size=16))
def test_the_handshake_answers_as_another_implementation_does(nonce: bytes) -> None:
    key = base64.b64encode(nonce)
    assert is_key(key)
    assert accept_key(key) == generate_accept_token(key)


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"dGhlIHNhbXBsZSBub25jZQ=",
        b"dGhlIHNhbXBsZSBub25jZQ==\n",
        b"dGhlIHNhbXBsZSBub25j",
        b"dGhl*HNhbXBsZSBub25jZQ==",
        b"A" * 24,
    ],
)
def test_a_key_that_is_not_16_bytes_of_base64_is_none(key: bytes) -> None:
    assert not is_key(key)


@pytest.mark.parametrize(
    ("broken", "code", "reason"),
    [
        pytest.param(text_frame(b"Hello"), 1002, "must be masked", id="not masked"),
        pytest.param(frame(0xC1, b"x"), 1002, "reserved bits", id="RSV1"),
        pytest.param(frame(0xA1, b"x"), 1002, "reserved bits", id="RSV2"),
        pytest.param(frame(0x91, b"x"), 1002, "reserved bits", id="RSV3"),
        *(
            pytest.param(
                frame(0x80 | opcode), 1002, f"unknown opcode {opcode}", id=f"opcode {opcode}"
            )
            for opcode in (3, 7, 11, 15)
        ),
        *(
            pytest.param(frame(opcode), 1002, "must not be fragmented", id=f"fragmented {opcode}")
            for opcode in (8, 9, 10)
        ),
        *(
            pytest.param(frame(0x80 | opcode, b"x" * 126), 1002, "at most 125", id=f"long {opcode}")
            for opcode in (8, 9, 10)
        ),
        pytest.param(frame(0x80, b"x"), 1002, "continuation without", id="continuation first"),
        pytest.param(
            frame(0x81, b"x") + frame(0x00, b"x"),
            1002,
            "continuation without",
            id="continuation after the end",
        ),
        pytest.param(
            frame(0x01, b"x") + frame(0x81, b"x"),
            1002,
            "within a fragmented",
            id="text within a message",
        ),
        pytest.param(
            frame(0x02) + frame(0x89) + frame(0x02),
            1002,
            "within a fragmented",
            id="binary within a message",
        ),
        pytest.param(b"\x81\xfe\x00\x7d" + KEY, 1002, "shortest form", id="125 in 2 bytes"),
        pytest.param(
            b"\x82\xff" + (65_535).to_bytes(8) + KEY, 1002, "shortest form", id="65535 in 8 bytes"
        ),
        pytest.param(b"\x82\xff" + (1 << 63).to_bytes(8) + KEY, 1002, "top bit", id="top bit"),
        pytest.param(
            b"\x82\xff" + (MAX_BYTES + 1).to_bytes(8),
            1009,
            f"{MAX_BYTES} bytes",
            id="too big, by its header",
        ),
        pytest.param(
            frame(0x02, b"x") + b"\x80\xff" + MAX_BYTES.to_bytes(8),
            1009,
            f"{MAX_BYTES} bytes",
            id="too big in fragments",
        ),
        pytest.param(frame(0x88, b"\x03"), 1002, "one byte", id="close of one byte"),
        pytest.param(frame(0x88, b"\x03\xe8\xff"), 1007, "reason", id="reason not UTF-8"),
        pytest.param(frame(0x88, b"\x03\xe8\xc3"), 1007, "reason", id="reason ends in a character"),
        pytest.param(frame(0x81, b"\xff"), 1007, "UTF-8", id="text not UTF-8"),
        pytest.param(frame(0x81, b"abc\xe2\x82"), 1007, "UTF-8", id="text ends in a character"),
        pytest.param(frame(0x81, b"\xed\xa0\x80"), 1007, "UTF-8", id="a surrogate"),
        pytest.param(
            frame(0x81, b"x" * 2000 + b"\xff"), 1007, "UTF-8", id="text of some length not UTF-8"
        ),
        pytest.param(frame(0x81, b"x" * 70_000 + b"\xff"), 1007, "UTF-8", id="long text not UTF-8"),
        pytest.param(
            frame(0x01, b"\xe2\x82") + frame(0x80, b"A"),
            1007,
            "UTF-8",
            id="not UTF-8 across fragments",
        ),
        pytest.param(
            frame(0x01, b"\xe2\x82") + frame(0x80), 1007, "UTF-8", id="fragments end in a character"
        ),
        pytest.param(
            frame(0x01, b"\xff"), 1007, "UTF-8", id="a bad fragment, before the message ends"
        ),
    ],
)
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


@pytest.mark.parametrize("code", [0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65_535])
def test_a_close_code_that_must_not_be_sent_is_refused(code: int) -> None:
    assert parse(frame(0x88, code.to_bytes(2))) == [
        Failure(1002, f"close code {code} must not be sent")
    ]
    assert not is_close_code(code)
    if code != CloseCode.NO_STATUS:
        with pytest.raises(ValueError, match=str(code)):
            close_frame(code)


@pytest.mark.parametrize(
    "code",
    [
        1000,
        1001,
        1002,
        1003,
        1007,
        1008,
        1009,
        1010,
        1011,
        1012,
        1013,
        1014,
        3000,
        3999,
        4000,
        4999,
    ],
)
def test_every_other_close_code_passes(code: int) -> None:
    assert parse(frame(0x88, code.to_bytes(2) + UTF8.encode())) == [Close(code, UTF8)]
    assert close_frame(code, UTF8) == bytes((0x88, 12)) + code.to_bytes(2) + UTF8.encode()


@pytest.mark.parametrize("last", [frame(0x88), frame(0xFF)])
def test_nothing_is_heard_after_the_end(last: bytes) -> None:
    parser = FrameParser(MAX_BYTES)
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
def test_a_message_of_just_the_bound_passes_and_one_byte_more_does_not(size: int) -> None:
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
    parser = FrameParser(max_bytes)
    assert [
        event for start, end in pairwise(bounds) for event in parser.feed(stream[start:end])
    ] == parse(stream, max_bytes)
    if len(stream) < 500:
        assert byte_by_byte(stream, max_bytes) == parse(stream, max_bytes)


@given(STREAMS, st.binary(max_size=40))
def test_the_events_of_the_start_of_a_stream_stay_what_they_are(stream: bytes, more: bytes) -> None:
    events = parse(stream)
    assert parse(stream + more)[: len(events)] == events


@given(st.lists(st.binary(max_size=100), max_size=20), st.integers(0, 200))
def test_any_bytes_give_an_answer(junk: list[bytes], max_bytes: int) -> None:
    parser = FrameParser(max_bytes)
    for data in junk:
        for event in parser.feed(data):
            assert not isinstance(event, Text | Binary) or len(event.payload) <= max_bytes
    assert len(parser._data) < 2 + 8 + 4 + 125
    assert parser._message.tell() <= max_bytes


def peers_view(stream: bytes) -> list[Event]:
    """What wsproto makes of a client's stream."""
    connection = Connection(ConnectionType.SERVER)
    connection.receive_data(stream)
    events: list[Event] = []
    parts: list[bytes] = []
    for event in connection.events():
        if isinstance(event, peer.TextMessage | peer.BytesMessage):
            parts.append(event.data.encode() if isinstance(event.data, str) else bytes(event.data))
            if event.message_finished:
                kind = Text if isinstance(event, peer.TextMessage) else Binary
                events.append(kind(b"".join(parts)))
                parts.clear()
        elif isinstance(event, peer.Ping):
            events.append(Ping(bytes(event.payload)))
        elif isinstance(event, peer.Pong):
            events.append(Pong(bytes(event.payload)))
        elif isinstance(event, peer.CloseConnection):
            events.append(Close(int(event.code), event.reason or ""))
    return events


MESSAGES = st.lists(
    st.one_of(
        st.builds(peer.TextMessage, data=st.text(max_size=300), message_finished=st.booleans()),
        st.builds(peer.BytesMessage, data=st.binary(max_size=300), message_finished=st.booleans()),
        st.builds(peer.Ping, payload=st.binary(max_size=125)),
        st.builds(peer.Pong, payload=st.binary(max_size=125)),
    ),
    max_size=8,
)


@given(MESSAGES, st.sampled_from([None, 1000, 1012, 3000, 4999]), st.text(max_size=20))
def test_what_another_implementation_sends_is_understood_as_it_does(
    messages: list[peer.Event], code: int | None, reason: str
) -> None:
    client, open_kind = Connection(ConnectionType.CLIENT), None
    sent = []
    for message in messages:
        if isinstance(message, peer.Message):
            if open_kind not in (None, type(message)):
                continue  # it would begin within the other
            open_kind = None if message.message_finished else type(message)
        sent.append(client.send(message))
    if code is not None:
        sent.append(client.send(peer.CloseConnection(code=code, reason=reason)))
    stream = b"".join(sent)
    assert parse(stream) == peers_view(stream)


@given(
    st.lists(st.text(max_size=300), max_size=5),
    st.binary(max_size=125),
    st.sampled_from([1000, 1009, 4000]),
    st.text(max_size=200),
)
def test_what_we_send_is_understood_by_another_implementation(
    texts: list[str], payload: bytes, code: int, reason: str
) -> None:
    client = Connection(ConnectionType.CLIENT)
    for text in texts:
        client.receive_data(text_frame(text.encode()))
    client.receive_data(text_header(70_000) + b"x" * 70_000)
    client.receive_data(ping_frame(payload) + pong_frame(payload) + close_frame(code, reason))
    *told, ping, pong, close = client.events()
    assert (
        "".join(event.data for event in told if isinstance(event, peer.TextMessage))
        == "".join(texts) + "x" * 70_000
    )
    assert isinstance(ping, peer.Ping)
    assert isinstance(pong, peer.Pong)
    assert ping.payload == pong.payload == payload
    assert isinstance(close, peer.CloseConnection)
    assert close.code == code
    assert reason.startswith(close.reason or "")
    assert client.state is ConnectionState.REMOTE_CLOSING


@given(STREAMS)
def test_another_implementation_agrees_on_how_much_of_a_stream_is_good(stream: bytes) -> None:
    events = parse(stream)
    if events and isinstance(events[-1], Failure):
        return  # wsproto notices some of it later
    assert peers_view(stream)[: len(events)] == events


@pytest.mark.parametrize(
    "whole",
    [
        pytest.param(frame(0x81, b"short"), id="a message"),
        pytest.param(frame(0x82, b"x" * 70_000), id="a long one"),
        pytest.param(
            frame(0x01, b"in ") + frame(0x89, b"?") + frame(0x80, b"two"),
            id="fragments around a ping",
        ),
        pytest.param(frame(0x89, b"longer"), id="a ping"),
    ],
)
def test_what_has_begun_and_not_come_whole_is_known(whole: bytes) -> None:
    for cut in (1, 2, 5, 6, 7, len(whole) // 2, len(whole) - 1):
        parser = FrameParser(MAX_BYTES)
        assert not parser.is_amid
        parser.feed(frame(0x81, b"before") + whole[:cut])
        assert parser.is_amid
        parser.feed(whole[cut:])
        assert not parser.is_amid


def test_memory_is_bounded_by_the_message_however_it_is_cut() -> None:
    bound = 1 << 18
    piece = frame(0x00, b"x" * 50)
    parser = FrameParser(bound)
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


def test_a_long_message_in_small_reads_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    unmasked: list[int] = []
    unmask = websocket._unmask

    def counting(data: bytes, key: int) -> bytes:
        unmasked.append(len(data))
        return unmask(data, key)

    monkeypatch.setattr(websocket, "_unmask", counting)
    stream = frame(0x81, "é".encode() * 100_000)
    parser = FrameParser(MAX_BYTES)
    events = [
        event for at in range(0, len(stream), 101) for event in parser.feed(stream[at : at + 101])
    ]
    assert events == [Text("é".encode() * 100_000)]
    assert sum(unmasked) == 200_000
    assert max(unmasked) <= 101


def test_opcodes_and_close_codes_are_the_documents() -> None:
    assert [(opcode.name, opcode.value) for opcode in Opcode] == [
        ("CONTINUATION", 0),
        ("TEXT", 1),
        ("BINARY", 2),
        ("CLOSE", 8),
        ("PING", 9),
        ("PONG", 10),
    ]
    assert {code.value: is_close_code(code) for code in CloseCode if not is_close_code(code)} == {
        1005: False
    }
