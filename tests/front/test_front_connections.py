"""How connections live and end: keep-alive, slow and vanished clients, the drain, HTTP/2."""

from __future__ import annotations

import socket
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import pytest
import trio

from tests.front.support import FakeBackend, RawClient, Running, request, running
from topics.config import Settings
from topics.front.connections import Connection, Connections, Timings

pytestmark = pytest.mark.slow

LANES = pytest.mark.parametrize("fast", [True, False], ids=["fast", "cold"])
RECORD = b'{"records":[{"data":1}]}'
APPEND = request("POST", "/v0/topics/a", RECORD)


@LANES
async def test_fifty_idle_connections_and_fifty_that_ask_for_it_are_closed(fast: bool) -> None:
    async with running(fast=fast) as run:
        keep = [await run.connect() for _ in range(50)]
        for client in keep:
            assert (await client.ask("POST", "/v0/topics/a", RECORD)).headers.get("connection") is None
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
@pytest.mark.parametrize("path", ["/v0/topics/a/diff", "/v0/health"])
async def test_http_1_0_is_answered_and_closed(fast: bool, path: str) -> None:
    async with running(fast=fast, backend=FakeBackend(topics={"a": []})) as run:
        client = await run.connect()
        await client.say(f"{'GET' if path.endswith('health') else 'POST'} {path} HTTP/1.0\r\n\r\n".encode())
        answer = await client.hear()
        assert answer.status == 200
        assert answer.headers["connection"] == "close"
        assert await client.is_closed()


@LANES
async def test_a_half_closed_client_still_gets_its_answers(fast: bool) -> None:
    async with running(fast=fast) as run:
        client = await run.connect()
        await client.say(APPEND + APPEND + request("GET", "/v0/health"))
        await client.stream.send_eof()
        assert [(await client.hear()).status for _ in range(3)] == [201, 200, 200]
        assert await client.is_closed()


@LANES
async def test_expect_continue(fast: bool) -> None:
    async with running(fast=fast) as run:
        client = await run.connect()
        head, _, body = request("POST", "/v0/topics/a", RECORD, expect="100-continue").partition(b"\r\n\r\n")
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
        await client.say(request("POST", "/v0/topics/a", RECORD, expect="100-continue").partition(b"{")[0])
        answer = await client.hear()
        assert (answer.status, client.continued) == (401, 0)
        assert answer.headers["connection"] == "close"
        assert await client.is_closed()


@LANES
async def test_a_refusal_is_read_although_the_client_goes_on_sending(fast: bool) -> None:
    settings = Settings(inline_bytes=4096, max_body_bytes=100_000)
    async with running(fast=fast, settings=settings) as run:
        client = await run.connect()
        await client.say(b"POST /v0/topics/a HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9999999\r\n\r\n")
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
            request("POST", "/v0/topics/a", content_type="application/json", transfer_encoding="chunked") + b"5\r\na",
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


async def test_a_body_buys_time_with_its_bytes() -> None:
    settings = Settings(inline_bytes=4096, max_body_bytes=64 * 1024 * 1024)
    async with running(settings=settings) as run:
        client = await run.connect()
        body = b'{"records":[]}' + b" " * (10 * 64 * 1024)
        wire = request("POST", "/v0/topics/a", body)
        await client.say(wire[:-1])
        await run.until(lambda: run.backend.blocks_out == 1)
        await trio.testing.wait_all_tasks_blocked(0.02)
        [connection] = run.server.connections
        left = connection.deadline - trio.current_time()
        assert 35 < left < 42
        await client.say(wire[-1:])
        assert (await client.hear()).status == 201


async def test_a_block_is_given_back_when_the_client_leaves_within_a_body() -> None:
    async with running() as run:
        for ending in ("fin", "reset"):
            client = await run.connect()
            await client.say(request("POST", "/v0/topics/a", RECORD * 1000)[:9000])
            await run.until(lambda: run.backend.blocks_out == 1)
            if ending == "reset":
                client.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
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
        await run.until(lambda: any(c.deadline < 1e18 for c in run.server.connections) and bool(backend.calls))
        await trio.testing.wait_all_tasks_blocked(0.05)
        run.sweep_in(29)
        assert len(run.server.connections) == 1
        run.sweep_in(32)
        await run.until(lambda: len(run.server.connections) == 0)


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
        await run.until(lambda: backend.waiting == 1 and sum(c.idle for c in run.server.connections) == 1)
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
@pytest.mark.parametrize(("method", "path"), [("POST", "/v0/topics/a"), ("PUT", "/v0/topics/a"), ("GET", "/v0/ready")])
async def test_who_connects_during_the_drain_is_told_so(fast: bool, method: str, path: str) -> None:
    backend = FakeBackend(topics={"slow": []}, gate=trio.Event())
    async with running(fast=fast, backend=backend) as run:
        busy = await run.connect()
        await busy.say(request("POST", "/v0/topics/slow", RECORD))
        await run.until(lambda: backend.waiting == 1)
        run.stop.set()
        await run.until(lambda: run.server.guard.draining)
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


