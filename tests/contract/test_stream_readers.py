"""The tests' own readers of streams and WebSockets, against bytes that no server has made."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.support import ws
from tests.support.sse import Decoder, SseEvent, Stream, Unchunk, decoded, encoded, parsed

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nX-A: b\r\n"
BODY = (
    b"retry: 2000\n\n"
    b"id: eyJ0IjoxfQ\nevent: record\n"
    b'data: {"topic":"t","records":[{"$seq":1,"data":"\xc3\xa9"}]}\n\n'
    b": hb\n\n"
    b'id:eyJ0IjoxfQ\r\nevent:caught-up\r\ndata:{"topic":"t",\r\ndata: "head_seq":1}\r\n\r\n'
)


def summary(
    events: list[SseEvent],
) -> list[tuple[str | None, str | None, str | None, tuple[str, ...]]]:
    return [(event.event, event.id, event.retry, event.comments) for event in events]


SUMMARY = [
    (None, None, "2000", ()),
    ("record", "eyJ0IjoxfQ", None, ()),
    (None, None, None, ("hb",)),
    ("caught-up", "eyJ0IjoxfQ", None, ()),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_frames_are_the_same_however_the_bytes_are_cut(size: int) -> None:
    decoder = Decoder()
    events = [
        event for at in range(0, len(BODY), size) for event in decoder.feed(BODY[at : at + size])
    ]
    assert summary(events) == SUMMARY
    assert events[1].json()["records"] == [{"$seq": 1, "data": "é"}]
    assert events[2].lines == (b": hb",)
    assert events[3].json() == {"topic": "t", "head_seq": 1}
    assert not decoder.unfinished


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_chunks_are_taken_off(size: int) -> None:
    framed = (
        b"".join(
            b"%x;x=y\r\n%s\r\n" % (len(piece), piece) for piece in (BODY[:5], BODY[5:40], BODY[40:])
        )
        + b"0\r\n\r\n"
    )
    chunks = Unchunk()
    assert (
        b"".join(chunks.feed(framed[at : at + size]) for at in range(0, len(framed), size)) == BODY
    )
    assert chunks.ended


def test_a_chunk_of_the_wrong_length_is_noticed() -> None:
    with pytest.raises(AssertionError, match="a chunk of 3 bytes"):
        Unchunk().feed(b"3\r\nabcdef\r\n")


def test_a_frame_without_its_empty_line_is_not_given_out() -> None:
    decoder = Decoder()
    assert decoder.feed(b"event: record\ndata: 1\n") == []
    assert decoder.unfinished


def test_a_line_that_is_no_field_is_noticed() -> None:
    with pytest.raises(AssertionError, match="no event stream has"):
        parsed([b"data: 1", b"  2}"])


@pytest.mark.parametrize("cursor", [{"t": 1}, {"a:b.c-d_e": 9_007_199_254_740_993, "z": 0}, {}])
def test_a_cursor_survives_its_id(cursor: dict[str, int]) -> None:
    assert decoded(encoded(cursor)) == cursor


@pytest.mark.parametrize(
    "text",
    [
        "eyJ0IjoxfQ==",
        "eyJ0IjoxfQ=",
        "e yJ",
        "",
        "WzFd",
        "eyJ0IjoxLjV9",
        "eyJ0IjoiMSJ9",
        "eyJ0Ijp0cnVlfQ",
    ],
)
def test_what_is_no_cursor_is_noticed(text: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        decoded(text)


Canned = Callable[[bytes], tuple[str, int]]


@pytest.fixture
def canned() -> Iterator[Canned]:
    """A server that answers one request with these bytes, and closes."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def answer(content: bytes) -> None:
        connection, _ = listener.accept()
        with connection:
            asked = b""
            while b"\r\n\r\n" not in asked:
                asked += connection.recv(65536)
            connection.sendall(content)

    def serve(content: bytes) -> tuple[str, int]:
        threads.append(threading.Thread(target=answer, args=(content,), daemon=True))
        threads[-1].start()
        host, port = listener.getsockname()[:2]
        return str(host), int(port)

    with listener:
        yield serve
        for thread in threads:
            thread.join(5)


@pytest.mark.parametrize("framing", ["close", "chunked"])
def test_a_stream_keeps_its_head_and_its_frames(canned: Canned, framing: str) -> None:
    chunked = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    with Stream(
        canned(HEAD + (chunked if framing == "chunked" else b"\r\n" + BODY)), "/v0/watch/w"
    ) as stream:
        assert stream.raw_head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: ")
        assert stream.headers[:2] == [
            ("Content-Type", "text/event-stream; charset=utf-8"),
            ("X-A", "b"),
        ]
        assert stream.block().retry == "2000"
        assert stream.event("record").cursor == {"t": 1}
        assert [event.event for event in stream.events()] == ["caught-up"]
        assert summary(stream.blocks) == SUMMARY


