"""Changes of keys while a front runs: requests and streams that continue or are closed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio

from tests.front.conftest import Logged
from tests.support.fake_shards import FakeReply, FakeShards
from tests.support.front import HANDSHAKE, RECORD, Running, bearer, running
from tests.support.raw_client import RawClient, RawResponse, request
from tests.support.ws import TEXT, frame_bytes
from topics.actors.rpc.session import PendingCall, Reply
from topics.engine.access import Access
from topics.errors import Unauthorized
from topics.formats.wire import calls
from topics.formats.wire.contract import Call, P, R
from topics.front.http.admin_plane import AdminApplication
from topics.front.http.poller import Poller
from topics.front.keys import Keys
from topics.front.request import Body

KEYS = "kept,changed:rw,removed"
AFTER = "kept,changed:r,new"  # keys keep their slots, so the order of keys stays the same
HANG_UP = b'event: error\ndata: {"code":401,"error":"this key was removed"}\n\n'
POLL = b'{"wait_ms":30000}'


class Shards(FakeShards):
    """Shards whose topics can be watched, but have no events."""

    async def answer(
        self, shard: int, call: Call[P, R], params: Any, body: Body = b""
    ) -> Reply[Any]:
        if call is calls.TOPIC_HEADS:
            if self.gate is not None:
                await self.gate.wait()
            return FakeReply(
                calls.TopicHeadsResult(dict.fromkeys(params.topics, (0, 1, 1))), b"", self
            )
        return await super().answer(shard, call, params, body)

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
        if call is not calls.FEED_OPEN and call is not calls.FEED_READ:
            return super().call(shard, call, params, body, then)
        self.calls.append((call.method, params, b""))
        return PendingCall(0, call, then, None)


def shards(gate: trio.Event | None = None) -> Shards:
    return Shards(topics={"a": [], "slow": []}, gate=gate)


async def append_as(client: RawClient, key: str, path: str = "/v0/topics/a") -> RawResponse:
    return await client.request("POST", path, RECORD, authorization=bearer(key))


async def read_until(client: RawClient, end: bytes) -> bytes:
    """Read until ``end`` has arrived, and return the buffer."""
    while end not in client._buffer:
        await client._more()
    return client._buffer


# Requests


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "after", "status"),
    [
        ("removed", AFTER, 401),
        ("changed", "kept,changed:w,removed", 403),
        ("changed", "kept,changed:r:slow.", 403),
        ("changed", "kept,changed:r:sl", 200),
        ("kept", AFTER, 200),
    ],
)
async def test_a_waiting_call_ends_unless_its_key_still_permits_it(
    key: str, after: str, status: int
) -> None:
    gate = trio.Event()
    async with running(keys=KEYS, shards=shards(gate)) as run:
        client = await run.connect()
        path = "/v0/topics/slow/diff"
        await client.send(request("POST", path, POLL, authorization=bearer(key)))
        await run.until(lambda: run.shards.waiting == 1)
        await run.replace_keys(after)
        if status == 200:
            assert run.shards.waiting == 1
            gate.set()
        answer = await client.receive()
        assert (answer.status, run.shards.cancelled) == (status, int(status != 200))
        assert (await client.request("GET", "/v0/health")).status == 200


@pytest.mark.slow
@pytest.mark.parametrize("framing", ["declared", "chunked"])
@pytest.mark.parametrize(("key", "status"), [("removed", 401), ("changed", 403), ("kept", 200)])
async def test_the_key_is_checked_again_after_the_body_has_arrived(
    framing: str, key: str, status: int
) -> None:
    async with running(keys=KEYS, shards=shards()) as run:
        client = await run.connect()
        length: dict[str, str] = {"authorization": bearer(key)}
        body_bytes = RECORD
        if framing == "chunked":
            length |= {"content_length": "", "transfer_encoding": "chunked"}
            body_bytes = b"%x\r\n%b\r\n0\r\n\r\n" % (len(RECORD), RECORD)
        head = request("POST", "/v0/topics/a", RECORD, **length).partition(b"\r\n\r\n")[0]
        await client.send(head + b"\r\n\r\n" + body_bytes[:-3])
        await run.until(lambda: any(c.body_deadline < 1e18 for c in run.server.connections))
        await run.replace_keys(AFTER)
        await client.send(body_bytes[-3:])
        assert (await client.receive()).status == status
        assert bool(run.shards.topics["a"]) == (status == 200)


@pytest.mark.slow
async def test_names_in_a_body_must_match_the_prefixes_at_its_arrival() -> None:
    before, after = "kept,changed::a|b,removed", "kept,changed::a,removed"
    async with running(keys=before, shards=shards()) as run:
        client = await run.connect()
        body_bytes = request("POST", "/v0/topics/a", RECORD, authorization=bearer("changed"))
        await client.send(body_bytes[:-3])
        await run.until(lambda: any(c.body_deadline < 1e18 for c in run.server.connections))
        await run.replace_keys(after)
        await client.send(body_bytes[-3:])
        assert (await client.receive()).status == 200
        (_, params, _) = run.shards.calls[-1]
        assert params.prefixes == ["a"], "the shard must get the new prefixes"


# Streams


async def watch(run: Running, key: str) -> RawClient:
    """Return a client that has received the start of the stream of a watch session."""
    client = await run.connect()
    made = await client.request(
        "POST", "/v0/watch", b'{"topics":{"a":{}}}', authorization=bearer(key)
    )
    path = made.json()["stream_url"]
    await client.send(request("GET", path, authorization=bearer(key)))
    await read_until(client, b"retry: 2000\n\n")
    return client


async def work(run: Running, key: str) -> RawClient:
    client = await run.connect()
    path = "/v0/topics/a/work?node=n"
    await client.send(request("GET", path, authorization=bearer(key)))
    await read_until(client, b": hb\n\n")
    return client


@pytest.mark.slow
async def test_a_removed_key_closes_its_socket_and_executes_no_later_command() -> None:
    async with running(keys=KEYS, shards=shards()) as run:
        client = await run.connect()
        await client.send(
            request("GET", "/v0/ws", b"", authorization=bearer("removed"), **HANDSHAKE)
        )
        await run.until(lambda: len(run.server.live.streams) == 1)
        (stream,) = run.server.live.streams
        run.keys.replace(AFTER)
        publish = b'{"op":"publish","topic":"a","records":[{"data":1}]}'
        while stream in run.server.live.streams:
            await client.send(frame_bytes(TEXT, b'{"op":"ping"}', mask=bytes(4)))
            await trio.lowlevel.checkpoint()
        await client.send(frame_bytes(TEXT, publish, mask=bytes(4)))
        received = await read_until(client, b"\x03\xf0this key was removed")
        error = b'{"op":"error","request_id":null,"code":"unauthorized","message":"this key was'
        assert error in received
        client._buffer = b""
        assert await client.is_closed()
        assert not run.shards.calls


@pytest.mark.slow
async def test_watch_sessions_end_if_the_rights_of_their_key_change() -> None:
    async with running(keys=KEYS, shards=shards()) as run:
        client = await run.connect()
        paths = {}
        for key in ("kept", "changed", "removed"):
            made = await client.request(
                "POST", "/v0/watch", b'{"topics":{"a":{}}}', authorization=bearer(key)
            )
            paths[key] = made.json()["stream_url"]
        await run.replace_keys(AFTER)
        answer = await client.request("GET", paths["changed"], authorization=bearer("changed"))
        assert answer.status == 404
        answer = await client.request("GET", paths["removed"], authorization=bearer("removed"))
        assert answer.status == 401
        await run.replace_keys(KEYS)
        answer = await client.request("GET", paths["removed"], authorization=bearer("removed"))
        assert answer.status == 404
        assert run.server.slots.watch_sessions.used == 1
        await client.send(request("GET", paths["kept"], authorization=bearer("kept")))
        await read_until(client, b"retry: 2000\n\n")


@pytest.mark.slow
async def test_no_session_is_created_for_a_key_that_was_removed_in_the_meantime() -> None:
    gate = trio.Event()
    async with running(keys=KEYS, shards=shards(gate)) as run:
        client = await run.connect()
        topics = b'{"topics":{"a":{}}}'
        await client.send(request("POST", "/v0/watch", topics, authorization=bearer("removed")))
        await run.until(lambda: run.server.slots.requests.used_by(_third(run)) == 1)
        await run.replace_keys(AFTER)
        gate.set()
        assert (await client.receive()).status == 401
        assert run.server.slots.watch_sessions.used == 0


def _third(run: Running) -> Any:
    return run.server.keys.access.principals[2]


async def test_no_stream_starts_after_its_key_was_removed() -> None:
    """Its jobs were requested before the key was removed."""
    gate = trio.Event()

    class Slow(Shards):
        async def answer(
            self, shard: int, call: Call[P, R], params: Any, body: Body = b""
        ) -> Reply[Any]:
            await gate.wait()
            return await super().answer(shard, call, params, body)

    async with running(keys=KEYS, shards=Slow(topics={"a": []})) as run:
        client = await run.connect()
        path = "/v0/topics/a/work?node=n"
        await client.send(request("GET", path, authorization=bearer("removed")))
        await run.until(lambda: run.server.slots.streams.used_by(_third(run)) == 1)
        await run.replace_keys(AFTER)
        gate.set()
        assert (await client.receive()).status == 401
        await run.until(lambda: run.server.slots.streams.used == 0)
        assert run.shards.calls[-1][0] == "work.close"


# Keys


def test_a_principal_stays_valid_while_its_rights_are_unchanged() -> None:
    before = Access.parse(KEYS)
    keys = Keys(before)
    kept, changed, removed = before.principals
    for principal in before.principals:
        assert keys.refusal(principal) is None
    keys.access = Access.parse("gone2,changed:r,kept")
    assert keys.refusal(kept) is None
    keys.check(kept)
    for principal, message in ((changed, "have changed"), (removed, "was removed")):
        with pytest.raises(Unauthorized, match=message):
            keys.check(principal)


CHUNKED: dict[str, Any] = {"content_length": "", "transfer_encoding": "chunked"}
IN_TASKS = {
    "a session": request(
        "POST", "/v0/watch", b'{"topics":{"a":{}}}', authorization=bearer("removed")
    ),
    "metrics": request("GET", "/v0/metrics", authorization=bearer("removed")),
    "a stream": request("GET", "/v0/watch?topic=a", authorization=bearer("removed")),
    "a socket": request("GET", "/v0/ws", b"", authorization=bearer("removed"), **HANDSHAKE),
    "jobs": request("GET", "/v0/topics/a/work?node=n", authorization=bearer("removed")),
    "leases": request("GET", "/v0/topics/a/leases", authorization=bearer("removed")),
    "a redrive": request("POST", "/v0/topics/a/redrive", b"{}", authorization=bearer("removed")),
    "a backup": request("GET", "/v0/backup", authorization=bearer("removed")),
    "a long body": request(
        "POST", "/v0/topics/a", b'{"records":[]}' + b" " * 70_000, authorization=bearer("removed")
    ),
    "a chunked body": request(
        "POST",
        "/v0/topics/a",
        b"",
        authorization=bearer("removed"),
        content_type="application/json",
        **CHUNKED,
    )
    + b"18\r\n"
    + RECORD
    + b"\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("kind", IN_TASKS)
async def test_a_key_that_is_removed_before_the_task_of_its_request_runs_is_refused(
    kind: str, monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    async with running(keys=KEYS, shards=shards()) as run:
        start, started = Poller.start, list[str]()

        def start_late(poller: Poller, task: Any, *args: Any) -> bool:
            started.append(args[0].__name__)
            run.server._replace_keys(Access.parse(AFTER))
            return start(poller, task, *args)

        monkeypatch.setattr(Poller, "start", start_late)
        client = await run.connect()
        await client.send(IN_TASKS[kind])
        answer = await client.receive()
        assert (answer.status, answer.code) == (401, "unauthorized")
        assert started
        assert not run.shards.topics["a"]
        assert (await client.request("GET", "/v0/health")).status == 200
    assert logged == []


async def test_a_key_that_is_removed_while_the_admin_plane_loads_is_refused() -> None:
    """`running` checks that the body is freed."""
    opened = threading.Event()
    async with running(keys=KEYS, shards=shards()) as run:
        load = run.server._admin._load

        def load_late() -> AdminApplication:
            assert opened.wait(60)
            return load()

        run.server._admin._load = load_late
        try:
            client = await run.connect()
            long = b"{}" + b" " * 9000
            await client.send(
                request("PUT", "/v0/routers/b", long, authorization=bearer("removed"))
            )
            await run.until(run.server._admin._wanted.is_set)
            assert run.shards.blocks_out == 1
            await run.replace_keys(AFTER)
        finally:
            opened.set()
        answer = await client.receive()
        assert (answer.status, answer.code) == (401, "unauthorized")
        assert "b" not in run.shards.routers
