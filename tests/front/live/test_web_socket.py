"""Limits of one WebSocket: its share of a loop iteration and of the front's memory."""

from __future__ import annotations

import fcntl
import sys
from collections import Counter
from typing import Any

import pytest
import trio
from websockets.frames import Frame, Opcode

from tests.support.fake_shards import FakeReply
from tests.support.front import Running, running
from tests.support.raw_client import RawClient
from tests.support.ws import BINARY, CONTINUATION, PING, TEXT, frame_bytes, handshake
from tests.support.ws import KEY as KEY_FIELD
from topics.config import Settings
from topics.engine.access import ANYONE
from topics.formats.api.limits import WEBSOCKET_MESSAGE_MAX_BYTES, limits_of
from topics.formats.wire.calls import AppendOutcome, AppendResult
from topics.front.live import web_socket_publish
from topics.front.live.streams import UNSENT_MAX_BYTES, Outbox
from topics.front.live.web_socket import FRAMES_PER_ITERATION, WebSocket
from topics.front.live.web_socket_publish import Publishes

APPENDED = AppendResult(bytes((AppendOutcome.APPENDED,)))
KEY = bytes(4)


async def open_socket(run: Running, *headers: str) -> RawClient:
    client = await run.connect()
    await client.send(handshake(KEY_FIELD, *headers))
    while b"\r\n\r\n" not in client._buffer:
        await client._more()
    client._buffer = b""
    return client


