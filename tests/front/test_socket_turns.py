"""What one WebSocket may take of a front: of a turn of its loop, and of its memory."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio

from tests.contract.ws import BINARY, CONTINUATION, PING, TEXT, frame_bytes, handshake
from tests.front.support import FakeReply, RawClient, Running, running
from topics.formats.api.websocket import FrameParser, Text
from topics.formats.wire.calls import AppendOutcome, AppendResult
from topics.front.live import message_budget, web_socket
from topics.front.live.message_budget import PROGRESS_BYTES, STALLED_S, MessageBudget
from topics.front.live.streams import Stream
from topics.front.live.web_socket import FRAMES_PER_TURN, SocketStream

APPENDED = AppendResult(bytes((AppendOutcome.APPENDED,)))
KEY = bytes(4)
ROOM = 1 << 20


async def open_socket(run: Running) -> RawClient:
    client = await run.connect()
    await client.say(handshake())
    while b"\r\n\r\n" not in client._buffer:
        await client._more()
    client._buffer = b""
    return client


@pytest.mark.parametrize(
    "piece",
    [
        frame_bytes(TEXT, b"x", mask=KEY),
        frame_bytes(PING, b"", mask=KEY),
        frame_bytes(BINARY, b"x", mask=KEY),
        frame_bytes(TEXT, b'{"op":"ping"}', mask=KEY),
        frame_bytes(TEXT, b'{"op":"unsubscribe","topic":"a"}', mask=KEY),
    ],
    ids=["one byte", "pings", "binary", "ping commands", "unsubscribe"],
)
async def test_others_have_their_turn_while_many_messages_are_answered(
    piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, turn, takes = 1000, 0, 0
    handled: Counter[int] = Counter()  # by turn of the loop
    writes: list[int] = []
    take, write = SocketStream._take, Stream.write

    async def counted_take(self: SocketStream, events: list[Any]) -> bool:
        nonlocal takes
        handled[turn] += len(events)
        takes += 1
        return await take(self, events)

    def counted_write(self: Stream, data: bytes) -> None:
        writes.append(len(data))
        write(self, data)

    monkeypatch.setattr(SocketStream, "_take", counted_take)
    monkeypatch.setattr(Stream, "write", counted_write)
    async with running() as run:
        client = await open_socket(run)
        await client.say(piece * count)
        with trio.fail_after(10):
            while sum(handled.values()) < count:
                turn += 1
                await trio.lowlevel.checkpoint()
        assert max(handled.values()) <= 2 * FRAMES_PER_TURN, (
            "tasks of a turn run in any order: two turns may touch"
        )
        assert len(writes) <= takes, "answers are joined"


def test_a_parser_stops_where_it_is_told_and_goes_on_there() -> None:
    pieces = [
        frame_bytes(TEXT, b"%d" % number, fin=False, mask=KEY)
        + frame_bytes(CONTINUATION, b"!", mask=KEY)
        for number in range(50)
    ]
    pieces += [frame_bytes(TEXT, b"%d!" % number, mask=KEY) for number in range(50, 100)]
    parser, found, calls, data = FrameParser(1000), [], 0, b"".join(pieces)
    while data or parser.has_more:
        events = parser.feed(data, 7)
        assert len(events) <= 8
        found += events
        calls, data = calls + 1, b""
    assert found == [Text(b"%d!" % number) for number in range(100)]
    assert calls > 10
    assert not parser.is_amid


class Socket:
    def __init__(self) -> None:
        self.gone = False

    def give_up(self) -> None:
        self.gone = True


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(message_budget, "time", clock)
    return clock


def test_the_longest_message_ends_when_all_are_on_the_move(clock: Clock) -> None:
    budget = MessageBudget(ROOM)
    sockets = [Socket() for _ in range(4)]
    for step in range(1, 5):
        for socket, share in zip(sockets, (1, 2, 3, 1), strict=True):
            if not socket.gone:
                budget.hold(socket, step * share * ROOM // 24)
    assert [socket.gone for socket in sockets] == [False, False, True, False]
    assert budget.unfinished <= ROOM


def test_who_stands_still_ends_before_who_moves_however_little_he_holds(clock: Clock) -> None:
    budget = MessageBudget(ROOM)
    still, dripping, moving = Socket(), Socket(), Socket()
    budget.hold(still, 10)
    clock.now += 0.1
    for byte in range(10):
        clock.now += STALLED_S / 5
        budget.hold(dripping, ROOM // 2 - 20 + byte)
    budget.hold(moving, ROOM // 2)
    assert not still.gone
    budget.hold(moving, ROOM // 2 + 5)
    assert (still.gone, dripping.gone, moving.gone) == (True, False, False)
    budget.hold(moving, ROOM - 1000)
    assert (dripping.gone, moving.gone) == (True, False)


def test_stalled_messages_keep_nobody_out(clock: Clock) -> None:
    budget = MessageBudget(ROOM)
    for _ in range(64):
        budget.hold(Socket(), ROOM // 64)
    clock.now += STALLED_S + 0.1
    honest = Socket()
    for length in range(PROGRESS_BYTES, ROOM + 1, PROGRESS_BYTES):
        budget.hold(honest, length)
    assert not honest.gone
    budget.hold(honest, 0)
    assert budget.unfinished == 0


def test_who_asks_for_more_than_there_is_ends_alone(clock: Clock) -> None:
    budget = MessageBudget(ROOM)
    small, large = Socket(), Socket()
    budget.hold(small, 1000)
    budget.hold(large, ROOM)
    assert (small.gone, large.gone) == (False, True)
    assert budget.unfinished == 1000


def test_what_is_asked_leaves_half_for_messages_that_come(clock: Clock) -> None:
    budget = MessageBudget(ROOM)
    budget.asked = 5 * ROOM
    first, second = Socket(), Socket()
    budget.hold(first, ROOM // 2)
    assert not first.gone
    budget.hold(second, 1)
    assert (first.gone, second.gone) == (True, False)


async def test_sockets_share_a_bound_and_hear_why_one_must_go() -> None:
    async with running() as run:  # bodies of 1 MiB at most
        sockets = [await open_socket(run) for _ in range(4)]
        begun = frame_bytes(TEXT, b"x" * (1 << 20), mask=KEY)[:-1]
        for client in sockets:
            with trio.move_on_after(2):
                await client.say(begun)
        budget = run.server.live.messages
        await run.until(lambda: len(run.server.live.streams) == 2)
        assert budget.unfinished <= budget.most
        gone = [client for client in sockets if await says_goodbye(client)]
        assert len(gone) == 2
        for client in sockets:
            client.stream.socket.close()
        await run.until(lambda: not run.server.live.streams)
        assert (budget.unfinished, budget.asked, budget._held) == (0, 0, {})


async def says_goodbye(client: RawClient) -> bool:
    heard = b""
    with trio.move_on_after(0.05):
        heard = await client.stream.receive_some(4096)
    return b'"code":"throttled"' in heard and b"\x03\xf5there is no room" in heard


async def test_all_that_is_asked_has_a_bound_and_everybody_may_ask_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(web_socket, "ASKED_BYTES_MAX", 1 << 40)
    held: list[Any] = []
    async with running() as run:
        monkeypatch.setattr(run.backend, "ask", lambda *asked: held.append(asked))
        run.server.live.messages.most = 1000
        first, second = await open_socket(run), await open_socket(run)
        publish = frame_bytes(
            TEXT, b'{"op":"publish","topic":"a","records":[],"x":"%b"}' % (b"x" * 600), mask=KEY
        )
        await first.say(publish)
        await run.until(lambda: len(held) == 1)
        await first.say(publish)
        await second.say(publish)
        await run.until(lambda: len(held) == 2)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert len(held) == 2, "the first one waits for its answer"
        for *_, then in held:
            then(FakeReply(APPENDED, b'{"topic":"a"}', run.backend))
        await run.until(lambda: len(held) == 3)
        held[2][-1](FakeReply(APPENDED, b'{"topic":"a"}', run.backend))


async def test_a_long_message_that_publishes_nothing_is_refused_before_it_is_read() -> None:
    async with running() as run:
        client = await open_socket(run)
        topics = b",".join(b'"%x":{}' % number for number in range(40_000))
        said = b'{"op":"subscribe","request_id":7,"topics":{%b}}' % topics
        await client.say(frame_bytes(TEXT, said, mask=KEY))
        heard = await client.stream.receive_some(4096)
        assert b'"request_id":7,"code":"payload_too_large"' in heard
        await client.say(frame_bytes(TEXT, b'{"op":"ping"}', mask=KEY))
        assert b'"op":"pong"' in await client.stream.receive_some(4096)
