"""How connections live and end: keep-alive, slow and vanished clients, the drain."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import trio

from tests.support.front import FakeBackend, FakeReply, request, running
from topics.config import Settings
from topics.errors import NotReady, Throttled
from topics.front.answers import Answer
from topics.front.compression import compressed
from topics.front.http.connection import Connection, Timings
from topics.front.http.connections import Connections
from topics.front.http.fast_lane import FastLane

pytestmark = pytest.mark.slow

LANES = pytest.mark.parametrize("fast", [True, False], ids=["fast", "cold"])
RECORD = b'{"records":[{"data":1}]}'
APPEND = request("POST", "/v0/topics/a", RECORD)


@LANES
async def test_fifty_idle_connections_and_fifty_that_ask_for_it_are_closed(fast: bool) -> None:
    async with running(fast=fast) as run:
        keep = [await run.connect() for _ in range(50)]
        for client in keep:
            assert (await client.ask("POST", "/v0/topics/a", RECORD)).headers.get(
                "connection"
            ) is None
        for _ in range(50):
            client = await run.connect()
            answer = await client.ask("POST", "/v0/topics/a", RECORD, connection="close")
            assert answer.headers["connection"] == "close"
            assert await client.is_closed()
        await run.until(lambda: sum(c.idle for c in run.server.connections) == 50)
        run.sweep_in(74)
        assert len(run.server.connections) == 50
        run.sweep_in(76)
        for client in keep:
            assert await client.is_closed()
        await run.until(lambda: len(run.server.connections) == 0)


@LANES
@pytest.mark.parametrize("path", ["/v0/topics/a/diff", "/v0/health", "/"])
async def test_http_1_0_is_answered_and_closed(fast: bool, path: str) -> None:
    async with running(fast=fast, backend=FakeBackend(topics={"a": []})) as run:
        client = await run.connect()
        await client.say(
            f"{'POST' if path.endswith('diff') else 'GET'} {path} HTTP/1.0\r\n\r\n".encode()
        )
        answer = await client.hear()
        assert answer.status == 200
        assert answer.headers["connection"] == "close"
        assert await client.is_closed()


@LANES
async def test_a_half_closed_client_still_gets_its_answers(fast: bool) -> None:
    async with running(fast=fast) as run:
        client = await run.connect()
        await client.say(APPEND + request("GET", "/v0/health") + request("GET", "/"))
        await client.stream.send_eof()
        assert [(await client.hear()).status for _ in range(3)] == [201, 200, 200]
        assert await client.is_closed()


@LANES
async def test_expect_continue(fast: bool) -> None:
    async with running(fast=fast) as run:
        client = await run.connect()
        head, _, body = request("POST", "/v0/topics/a", RECORD, expect="100-continue").partition(
            b"\r\n\r\n"
        )
        for status in (201, 200):
            await client.say(head + b"\r\n\r\n")
            await run.until(lambda: not any(c.idle for c in run.server.connections))
            interim = await client.stream.receive_some(4096)
            assert interim.startswith(b"HTTP/1.1 100")
            await client.say(body)
            assert (await client.hear()).status == status


async def test_expect_continue_of_a_refused_request_never_asks_for_the_body() -> None:
    async with running(keys="k") as run:
        client = await run.connect()
        await client.say(
            request("POST", "/v0/topics/a", RECORD, expect="100-continue").partition(b"{")[0]
        )
        answer = await client.hear()
        assert (answer.status, client.continued) == (401, 0)
        assert answer.headers["connection"] == "close"
        assert await client.is_closed()


@LANES
async def test_a_refusal_is_read_although_the_client_goes_on_sending(fast: bool) -> None:
    settings = Settings(inline_bytes=4096, max_body_bytes=100_000)
    async with running(fast=fast, settings=settings) as run:
        client = await run.connect()
        await client.say(
            b"POST /v0/topics/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9999999\r\n\r\n"
        )
        for _ in range(20):
            await client.say(b" " * 50_000)
        answer = await client.hear()
        assert (answer.status, answer.code) == (413, "payload_too_large")
        assert await client.is_closed()


@pytest.mark.parametrize(
    ("said", "patience"),
    [
        (b"POST /v0/topics/a HTT", 10),
        (b"\r", 10),
        (b"", 75),
        (APPEND[:-5], 30),
        (request("PUT", "/v0/topics/a", RECORD)[:-5], 30),
        (request("POST", "/v0/topics/a", RECORD * 1000)[:9000], 31),
        (
            request(
                "POST", "/v0/topics/a", content_type="application/json", transfer_encoding="chunked"
            )
            + b"5\r\na",
            30,
        ),
    ],
    ids=["head", "one byte", "nothing", "body", "cold body", "long body", "chunked body"],
)
async def test_a_client_that_falls_silent_is_closed(said: bytes, patience: float) -> None:
    async with running() as run:
        client = await run.connect()
        await run.until(lambda: len(run.server.connections) == 1)
        [connection] = run.server.connections
        await run.until(lambda: connection.deadline < 1e18)
        if said:
            await client.say(said)
            await run.until(lambda: not connection.idle)
            await trio.testing.wait_all_tasks_blocked(0.01)
        run.sweep_in(patience - 2)
        assert len(run.server.connections) == 1
        run.sweep_in(patience + 2)
        assert await client.is_closed()
        await run.until(lambda: len(run.server.connections) == 0)


@LANES
async def test_a_body_that_comes_fast_and_then_stalls_has_the_grace_and_no_more(fast: bool) -> None:
    settings = Settings(inline_bytes=4096, max_body_bytes=64 * 1024 * 1024)
    async with running(fast=fast, settings=settings) as run:
        client = await run.connect()
        body = b'{"records":[]}' + b" " * (40 * 64 * 1024)
        await client.say(request("POST", "/v0/topics/a", body)[:-1])
        await run.until(lambda: len(run.server.connections) == 1)
        [connection] = run.server.connections
        await run.until(lambda: run.backend.blocks_out == 1)
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert 25 < connection.deadline - trio.current_time() < 30.1
        await client.say(b" ")
        assert (await client.hear()).status == 201


def test_a_body_at_the_rate_lives_and_one_below_it_dies() -> None:
    connections = Connections(Timings(), 0.0)
    for share, ends_s in ((1.0, math.inf), (0.9, 30 / 0.1)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            connection = Connection(ours, connections)
            connections.now = 0.0
            connection.begin_body()
            while connection.deadline > connections.now and connections.now < 1000:
                connections.now += 1
                connection.earned(round(share * 64 * 1024))
            assert connections.now == pytest.approx(min(ends_s, 1000), abs=2)


async def test_a_block_is_given_back_when_the_client_leaves_within_a_body() -> None:
    async with running() as run:
        for ending in ("fin", "reset"):
            client = await run.connect()
            await client.say(request("POST", "/v0/topics/a", RECORD * 1000)[:9000])
            await run.until(lambda: run.backend.blocks_out == 1)
            if ending == "reset":
                client.stream.socket.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
                )
            client.stream.socket.close()
            await run.until(lambda: run.backend.blocks_out == 0)
        assert run.backend.calls == []


@LANES
async def test_a_long_poll_ends_when_its_client_hangs_up(fast: bool) -> None:
    backend = FakeBackend(topics={"slow": []}, gate=trio.Event())
    async with running(fast=fast, backend=backend) as run:
        client = await run.connect()
        await client.say(request("POST", "/v0/topics/slow/diff", b'{"wait_ms":30000}'))
        await run.until(lambda: backend.waiting == 1)
        await client.stream.aclose()
        await run.until(lambda: backend.cancelled == 1)
        await run.until(lambda: len(run.server.connections) == 0)


async def test_an_append_is_not_taken_back_when_its_client_hangs_up() -> None:
    backend = FakeBackend(topics={"slow": []}, gate=trio.Event())
    async with running(backend=backend) as run:
        client = await run.connect()
        await client.say(request("POST", "/v0/topics/slow", RECORD))
        await run.until(lambda: backend.waiting == 1)
        await client.stream.aclose()
        run.sweep_in(60)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert backend.cancelled == 0
        assert backend.gate is not None
        backend.gate.set()
        await run.until(lambda: len(backend.topics["slow"]) == 1)


@LANES
async def test_a_client_that_does_not_read_is_cut_off(fast: bool) -> None:
    backend = FakeBackend(topics={"a": []}, answer_bytes=20_000_000)
    async with running(fast=fast, backend=backend) as run:
        client = await run.connect()
        await client.say(request("POST", "/v0/topics/a/diff", b"{}"))
        await run.until(
            lambda: any(c.deadline < 1e18 for c in run.server.connections) and bool(backend.calls)
        )
        await trio.testing.wait_all_tasks_blocked(0.05)
        run.sweep_in(29)
        assert len(run.server.connections) == 1
        run.sweep_in(32)
        await run.until(lambda: len(run.server.connections) == 0)


@LANES
async def test_a_body_that_is_told_to_give_up_is_answered(fast: bool) -> None:
    async with running(fast=fast) as run:
        client = await run.connect()
        await client.say(request("POST", "/v0/topics/a", RECORD * 1000)[:9000])
        await run.until(lambda: run.backend.blocks_out == 1)
        run.backend.holders[0].give_up(Throttled("no room", retry_after_ms=1000))
        answer = await client.hear()
        assert (answer.status, answer.code) == (429, "throttled")
        assert answer.headers["connection"] == "close"
        assert run.backend.blocks_out == 0
        assert await client.is_closed()


async def test_a_slow_reader_is_cut_when_its_memory_is_needed() -> None:
    backend = FakeBackend(topics={"a": []}, answer_bytes=20_000_000)
    async with running(backend=backend) as run:
        client = await run.connect()
        await client.say(request("POST", "/v0/topics/a/diff", b"{}"))
        await run.until(lambda: len(backend.let_go) == 1)
        backend.let_go[0]()
        await run.until(lambda: backend.replies_out == 0)
        with pytest.raises((EOFError, trio.BrokenResourceError)):
            await client.hear()


async def test_an_answer_whose_memory_is_needed_while_it_is_compressed_is_a_503() -> None:
    class Lost(FakeReply):
        def on_lost(self, let_go: Callable[[], object]) -> None:
            let_go()

    backend = FakeBackend()
    with pytest.raises(NotReady):
        await compressed(Answer(200, bytes(1_000_000), Lost({}, b"", backend)))
    assert backend.replies_out == 0


async def test_while_answers_fill_the_memory_the_slowest_client_is_cut(
    autojump_clock: trio.testing.MockClock,
) -> None:
    connections = Connections(Timings(), 0.0, held_max_bytes=1000)
    with ExitStack() as stack:

        def held(size: int) -> Connection:
            ours, _ = map(stack.enter_context, socket.socketpair())
            connection = Connection(ours, connections)
            stack.enter_context(connections.holding(connection, size))
            return connection

        fast, slow = held(400), held(400)
        await trio.sleep(30)
        fast.rate.count(400, trio.current_time())
        assert not slow.scope.cancel_called
        third = held(400)
        assert [connection.scope.cancel_called for connection in (fast, slow, third)] == [
            False,
            True,
            False,
        ]
        brisk = [fast, third, held(400), held(400), held(400)]
        assert not any(connection.scope.cancel_called for connection in brisk)
        brisk.append(held(400))
        assert sum(connection.scope.cancel_called for connection in brisk) == 1, (
            "there is an end to it"
        )


@LANES
@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, 70_000, 120_000])
async def test_what_stands_behind_a_body_of_any_length_is_the_next_request(
    fast: bool,
    length: int,
) -> None:
    async with running(fast=fast) as run:
        client = await run.connect()
        body = b'{"records":[{"data":1}]}'
        body = b"" if length < len(body) else body + b" " * (length - len(body))
        put = request("PUT", "/v0/topics/a", body)
        post = request("POST", "/v0/topics/a", body or RECORD)
        await client.say(put + APPEND + post + APPEND)
        assert [(await client.hear()).status for _ in range(4)] == [201, 200, 200, 200]
        lengths = [len(raw) for _, _, raw in run.backend.calls]
        assert lengths == [len(body), len(RECORD), len(body or RECORD), len(RECORD)]


@LANES
async def test_a_slow_reader_gets_everything(fast: bool) -> None:
    backend = FakeBackend(topics={"a": []}, answer_bytes=8_000_000)
    async with running(fast=fast, backend=backend) as run:
        client = await run.connect()
        await client.say(request("POST", "/v0/topics/a/diff", b"{}") + request("GET", "/v0/health"))
        assert len((await client.hear()).json()["filler"]) == 8_000_000
        assert (await client.hear()).json()["status"] == "ok"


@LANES
async def test_the_drain_lets_requests_finish_and_closes_the_rest(fast: bool) -> None:
    backend = FakeBackend(topics={"slow": []}, gate=trio.Event())
    async with running(fast=fast, backend=backend) as run:
        idle, busy, halfway = [await run.connect() for _ in range(3)]
        assert (await idle.ask("GET", "/v0/health")).status == 200
        await busy.say(request("POST", "/v0/topics/slow/diff", b"{}"))
        await halfway.say(APPEND[:30])
        await run.until(
            lambda: backend.waiting == 1 and sum(c.idle for c in run.server.connections) == 1
        )
        run.stop.set()
        assert await idle.is_closed()
        await halfway.say(APPEND[30:])
        answer = await halfway.hear()
        assert (answer.status, answer.code) == (503, "shutting_down")
        assert (answer.headers["connection"], answer.headers["retry-after"]) == ("close", "1")
        assert await halfway.is_closed()
        assert backend.gate is not None
        backend.gate.set()
        answer = await busy.hear()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await busy.is_closed()
        with trio.fail_after(5):
            await run.stopped.wait()


@LANES
@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v0/topics/a"), ("PUT", "/v0/topics/a"), ("GET", "/v0/ready")]
)
async def test_who_connects_during_the_drain_is_told_so(fast: bool, method: str, path: str) -> None:
    backend = FakeBackend(topics={"slow": []}, gate=trio.Event())
    async with running(fast=fast, backend=backend) as run:
        busy = await run.connect()
        await busy.say(request("POST", "/v0/topics/slow", RECORD))
        await run.until(lambda: backend.waiting == 1)
        run.stop.set()
        await run.until(lambda: run.server.guard.drain.is_draining)
        late, silent = await run.connect(), await run.connect()
        answer = await late.ask(method, path, b"" if method == "GET" else RECORD)
        assert (answer.status, answer.code) == (503, "shutting_down")
        assert (answer.headers["connection"], answer.headers["retry-after"]) == ("close", "1")
        assert await late.is_closed()
        assert backend.gate is not None
        backend.gate.set()
        assert (await busy.hear()).status == 200
        with trio.fail_after(1):
            await run.stopped.wait()
        assert await silent.is_closed()
        with pytest.raises(OSError):
            await trio.open_tcp_stream(*run.address)


async def test_who_connects_during_the_drain_and_says_nothing_is_not_waited_for(
    autojump_clock: trio.abc.Clock,
) -> None:
    connections = Connections(Timings(), trio.current_time())
    connections.drain()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        late = Connection(ours, connections)
        connections.add(late)
        assert late.is_late
        with trio.fail_after(1):
            await connections.wait_empty()
        connections.drain()
        assert connections.leaving == 1
        assert late.closing


@LANES
async def test_ready_says_so_while_draining(fast: bool) -> None:
    async with running(fast=fast) as run:
        client = await run.connect()
        await client.say(b"GET /v0/ready HTTP/1.1\r\n")
        await run.until(lambda: any(not c.idle for c in run.server.connections))
        run.stop.set()
        await run.until(lambda: run.server.guard.drain.is_draining)
        await client.say(b"host: localhost\r\n\r\n")
        assert (await client.hear()).code == "shutting_down"
        assert await client.is_closed()


@LANES
async def test_what_does_not_end_is_cut_after_the_drain_time(fast: bool) -> None:
    backend = FakeBackend(topics={"slow": [], "a": []}, gate=trio.Event(), answer_bytes=20_000_000)
    async with running(fast=fast, backend=backend, settings=Settings(drain_ms=100)) as run:
        waiting, deaf = [await run.connect() for _ in range(2)]
        await waiting.say(request("POST", "/v0/topics/slow", RECORD))
        await deaf.say(request("POST", "/v0/topics/a/diff", b"{}"))
        await run.until(lambda: len(backend.calls) == 2)
        run.stop.set()
        with trio.fail_after(5):
            await run.stopped.wait()
        assert backend.cancelled == 1


@LANES
async def test_a_long_poll_that_outlives_the_drain_is_told_so(fast: bool) -> None:
    backend = FakeBackend(topics={"slow": []}, gate=trio.Event())
    async with running(fast=fast, backend=backend, settings=Settings(drain_ms=300)) as run:
        client = await run.connect()
        await client.say(request("POST", "/v0/topics/slow/diff", b'{"wait_ms":30000}'))
        await run.until(lambda: backend.waiting == 1)
        run.stop.set()
        answer = await client.hear()
        assert (answer.status, answer.code, answer.headers["connection"]) == (
            503,
            "shutting_down",
            "close",
        )
        assert backend.cancelled == 1


async def test_a_long_poll_whose_body_comes_when_the_others_were_told_is_told_so_too() -> None:
    backend = FakeBackend(topics={"slow": []}, gate=trio.Event())
    async with running(backend=backend, settings=Settings(drain_ms=20_000)) as run:
        client = await run.connect()
        poll = request("POST", "/v0/topics/slow/diff", b'{"wait_ms":30000}')
        await client.say(poll[:-2])
        await run.until(lambda: any(c.body_deadline < 1e18 for c in run.server.connections))
        run.stop.set()
        await run.until(lambda: run.server.guard.drain.is_draining)
        run.server.guard.drain.stop_waiting()
        await client.say(poll[-2:])
        with trio.fail_after(5):
            assert (await client.hear()).code == "shutting_down"


@pytest.mark.parametrize(
    "where",
    [
        "quart_trio.app.QuartTrio.full_dispatch_request",
        "quart_trio.asgi.TrioASGIHTTPConnection.handle_request",
    ],
)
async def test_a_bug_in_the_framework_is_answered_with_the_envelope(
    where: str, monkeypatch: Any
) -> None:
    async with running(backend=FakeBackend(topics={"a": []})) as run:
        client = await run.connect()

        async def explode(*_: object, **__: object) -> None:
            raise ZeroDivisionError("in the machinery")

        with monkeypatch.context() as patch:
            patch.setattr(where, explode)
            answer = await client.ask("PUT", "/v0/topics/a", b"{}" + b" " * 9000)
        assert (answer.status, answer.code) == (500, "internal")
        assert run.backend.blocks_out == 0
        other = await run.connect()
        assert (await other.ask("GET", "/v0/health")).status == 200


@LANES
async def test_nothing_but_an_os_error_escapes_a_connection(
    fast: bool, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    async with running(fast=fast) as run:
        broken = await run.connect()

        def explode(*_: object) -> None:
            raise ZeroDivisionError("in the machinery")

        with monkeypatch.context() as patch:
            patch.setattr("topics.front.http.head_reader.parse_head", explode)
            await broken.say(APPEND)
            assert (await broken.hear()).code == "internal"
            assert await broken.is_closed()
        healthy = await run.connect()
        assert (await healthy.ask("POST", "/v0/topics/a", RECORD)).status == 201
    assert "in the machinery" in caplog.text


async def test_what_has_come_when_the_drain_begins_is_answered() -> None:
    """Before its task has begun to run, and while it is between two requests."""
    async with running() as run:
        connections, lanes = run.server.connections, run.server.lanes
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.settimeout(5)
            connection = Connection(ours, connections)
            connections.add(connection)
            theirs.sendall(APPEND)
            run.server.guard.drain.begin()
            connections.drain()
            assert connections.leaving == 1
            await FastLane(connection, lanes).run()
            assert theirs.recv(4096).startswith(b"HTTP/1.1 503 ")
            connections.remove(connection)


async def test_answers_of_both_lanes_count_while_their_clients_do_not_take_them() -> None:
    backend = FakeBackend(topics={f"t{number:05}{'x' * 200}": [] for number in range(1000)})
    async with running(backend=backend) as run:
        client = await run.connect()
        await client.say(request("GET", "/v0/topics?page_size=1000") * 40)
        await run.until(lambda: run.server.connections.answers.held_bytes > 200_000)
        client.stream.socket.close()
        await run.until(lambda: run.server.connections.answers.held_bytes == 0)