@pytest.mark.parametrize(
    "message_frame",
    [
        frame_bytes(TEXT, b"x", mask=KEY),
        frame_bytes(PING, b"", mask=KEY),
        frame_bytes(BINARY, b"x", mask=KEY),
        frame_bytes(TEXT, b'{"op":"ping"}', mask=KEY),
        frame_bytes(TEXT, b'{"op":"unsubscribe","topic":"a"}', mask=KEY),
    ],
    ids=["one byte", "pings", "binary", "ping commands", "unsubscribe"],
)
async def test_a_socket_with_many_messages_yields_to_other_tasks(
    message_frame: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, iteration, takes = 1000, 0, 0
    handled: Counter[int] = Counter()  # by iteration of the loop
    writes: list[int] = []
    take, write = WebSocket._handle_frames, Outbox.write

    async def counted_take(self: WebSocket, frames: list[Frame]) -> bool:
        nonlocal takes
        handled[iteration] += len(frames)
        takes += 1
        return await take(self, frames)

    def counted_write(self: Outbox, data: bytes) -> None:
        writes.append(len(data))
        write(self, data)

    monkeypatch.setattr(WebSocket, "_handle_frames", counted_take)
    monkeypatch.setattr(Outbox, "write", counted_write)
    async with running() as run:
        client = await open_socket(run)
        await client.send(message_frame * count)
        with trio.fail_after(10):
            while sum(handled.values()) < count:
                iteration += 1
                await trio.lowlevel.checkpoint()
        assert max(handled.values()) <= 2 * FRAMES_PER_ITERATION, (
            "tasks run in any order, so two iterations may count as one"
        )
        assert len(writes) <= takes, "the responses of a read were not joined"


async def test_sockets_share_one_bound_and_get_the_reason_of_their_close() -> None:
    async with running() as run:  # bodies have at most 1 MiB
        unread = run.server.live.held.unread
        unread.most = 5 << 19
        sockets = [await open_socket(run) for _ in range(4)]
        begun = frame_bytes(TEXT, b"x" * (1 << 20), mask=KEY)[:-1]
        for client in sockets:
            with trio.move_on_after(2):
                await client.send(begun)
        await run.until(lambda: len(run.server.live.streams) == 2)
        assert unread.size <= unread.most
        gone = [client for client in sockets if await sends_close(client)]
        assert len(gone) == 2
        for client in sockets:
            client.stream.socket.close()
        await run.until(lambda: not run.server.live.streams)
        assert (unread.size, unread._kept) == (0, {})


async def sends_close(client: RawClient) -> bool:
    received = b""
    with trio.move_on_after(0.05):
        received = await client.stream.receive_some(4096)
    return b'"code":"throttled"' in received and b"\x03\xf5no memory" in received


async def test_above_the_shared_bound_every_socket_may_have_one_publish_in_flight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(web_socket_publish, "UNANSWERED_MAX_BYTES", 1 << 40)
    held: list[Any] = []
    async with running() as run:
        monkeypatch.setattr(run.shards, "call", lambda *call: held.append(call))
        run.server.live.publish_max_bytes = 500
        first, second = await open_socket(run), await open_socket(run)
        publish = frame_bytes(
            TEXT, b'{"op":"publish","topic":"a","records":[],"x":"%b"}' % (b"x" * 600), mask=KEY
        )
        await first.send(publish)
        await run.until(lambda: len(held) == 1)
        await first.send(publish)
        await second.send(publish)
        await run.until(lambda: len(held) == 2)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert len(held) == 2, "the second publish must wait for the first"
        for *_, then in held:
            then(FakeReply(APPENDED, b'{"topic":"a"}', run.shards))
        await run.until(lambda: len(held) == 3)
        held[2][-1](FakeReply(APPENDED, b'{"topic":"a"}', run.shards))


def long_publish(*, shape: bytes = b'{"data":1}', size: int = 20 << 20) -> bytes:
    records = b",".join([shape] * (size // len(shape)))
    template = b'{"op":"publish","topic":"a","request_id":7,"records":[%b],"return_seqs":false}'
    return template % records


@pytest.mark.slow
async def test_the_decoding_of_a_long_publish_yields_to_other_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    iterations, publishes = 0, list[tuple[bool, int]]()

    async def add(_: Publishes, topic: str, seqs: bool, request_id: bytes, message: bytes) -> None:
        assert (topic, request_id) == ("a", b"7")
        publishes.append((seqs, len(message)))

    async def count_iterations() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            await trio.lowlevel.checkpoint()

    monkeypatch.setattr(Publishes, "add_long", add)
    async with running() as run, trio.open_nursery() as nursery:
        await run.connect()
        await run.until(lambda: len(run.server.connections) == 1)
        [connection] = run.server.connections
        socket = WebSocket(run.server.live, connection, ANYONE, Settings(), limits_of(Settings()))
        nursery.start_soon(count_iterations)
        await trio.lowlevel.checkpoint()
        before, message = iterations, long_publish()
        await socket._handle_frames([Frame(Opcode.TEXT, message)])
        assert publishes == [(False, len(message))]
        assert iterations - before > 15, "fewer than about one iteration for each MiB"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("size", [1, 300_000])
@pytest.mark.parametrize("is_fragmented", [False, True])
async def test_text_that_is_not_utf_8_ends_the_socket(size: int, is_fragmented: bool) -> None:
    async with running() as run:
        client = await open_socket(run)
        text = b"x" * size + b"\xff"
        frames = [frame_bytes(TEXT, text, mask=KEY)]
        if is_fragmented:
            frames = [frame_bytes(TEXT, text[:-1], fin=False, mask=KEY)]
            frames.append(frame_bytes(CONTINUATION, text[-1:], mask=KEY))
        await client.send(b"".join((*frames, frame_bytes(TEXT, b'{"op":"ping"}', mask=KEY))))
        received = await client.stream.receive_some(4096)
        assert received[2:] == (1007).to_bytes(2) + b"a text message is not valid UTF-8"
        await run.until(lambda: not run.server.live.streams)


@pytest.mark.parametrize(
    ("bodies_max_bytes", "most"), [(64 << 20, WEBSOCKET_MESSAGE_MAX_BYTES), (1 << 20, 1 << 20)]
)
async def test_a_message_above_its_bound_is_refused_by_its_header(
    bodies_max_bytes: int, most: int
) -> None:
    settings = Settings(max_body_bytes=bodies_max_bytes, drain_ms=2000)
    async with running(settings=settings) as run:
        client = await open_socket(run)
        await client.send(b"\x81\xff" + most.to_bytes(8) + KEY + b"x")  # this message may continue
        await client.send(b"")
        (stream,) = run.server.live.streams
        client = await open_socket(run)
        await client.send(b"\x81\xff" + (most + 1).to_bytes(8))
        received = await client.stream.receive_some(4096)
        assert received[2:] == (1009).to_bytes(2) + b"a message may have at most %d bytes" % most
        await run.until(lambda: run.server.live.streams == {stream})


async def test_a_long_message_that_publishes_nothing_is_refused_before_it_is_read() -> None:
    async with running() as run:
        client = await open_socket(run)
        topics = b",".join(b'"%x":{}' % number for number in range(40_000))
        template = b'{"op":"subscribe","request_id":7,"topics":{%b}}' % topics
        await client.send(frame_bytes(TEXT, template, mask=KEY))
        received = await client.stream.receive_some(4096)
        assert b'"request_id":7,"code":"payload_too_large"' in received
        await client.send(frame_bytes(TEXT, b'{"op":"ping"}', mask=KEY))
        assert b'"op":"pong"' in await client.stream.receive_some(4096)


SIOCOUTQNSD = 0x894B


async def test_the_kernel_buffers_little_data_for_a_client_that_does_not_read() -> None:
    """Otherwise a pong waits for megabytes, and a slow client assumes a lost connection."""
    async with running() as run:
        await open_socket(run)
        (stream,) = run.server.live.streams
        while not stream.is_stalled:
            stream.outbox.write(b"x" * 16_384)
        unsent = int.from_bytes(fcntl.ioctl(stream.sock, SIOCOUTQNSD, bytes(4)), sys.byteorder)
        assert 0 < unsent <= 3 * UNSENT_MAX_BYTES  # plus the rest of the last segments