async def test_who_connects_during_the_drain_and_says_nothing_is_not_waited_for(autojump_clock: trio.abc.Clock) -> None:
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
        await run.until(lambda: run.server.guard.draining)
        await client.say(b"host: x\r\n\r\n")
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


class H2Client:
    """HTTP/2 with prior knowledge."""

    def __init__(self, client: RawClient) -> None:
        self.stream = client.stream
        self.machine = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.machine.initiate_connection()

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[dict[str, str], bytes]:
        stream_id = self.machine.get_next_available_stream_id()
        fields = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "x"), *headers.items()]
        self.machine.send_headers(stream_id, [(name.replace("_", "-"), value) for name, value in fields], end_stream=not body)
        for start in range(0, len(body), 16_000):
            piece = body[start : start + 16_000]
            while self.machine.local_flow_control_window(stream_id) < len(piece):
                await self._exchange()
            self.machine.send_data(stream_id, piece, end_stream=start + 16_000 >= len(body))
        got: dict[str, str] = {}
        data = b""
        while True:
            for event in await self._exchange():
                if isinstance(event, h2.events.ResponseReceived):
                    got = dict(event.headers or ())  # type: ignore[arg-type]
                elif isinstance(event, h2.events.DataReceived):
                    data += event.data or b""
                    self.machine.acknowledge_received_data(event.flow_controlled_length or 0, stream_id)
                elif isinstance(event, h2.events.StreamEnded):
                    return got, data

    async def _exchange(self) -> list[Any]:
        await self.stream.send_all(self.machine.data_to_send())
        with trio.fail_after(10):
            data = await self.stream.receive_some(65536)
        if not data:
            raise trio.BrokenResourceError("the server has closed")
        return self.machine.receive_data(data)


async def test_http_2_refuses_a_long_body_and_the_server_goes_on() -> None:
    async with running(keys="k") as run:
        client = await h2_client(run)
        try:
            headers, _ = await client.ask("POST", "/v0/topics/a", b" " * 300_000, authorization="Bearer nobody")
            assert headers[":status"] == "401"
        except (h2.exceptions.ProtocolError, trio.BrokenResourceError):
            pass  # or the connection ends with the rest of the body on its way
        other = await h2_client(run)
        assert (await other.ask("GET", "/v0/health"))[0][":status"] == "200"
        assert run.backend.calls == []


@pytest.mark.parametrize("end", ["sweep", "hang-up", "drain", "patience"])
async def test_an_http_2_client_that_opens_no_window_holds_nothing_for_ever(end: str) -> None:
    backend = FakeBackend(topics={"a": []}, answer_bytes=500_000)
    timings = Timings(tick_s=0.2, send_s=0.3 if end == "patience" else 30.0, body_bytes_per_s=10**7)
    async with running(backend=backend, settings=Settings(drain_ms=200), timings=timings) as run:
        client = await h2_client(run)
        fields = [(":method", "POST"), (":path", "/v0/topics/a/diff"), (":scheme", "http"), (":authority", "x")]
        client.machine.send_headers(1, fields, end_stream=True)
        await client.stream.send_all(client.machine.data_to_send())
        await run.until(lambda: len(backend.calls) == 1)
        await trio.testing.wait_all_tasks_blocked(0.02)
        [connection] = run.server.connections
        assert not connection.idle
        if end == "patience":
            await run.until(lambda: connection.idle)
        elif end == "sweep":
            connection.deadline = 0
        elif end == "hang-up":
            await client.stream.aclose()
        if end in ("sweep", "hang-up"):
            await run.until(lambda: len(run.server.connections) == 0)
        run.stop.set()
        with trio.fail_after(5):
            await run.stopped.wait()


async def test_an_http_2_connection_that_never_asks_is_closed() -> None:
    async with running() as run:
        client = await h2_client(run)
        await client.stream.send_all(client.machine.data_to_send())
        await run.until(lambda: any(c.deadline < 1e18 and c.pos for c in run.server.connections))
        run.sweep_in(76)
        await run.until(lambda: len(run.server.connections) == 0)


@LANES
async def test_a_long_poll_that_outlives_the_drain_is_told_so(fast: bool) -> None:
    backend = FakeBackend(topics={"slow": []}, gate=trio.Event())
    async with running(fast=fast, backend=backend, settings=Settings(drain_ms=300)) as run:
        client = await run.connect()
        await client.say(request("POST", "/v0/topics/slow/diff", b'{"wait_ms":30000}'))
        await run.until(lambda: backend.waiting == 1)
        run.stop.set()
        answer = await client.hear()
        assert (answer.status, answer.code, answer.headers["connection"]) == (503, "shutting_down", "close")
        assert backend.cancelled == 1


