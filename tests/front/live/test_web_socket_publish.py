"""The publishes of a WebSocket that form a batch, and their responses, without a server."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from websockets.frames import Frame, Opcode

from tests.support.live_harness import LiveHarness, ShardCall, ShardReply, SocketClient, refuse_next
from topics.config import Settings
from topics.engine.priority import BANDS, TOP_BAND
from topics.errors import NotReady, TopicFull, TopicsError
from topics.formats.json_text import json_bytes
from topics.formats.wire.calls import (
    AppendOutcome,
    AppendResult,
    outcome_byte,
)
from topics.front.live import web_socket
from topics.front.live.web_socket_publish import COPY_BYTES

APPENDED, _, FAILED = AppendOutcome
LONG = 2000
SETTINGS = Settings(inline_bytes=LONG)


class Publisher(SocketClient):
    """A WebSocket client that publishes. The topic ``a1`` belongs to a second shard."""

    def __init__(self, front: LiveHarness) -> None:
        super().__init__(front.live, SETTINGS)
        self.live, self.shards, self.pressure = front.live, front.shards, front.pressure
        self.shards.elsewhere = {"a1"}
        self.stream.begin()

    async def send(self, *messages: bytes) -> None:
        """Deliver these messages in one read."""
        assert await self.stream._handle_frames(
            [Frame(Opcode.TEXT, message) for message in messages]
        )

    def sent(self) -> list[list[bytes]]:
        """Return the bodies in each message to the shards."""
        found = []
        for shard_call in self.shards.pending:
            body = io.BytesIO(shard_call.body)
            lengths = shard_call.params["lengths"] or [len(shard_call.body)]
            found.append([body.read(length) for length in lengths])
            assert not body.read()
        return found

    async def responses(self) -> list[tuple[str, str]]:
        """Return the op and the request id of each response to the client."""
        await wait_all_tasks_blocked()
        found = re.findall(rb'"op":"(\w+)","request_id":"?(\w+)', self.receive())
        return [(op.decode(), name.decode()) for op, name in found]


def answer(shard_call: ShardCall, *answers: bytes | TopicsError) -> None:
    """Reply to each publish of a batch."""
    bodies = [b"" if isinstance(one, TopicsError) else one for one in answers]
    failures = [one for one in answers if isinstance(one, TopicsError)]
    result = AppendResult(
        bytes(outcome_byte(APPENDED if body else FAILED, TOP_BAND) for body in bodies),
        [len(body) for body in bodies] if len(answers) > 1 else None,
        [(failure.code, failure.message, failure.detail) for failure in failures],
    )
    shard_call.then(ShardReply(result, b"".join(bodies)))


@pytest.fixture
def publisher(front: LiveHarness) -> Publisher:
    made = Publisher(front)
    front.clients.append(made)
    return made


def publish(request_id: str, topic: str = "t", size: int = 1, **fields: Any) -> bytes:
    return json_bytes(
        {
            "op": "publish",
            "request_id": request_id,
            "topic": topic,
            "records": [{"data": "x" * size}],
            **fields,
        }
    )


async def test_publishes_of_one_read_are_sent_as_one_batch_for_each_topic(
    publisher: Publisher,
) -> None:
    a, b = (
        [publish(f"a{at}", "a1") for at in range(3)],
        [publish(f"b{at}", "b2") for at in range(2)],
    )
    await publisher.send(a[0], b[0], a[1], b[1], a[2], publish("c", "c2"))
    assert publisher.sent() == [a, b, [publish("c", "c2")]]


@pytest.mark.parametrize("size", [LONG, COPY_BYTES])
async def test_a_long_publish_is_sent_alone_and_in_order(publisher: Publisher, size: int) -> None:
    publishes = [
        *(publish("1"), publish("2"), publish("3", size=size), publish("4"), publish("5")),
        *(publish("6", size=size), publish("7")),
    ]
    await publisher.send(*publishes)
    assert publisher.sent() == [
        publishes[:2],
        [publishes[2]],
        publishes[3:5],
        [publishes[5]],
        [publishes[6]],
    ]


@pytest.mark.parametrize("size", [LONG, COPY_BYTES])
async def test_without_shared_memory_only_the_long_publish_is_refused(
    publisher: Publisher, size: int
) -> None:
    publisher.shards.is_full = True
    await publisher.send(publish("1"), publish("2", size=size), publish("3"))
    assert publisher.sent() == [[publish("1")], [publish("3")]]
    assert await publisher.responses() == [("error", "2")]
    assert publisher.live.publish_bytes == len(publish("1")) + len(publish("3"))


@pytest.mark.parametrize("end", ["the shard crashes", "the client disconnects"])
async def test_the_copy_of_a_long_publish_can_be_aborted(publisher: Publisher, end: str) -> None:
    message = publish("2", size=5 * COPY_BYTES)
    copied = list[int]()

    async def end_copy() -> None:
        while not publisher.shards.blocks:
            await trio.lowlevel.checkpoint()
        [block] = publisher.shards.blocks
        copied.append(bytes(block.view).count(b"x"))
        if end == "the shard crashes":
            block.holder.abort(NotReady("crashed"))
        else:
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_copy)
        await publisher.send(publish("1"), message, publish("3"))
    assert 0 < copied[0] < 3 * COPY_BYTES
    [block] = publisher.shards.blocks
    assert block.is_free
    others = [publish("1"), publish("3")] if end == "the shard crashes" else [publish("1")]
    assert publisher.sent() == [[one] for one in others]
    assert publisher.live.publish_bytes == sum(map(len, others))
    assert await publisher.responses() == ([("error", "2")] if end == "the shard crashes" else [])


async def test_a_batch_is_not_longer_than_an_inline_body(publisher: Publisher) -> None:
    publishes = [publish(str(at), size=at * 37 % 700) for at in range(30)]
    await publisher.send(*publishes)
    assert [body for bodies in publisher.sent() for body in bodies] == publishes
    lengths = [len(call.body) for call in publisher.shards.pending]
    assert max(lengths) <= LONG
    assert all(
        first + len(bodies[0]) > LONG
        for first, bodies in zip(lengths, publisher.sent()[1:], strict=False)
    )


async def test_batches_are_sent_while_further_messages_are_decoded(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_socket, "FLUSH_EVERY", 4)
    await publisher.send(*(publish(str(at)) for at in range(10)))
    assert [len(bodies) for bodies in publisher.sent()] == [4, 4, 2]


async def test_publishes_with_and_without_seqs_keep_their_order(publisher: Publisher) -> None:
    publishes = [publish(str(at), return_seqs=at < 2 or at > 3) for at in range(6)]
    await publisher.send(*publishes)
    assert publisher.sent() == [publishes[:2], publishes[2:4], publishes[4:]]
    assert [call.params["with_seqs"] for call in publisher.shards.pending] == [True, False, True]


async def test_every_reply_is_matched_to_its_publish(publisher: Publisher) -> None:
    await publisher.send(
        publish("1"), b"{", publish("2"), publish("3", "a b"), publish("4"), publish("5", "u")
    )
    assert await publisher.responses() == [("error", "null"), ("error", "3")]
    batch, alone = publisher.shards.pending
    answer(alone, b'{"topic":"u"}')
    answer(batch, b'{"topic":"t"}', TopicFull("m"), b'{"topic":"t"}')
    assert await publisher.responses() == [("ack", "5"), ("ack", "1"), ("error", "2"), ("ack", "4")]


async def test_every_publish_in_flight_is_refused_if_the_shard_crashes(
    publisher: Publisher,
) -> None:
    await publisher.send(publish("1"), publish("2"))
    await publisher.send(publish("3"))
    for call in publisher.shards.pending:
        call.then(NotReady("the shard of this topic is not ready"))
    assert await publisher.responses() == [("error", "1"), ("error", "2"), ("error", "3")]


@pytest.mark.parametrize("drained_first", [True, False])
async def test_a_drained_socket_ends_after_its_publishes_are_answered(
    publisher: Publisher, drained_first: bool
) -> None:
    await publisher.send(publish("1"), publish("2"))
    if drained_first:
        publisher.stream.drain()
        await publisher.send(publish("late"))
        assert await publisher.responses() == [("error", "late")]
    answer(publisher.shards.pending[0], b'{"topic":"t"}', b'{"topic":"t"}')
    if not drained_first:
        publisher.stream.drain()
    assert await publisher.responses() == [("ack", "1"), ("ack", "2"), ("error", "null")]
    assert publisher.stream.ended


async def test_a_publish_under_pressure_is_refused_with_a_retry_time(
    publisher: Publisher,
) -> None:
    refuse_next(publisher.pressure)
    await publisher.send(publish("1"))
    refused = publisher.receive()
    assert b'"op":"error","request_id":"1","code":"throttled","message":"' in refused
    assert refused.endswith(b'","detail":{"retry_after_ms":1000}}')
    for governor in publisher.pressure.governors:
        governor._debts = [0.0] * BANDS
    await publisher.send(publish("2"))
    assert publisher.sent() == [[publish("2")]]


async def test_a_publish_that_disables_backpressure_is_accepted(publisher: Publisher) -> None:
    refuse_next(publisher.pressure)
    await publisher.send(publish("1", disable_backpressure=True))
    assert len(publisher.sent()) == 1