def test_a_stream_collects_up_to_caught_up(canned: Canned) -> None:
    with Stream(canned(HEAD + b"\r\n" + BODY), "/v0/watch/w") as stream:
        told = stream.told(["t"])
    assert told.data("t") == told.data() == ["é"]
    assert (told.tombstones, told.last_id) == ([], "eyJ0IjoxfQ")


def test_a_stream_that_ends_in_a_frame_is_noticed(canned: Canned) -> None:
    stream = Stream(canned(HEAD + b"\r\n" + BODY + b"event: rec"), "/v0/watch/w")
    with stream, pytest.raises(AssertionError, match="in the middle"):
        list(stream.events())


def test_a_refusal_is_shown_whole(canned: Canned) -> None:
    with pytest.raises(AssertionError, match="404 b'nope'"):
        Stream(canned(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope"), "/v0/watch/w")


def test_a_frame_of_the_rfc_is_a_frame() -> None:
    assert ws.frame_bytes(ws.TEXT, b"Hello") == bytes.fromhex("810548656c6c6f")
    assert ws.frame_bytes(ws.TEXT, b"Hello", mask=bytes.fromhex("37fa213d")) == bytes.fromhex(
        "818537fa213d7f9f4d5158"
    )
    assert ws.frame_bytes(ws.TEXT, b"Hel", fin=False) == bytes.fromhex("010348656c")
    assert ws.frame_bytes(ws.BINARY, bytes(256))[:4] == bytes.fromhex("827e0100")
    assert ws.frame_bytes(ws.BINARY, bytes(65536))[:10] == bytes.fromhex("827f0000000000010000")
    assert ws.accept_of("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


class Plain(ws.Socket):
    """A WebSocket after its handshake, on one end of a pair."""

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(5)
        self.socket, self._buffer = end, bytearray()


@pytest.fixture
def pair() -> Iterator[tuple[Plain, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Plain(ours), theirs


def test_messages_come_whole(pair: tuple[Plain, socket.socket]) -> None:
    client, server = pair
    server.sendall(
        ws.frame_bytes(ws.TEXT, b'{"op":"rec', fin=False)
        + ws.frame_bytes(ws.CONTINUATION, b'ord","records":[1,2]}')
    )
    server.sendall(
        ws.frame_bytes(ws.TEXT, b'{"op":"caught_up"}')
        + ws.frame_bytes(ws.TEXT, b'{"op":"record","records":[3]}')
    )
    assert client.records(3) == [1, 2, 3]
    server.sendall(
        ws.frame_bytes(ws.TEXT, b'{"op":"a"}')
        + ws.frame_bytes(ws.TEXT, b'{"op":"pong","request_id":"x"}')
    )
    assert client.until("pong", request_id="x") == [{"op": "a"}, {"op": "pong", "request_id": "x"}]
    server.sendall(
        ws.frame_bytes(ws.TEXT, b'{"op":"record"}') + ws.frame_bytes(ws.CLOSE, b"\x03\xe8bye")
    )
    server.shutdown(socket.SHUT_WR)
    assert client.closed() == 1000


def test_what_a_client_says_is_masked(pair: tuple[Plain, socket.socket]) -> None:
    client, server = pair
    client.say("ping", "p")
    sent = server.recv(1000)
    assert sent[1] & 0x80
    assert ws.masked(sent[6:], sent[2:6]) == b'{"op": "ping", "request_id": "p"}'


@pytest.mark.parametrize(
    "content",
    [
        ws.frame_bytes(ws.TEXT, b"{}", mask=b"abcd"),
        ws.frame_bytes(ws.TEXT, b"{}", rsv=0x40),
        b"\x81\x7e\x00\x02{}",
        b"\x89\x7e\x00\x80" + bytes(128),
        ws.frame_bytes(ws.BINARY, b"{}"),
        ws.frame_bytes(ws.TEXT, b"[]"),
    ],
    ids=["masked", "rsv", "long length", "long ping", "binary", "no object"],
)
def test_a_server_that_breaks_the_rules_is_noticed(
    pair: tuple[Plain, socket.socket], content: bytes
) -> None:
    client, server = pair
    server.sendall(content)
    with pytest.raises(AssertionError):
        client.message()
