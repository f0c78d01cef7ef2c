"""Requests as bytes: any fragmentation and any mix of kinds. Ambiguous bytes are refused."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.driven import scenes
from tests.support.fake_shards import FakeShards
from tests.support.front import APPEND, RECORD, Running, running
from tests.support.raw_client import RawClient, RawResponse, request
from topics.front.http.poller import Poller

CHUNKED = (
    b"POST /v0/topics/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
    b"a\r\n" + RECORD[:10] + b"\r\nE;x=y\r\n" + RECORD[10:] + b"\r\n0\r\na: b\r\n\r\n"
)


# each request and the status it gets when topic `a` exists
KINDS: dict[str, tuple[bytes, int]] = {
    "append": (APPEND, 200),
    "long append": (request("POST", "/v0/topics/a", RECORD + b" " * 9000), 200),
    "chunked append": (CHUNKED, 200),
    "diff": (request("POST", "/v0/topics/a/diff", b'{"from_seq":100000}'), 200),
    "empty diff": (request("POST", "/v0/topics/none/diff"), 404),
    "get": (request("GET", "/v0/topics/a"), 200),
    "put": (request("PUT", "/v0/topics/a", b'{"x":1}'), 200),
    "chunked put": (CHUNKED.replace(b"POST", b"PUT"), 200),
    "health": (request("GET", "/v0/health"), 200),
    "hello": (request("GET", "/"), 200),
    "unknown path": (request("POST", "/v0/nothing", b"{}" * 40), 404),
    "unknown method": (request("BREW", "/v0/topics/a", b"tea"), 405),
    "wrong media": (request("POST", "/v0/topics/a", b"<a/>" * 30, content_type="text/xml"), 415),
    "empty line": (b"\r\n" + APPEND, 200),
}


async def receive_all(client: RawClient, kinds: Sequence[str]) -> list[RawResponse]:
    answers = [await client.receive() for _ in kinds]
    assert [answer.status for answer in answers] == [KINDS[kind][1] for kind in kinds]
    heads = [
        answer.json()["head_seq"]
        for answer, kind in zip(answers, kinds, strict=True)
        if KINDS[kind][0][:200] in APPENDS
    ]
    assert heads == sorted(set(heads))
    return answers


APPENDS = {
    KINDS[kind][0][:200] for kind in ("append", "long append", "chunked append", "empty line")
}


async def with_topic(run: Running) -> RawClient:
    client = await run.connect()
    assert (await client.request("PUT", "/v0/topics/a")).status == 201
    return client


async def test_all_kinds_of_requests_in_one_segment_are_answered_in_order() -> None:
    kinds = [*KINDS, *reversed(KINDS), *sorted(KINDS)]
    async with running() as run:
        client = await with_topic(run)
        await client.send(b"".join(KINDS[kind][0] for kind in kinds))
        await receive_all(client, kinds)


class Spawned(trio.abc.Instrument):
    """Counts the tasks that connections start."""

    def __init__(self) -> None:
        self.count = 0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.count += "Http1Protocol._run" in task.name


ANSWERED_WITHOUT_A_TASK = [
    "append",
    "diff",
    "get",
    "health",
    "wrong media",
    "unknown path",
    "put",
    "hello",
]
ANSWERED_IN_A_TASK = ["long append", "chunked append"]


@pytest.mark.parametrize(
    ("kind", "tasks"),
    [(kind, 0) for kind in ANSWERED_WITHOUT_A_TASK] + [(kind, 1) for kind in ANSWERED_IN_A_TASK],
)
async def test_only_a_request_that_must_wait_starts_a_task(kind: str, tasks: int) -> None:
    async with running() as run:
        client = await with_topic(run)
        spawned = Spawned()
        trio.lowlevel.add_instrument(spawned)
        for sent_kind in (kind, "append", kind):
            await client.send(KINDS[sent_kind][0])
            assert (await client.receive()).status == KINDS[sent_kind][1]
        trio.lowlevel.remove_instrument(spawned)
        assert spawned.count == 2 * tasks


async def test_requests_may_arrive_byte_by_byte() -> None:
    kinds = sorted(set(KINDS) - {"long append"})
    async with running() as run:
        client = await with_topic(run)
        for byte in b"".join(KINDS[kind][0] for kind in kinds):
            await client.send(bytes([byte]))
        await receive_all(client, kinds)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=8),
    sizes=st.lists(st.integers(1, 700), min_size=1),
)
def test_any_mix_of_requests_in_any_fragments_is_answered_in_order(
    kinds: list[str], sizes: list[int]
) -> None:
    async def scenario() -> None:
        async with running() as run:
            client = await with_topic(run)
            wire = b"".join(KINDS[kind][0] for kind in kinds)
            iteration = 0
            while wire:
                size = sizes[iteration % len(sizes)]
                iteration += 1
                await client.send(wire[:size])
                wire = wire[size:]
                await trio.lowlevel.checkpoint()
            await receive_all(client, kinds)

    trio.run(scenario)


HOST = b"host: localhost\r\n"


JSON = b"content-type: application/json\r\n"


SMUGGLED = (
    b"POST /v0/topics/smuggled HTTP/1.1\r\nhost: localhost\r\n"
    + JSON
    + b"content-length: 24\r\n\r\n"
    + RECORD
)


STRICT = {
    "length and coding": HOST + JSON + b"content-length: 3\r\ntransfer-encoding: chunked\r\n",
    "coding and length": HOST + JSON + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n",
    "two lengths": HOST + JSON + b"content-length: 24\r\ncontent-length: 25\r\n",
    "the same length twice": HOST + JSON + b"content-length: 24\r\ncontent-length: 24\r\n",
    "a list of lengths": HOST + JSON + b"content-length: 24, 24\r\n",
    "a signed length": HOST + JSON + b"content-length: +24\r\n",
    "a negative length": HOST + JSON + b"content-length: -1\r\n",
    "a hex length": HOST + JSON + b"content-length: 0x18\r\n",
    "an empty length": HOST + JSON + b"content-length:\r\n",
    "an absurd length": HOST + JSON + b"content-length: 99999999999999999999\r\n",
    "another coding": HOST + JSON + b"transfer-encoding: xchunked\r\n",
    "two codings": HOST + JSON + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
    "a list of codings": HOST + JSON + b"transfer-encoding: gzip, chunked\r\n",
    "a fold": HOST + JSON + b"x-a: b\r\n c\r\n",
    "a space before the colon": HOST + JSON + b"content-length : 24\r\n",
    "a NUL": HOST + JSON + b"x-a: \0\r\n",
    "a bare CR": HOST + JSON + b"x-a: b\rc: d\r\n",
    "a bare LF": HOST + JSON + b"x-a: b\nc: d\r\n",
    "no colon": HOST + JSON + b"x-a\r\n",
    "an empty name": HOST + JSON + b": x\r\n",
    "no host": JSON,
    "two hosts": HOST + HOST + JSON,
    "a host with a path": b"host: x/y\r\n" + JSON,
    "a huge head": HOST + JSON + b"x-a: " + b"a" * 70_000 + b"\r\n",
}


@pytest.mark.parametrize("what", sorted(STRICT))
@pytest.mark.parametrize("line", ["POST /v0/topics/a", "PUT /v0/topics/a", "GET /v0/health"])
async def test_an_ambiguous_head_is_refused_and_later_bytes_are_not_executed(
    what: str, line: str
) -> None:
    async with running() as run:
        client = await run.connect()
        wire = f"{line} HTTP/1.1\r\n".encode() + STRICT[what] + b"\r\n"
        await client.send(wire + b"0\r\n\r\n" + SMUGGLED)
        answer = await client.receive()
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert answer.headers["connection"] == "close"
        assert await client.is_closed()
        assert run.shards.calls == []


@pytest.mark.parametrize(
    "wire",
    [
        b"GET /v0/health HTTP/3.0\r\nhost: localhost\r\n\r\n",
        b"GET /v0/health\r\n\r\n",
        b"GET  /v0/health HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v0/he alth HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v0/h\xc3\xa9 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b" GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\nhost: x\n\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n",
        b"x" * 70_000,
        b"\rGET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
)
async def test_bytes_that_are_not_http_are_refused_immediately(wire: bytes) -> None:
    async with running() as run:
        client = await run.connect()
        await client.send(wire)
        assert (await client.receive()).status == 400
        assert await client.is_closed()


@pytest.mark.parametrize(
    "chunks",
    [
        b"g\r\n",
        b"-1\r\n",
        b"0x1\r\n",
        b" 1\r\na\r\n",
        b"\r\n",
        b"1\na\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\n",
        b"11111111111111111\r\n",
        b"1;\0\r\n",
        b"0\r\na b\r\n\r\n",
        b"0\r\n a\r\n",
    ],
)
async def test_an_invalid_chunk_is_refused_and_later_bytes_are_not_executed(chunks: bytes) -> None:
    async with running() as run:
        client = await run.connect()
        head = (
            b"POST /v0/topics/a HTTP/1.1\r\n" + HOST + JSON + b"transfer-encoding: chunked\r\n\r\n"
        )
        await client.send(head + chunks + SMUGGLED)
        assert (await client.receive()).status == 400
        assert await client.is_closed()
        assert run.shards.calls == []


async def test_an_empty_chunked_body_is_an_empty_body() -> None:
    async with running() as run:
        client = await with_topic(run)
        head = b"POST /v0/topics/a/diff HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n"
        await client.send(head + b"0\r\n\r\n")
        assert (await client.receive()).status == 200
        await client.send(head + b"2\r\n{}\r\n0\r\n\r\n")
        assert (await client.receive()).status == 415
        assert await client.is_closed()


# Sockets

HEALTH = request("GET", "/v0/health")


async def test_a_connection_closed_earlier_in_the_iteration_is_skipped() -> None:
    async with running() as run, scenes(run) as make:
        several = [make() for _ in range(3)]
        heads = run.server.parts.heads
        decide = heads.decide

        def abort_all(raw: bytes) -> Any:
            for scene in several:
                scene.connection.abort()
            heads.decide = decide  # type: ignore[method-assign]
            return decide(raw)

        heads.decide = abort_all  # type: ignore[method-assign]
        for scene in several:
            scene.client.sendall(HEALTH)
        several[0].poll()
        assert all(scene.is_over for scene in several)


async def test_a_socket_that_cannot_be_watched_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def watch(*_: object) -> None:
        raise OSError(errno.ENOMEM, "no memory for it")

    async with running() as run, scenes(run) as make:
        monkeypatch.setattr(Poller, "watch", watch)
        scene = make()
        assert scene.is_over
        assert scene.connection not in run.server.connections


async def test_run_polls_and_ends_every_connection_when_it_is_cancelled() -> None:
    shards = FakeShards(topics={"slow": []}, gate=trio.Event())
    async with running(shards=shards) as run, scenes(run) as make:
        reading, calling, in_task = (make() for _ in range(3))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reading.poller.run)
            calling.client.sendall(request("POST", "/v0/topics/slow", RECORD))
            in_task.client.sendall(request("POST", "/v0/topics/a", b" " * 100_000)[:-9])
            reading.client.sendall(HEALTH)
            with trio.fail_after(10):
                await trio.lowlevel.wait_readable(reading.client)
            assert reading.client.recv(4096)[9:12] == b"200"
            await run.until(lambda: shards.waiting == 1)
            assert not any(scene.is_over for scene in (reading, calling, in_task))
            nursery.cancel_scope.cancel()
        await run.until(lambda: all(scene.is_over for scene in (reading, calling, in_task)))
        assert make().is_over, "a stopped poller accepted a connection"
        shards.gate.set()  # type: ignore[union-attr]
