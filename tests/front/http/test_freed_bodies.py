"""A body is freed as soon as it is handled, even if its connection waits or is idle afterwards."""

from __future__ import annotations

import gc
import gzip
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.front.test_keys import Shards
from tests.support.front import Running, running
from tests.support.raw_client import RawClient, request
from tests.support.ws import BINARY, TEXT, frame_bytes, handshake
from topics.actors.rpc.session import PendingCall
from topics.config import Settings
from topics.formats.wire.contract import Call, P, R
from topics.front.request import Body

PAD = b" " * 50_000
LONG_PAD = b" " * 110_000
POLL = b'{"from_seq":0,"wait_ms":30000%b}'
SLACK_BYTES = 30_000  # a connection, its task, its state
FEW = 8


class UnresponsiveShards(Shards):
    """Shards that take bodies and never reply."""

    def call(
        self,
        shard: int,
        call: Call[P, R],
        params: Any,
        body: Body,
        then: Callable[[Any], None],
        *,
        early: bool = False,
    ) -> PendingCall:
        self._take(body)
        self.waiting += 1
        return PendingCall(0, call, then, None)


@pytest.fixture
def _traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


pytestmark = pytest.mark.usefixtures("_traced")


def chunked(path: str, body: bytes) -> bytes:
    head = request("POST", path, content_type="application/json", transfer_encoding="chunked")
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def zipped(path: str, body: bytes) -> bytes:
    return request("POST", path, gzip.compress(body, 0), content_encoding="gzip")


SLOW = "/v0/topics/slow/diff"
WAITING = {
    "a short body": request("POST", SLOW, POLL % PAD),
    "a long body": request("POST", SLOW, POLL % LONG_PAD),
    "a chunked body": chunked(SLOW, POLL % LONG_PAD),
    "a gzipped body": zipped(SLOW, POLL % LONG_PAD),
    "a claim": request("POST", "/v0/topics/slow/claim", b'{"node":"n","wait_ms":9%b}' % LONG_PAD),
}
STREAM = "/v0/watch?topic=a&tail=true"
STREAMING = {
    "a body": request("GET", STREAM, PAD),
    "what follows the head": request("GET", STREAM) + PAD,
}


def held() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def held_by(run: Running, shards: Shards, data: bytes, kind: str) -> int:
    """Return the bytes held by each of `FEW` connections that sent ``data``, after a warm-up."""
    before, clients = 0, list[RawClient]()
    for number in range(2 * FEW):
        if number == FEW:
            before = held()
        clients.append(client := await run.connect())
        await client.send(data)
        if kind == "waits":
            await run.until(lambda: shards.waiting == len(clients))
        else:
            while b"retry: 2000" not in client._buffer:
                await client._more()
            client._buffer = b""
    await run.until(lambda: held() - before < FEW * SLACK_BYTES)
    return (held() - before) // FEW


@pytest.mark.parametrize("data", WAITING.values(), ids=WAITING.keys())
async def test_a_waiting_request_holds_no_body(data: bytes) -> None:
    shards = UnresponsiveShards()
    async with running(shards=shards, settings=Settings(drain_ms=1000)) as run:
        assert await held_by(run, shards, data, "waits") < SLACK_BYTES


@pytest.mark.parametrize("data", STREAMING.values(), ids=STREAMING.keys())
async def test_an_event_stream_holds_no_data_sent_with_its_request(data: bytes) -> None:
    shards = Shards(topics={"a": []})
    async with running(shards=shards, settings=Settings(drain_ms=1000)) as run:
        assert await held_by(run, shards, data, "streams") < SLACK_BYTES


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
async def test_an_idle_web_socket_holds_no_message(opcode: int) -> None:
    length, shards = 900_000, Shards(topics={"a": []})
    data = b'{"op":"none","pad":"%b"}' % (b"x" * length)
    async with running(shards=shards, settings=Settings(max_body_bytes=1 << 20)) as run:
        client = await run.connect()
        await client.send(handshake())
        while b"\r\n\r\n" not in client._buffer:
            await client._more()
        frame, before = frame_bytes(opcode, data, mask=bytes(4)), held()
        await client.send(frame)
        while b'"error"' not in client._buffer:
            await client._more()
        await run.until(lambda: held() - before < length // 4)