async def test_a_long_poll_whose_body_comes_when_the_others_were_told_is_told_so_too() -> None:
    backend = FakeBackend(topics={"slow": []}, gate=trio.Event())
    async with running(backend=backend, settings=Settings(drain_ms=20_000)) as run:
        client = await run.connect()
        poll = request("POST", "/v0/topics/slow/diff", b'{"wait_ms":30000}')
        await client.say(poll[:-2])
        await run.until(lambda: any(c.body_deadline < 1e18 for c in run.server.connections))
        run.stop.set()
        await run.until(lambda: run.server.guard.draining)
        run.server.guard.stop_waiting()
        await client.say(poll[-2:])
        with trio.fail_after(5):
            assert (await client.hear()).code == "shutting_down"


async def h2_client(run: Running) -> H2Client:
    return H2Client(await run.connect())


async def test_http_2_gets_the_same_answers() -> None:
    async with running(keys="k,t:write:t.") as run:
        client = await h2_client(run)
        auth = {"authorization": "Bearer k", "content_type": "application/json"}
        for status in ("201", "200"):
            headers, data = await client.ask("POST", "/v0/topics/a", RECORD, **auth)
            assert headers[":status"] == status
            assert b"head_seq" in data
        assert (await client.ask("POST", "/v0/topics/a", b'{"records":[]}' + b" " * 200_000, **auth))[0][":status"] == "200"
        assert (await client.ask("POST", "/v0/topics/a/diff", authorization="Bearer k"))[0][":status"] == "200"
        for method, path, key, status in (
            ("POST", "/v0/topics/a", "nobody", "401"),
            ("GET", "/v0/nothing", "k", "404"),
            ("TRACE", "/v0/topics/a", "k", "405"),
            ("POST", "/v0/topics/a", "t", "403"),
            ("POST", "/v0/topics/a", "k", "415"),
            ("GET", "/v0/health", "nobody", "200"),
        ):
            body = RECORD if method == "POST" else b""
            assert (await client.ask(method, path, body, authorization=f"Bearer {key}"))[0][":status"] == status
        assert run.backend.blocks_out == 0


async def test_an_idle_http_2_connection_is_closed_by_the_sweep_and_by_the_drain() -> None:
    async with running() as run:
        for end in ("sweep", "drain"):
            client = await h2_client(run)
            assert (await client.ask("GET", "/v0/health"))[0][":status"] == "200"
            await run.until(lambda: any(c.idle for c in run.server.connections))
            run.sweep_in(76) if end == "sweep" else run.stop.set()
            with trio.fail_after(5):
                while await client.stream.receive_some(4096):
                    pass
        with trio.fail_after(5):
            await run.stopped.wait()


@pytest.mark.parametrize(("path", "key", "status", "code"), [
    ("/v0/ws", "nobody", 401, "unauthorized"),
    ("/v0/health", "k", 404, "not_found"),
    ("/v0/topics", "k", 404, "not_found"),
])  # fmt: skip
async def test_a_websocket_is_refused_with_the_envelope(path: str, key: str, status: int, code: str) -> None:
    async with running(keys="k") as run:
        client = await run.connect()
        upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec_websocket_version": "13"}
        upgrade |= {"sec_websocket_key": "AAAAAAAAAAAAAAAAAAAAAA==", "authorization": f"Bearer {key}"}
        await client.say(request("GET", path, **upgrade))
        head = await client.stream.receive_some(4096)
        while not head.endswith(b"}}") and not head.endswith(b"0\r\n\r\n"):
            head += await client.stream.receive_some(4096)
        assert head.startswith(b"HTTP/1.1 %d" % status)
        assert code.encode() in head


async def test_an_upgrade_that_hypercorn_declines_does_not_open_a_side_door() -> None:
    async with running() as run:
        client = await run.connect()
        upgrade = {"connection": "upgrade", "upgrade": "h2c", "http2_settings": "AAMAAABkAAQAAP__", "content_length": "0"}
        await client.say(request("GET", "/v0/health", **upgrade))
        assert (await client.hear()).status == 200
        await client.say(b"POST /v0/topics/a HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n")
        assert (await client.hear()).status == 400
        assert await client.is_closed()


@LANES
async def test_nothing_but_an_os_error_escapes_a_connection(fast: bool, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    async with running(fast=fast) as run:
        broken = await run.connect()

        def explode(*_: object) -> None:
            raise ZeroDivisionError("in the machinery")

        with monkeypatch.context() as patch:
            patch.setattr("topics.front.fast_lane.parse_head", explode)
            await broken.say(APPEND)
            assert (await broken.hear()).code == "internal"
            assert await broken.is_closed()
        healthy = await run.connect()
        assert (await healthy.ask("POST", "/v0/topics/a", RECORD)).status == 201
    assert "in the machinery" in caplog.text
