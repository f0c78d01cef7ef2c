"""The clients of the simulation against a server that accepts everything."""

from __future__ import annotations

import contextlib
import random
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec
import pytest
import trio
from trio.testing import MemoryReceiveStream, MemorySendStream, MockClock, memory_stream_pair

from tests.simulation.clients import LIMIT_S, Client
from tests.simulation.history import Call, History, StreamEvent
from tests.simulation.work import KINDS, Work
from topics.formats.names import shard_of

Stream: TypeAlias = trio.StapledStream[MemorySendStream, MemoryReceiveStream]
Responder: TypeAlias = Callable[[str, bytes], bytes | None]
EVENT = b'id: 7\nevent: record\ndata: {"topic":"a","to_seq":7,"head_seq":9}\n\n'


def response(status: int, value: Any, *fields: bytes) -> bytes:
    body = msgspec.json.encode(value)
    head = [b"HTTP/1.1 %d X" % status, b"content-type: application/json", *fields]
    return b"\r\n".join([*head, b"content-length: %d" % len(body), b"", body])


def stream_of(*chunks: bytes, type: bytes = b"text/event-stream") -> bytes:
    """Return a stream of these chunks, where an empty chunk closes the stream."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n" % type
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)


class Server:
    """Responds on every connection by calling ``answer``. ``requests`` records first lines and
    bodies.
    """

    def __init__(self, nursery: trio.Nursery, answer: Responder) -> None:
        self.history = History(trio.current_time, trio.current_time)
        self.requests: list[tuple[str, bytes]] = []
        self._nursery, self._answer = nursery, answer

    async def connect(self) -> Stream:
        ours, theirs = memory_stream_pair()
        self._nursery.start_soon(self._serve, theirs)
        return ours

    async def _serve(self, stream: Stream) -> None:
        buffer = b""
        async with stream:
            async for chunk in stream:
                buffer += chunk
                head, end, rest = buffer.partition(b"\r\n\r\n")
                length_field = re.search(rb"Content-Length: (\d+)", head)
                length = int(length_field[1]) if length_field else 0
                if end and len(rest) >= length:
                    buffer = rest[length:]
                    self.requests.append((head.decode().split(" HTTP/1.1")[0], rest[:length]))
                    if (answer := self._answer(*self.requests[-1])) is None:
                        return
                    with contextlib.suppress(trio.BrokenResourceError):
                        await stream.send_all(answer)


def accept(line: str, body: bytes) -> bytes:
    """Return a response that lets clients continue."""
    path = line.split(" ")[1].split("?")[0]
    topic, verb = ([*path.split("/"), "", ""])[3:5]
    if verb == "work" or (line.startswith("GET") and path.startswith("/v0/watch")):
        job = {"$seq": 3, "lease_id": "l3"}
        return stream_of(EVENT, b"event: job\ndata: %b\n\n" % msgspec.json.encode(job))
    answers: dict[str, Any] = {
        "watch": {"stream_url": "/v0/watch/w", "topics": {"a": {}}},
        "claim": {"claimed": [{"$seq": n, "lease_id": f"l{n}"} for n in (1, 2)]},
        "diff": {"next_from_seq": 9, "caught_up": True, "epoch": 5},
        "": {"topics": [{"topic": "a"}], "routers": [], "type": "queue"},
    }
    name = verb or (path.split("/")[2] if path == "/v0/watch" else "")
    return response(200, {"topic": topic, "head_seq": 9, **answers.get(name, {})})


def simulated(answer: Responder, main: Callable[[Server], Awaitable[None]]) -> Server:
    """Return the server after ``main``, which runs with the virtual clock."""

    async def run() -> Server:
        async with trio.open_nursery() as nursery:
            await main(server := Server(nursery, answer))
            nursery.cancel_scope.cancel()
        return server

    trio._core._run._r.seed(0)  # the order of runnable tasks
    return trio.run(run, clock=MockClock(autojump_threshold=0))


def run_day(seed: int, answer: Responder = accept, **options: Any) -> Server:
    async def main(server: Server) -> None:
        work = Work(seed, server.connect, server.history, 3, **options)
        await work.run()
        await work.final()

    return simulated(answer, main)


def make_work(seed: int, shards: int = 3) -> Work:
    async def connect() -> Stream:
        raise OSError

    return Work(seed, connect, History(float, float), shards)


def calls_of(server: Server, client: str = "") -> list[Call]:
    entries = server.history.entries
    return [call for call in entries if isinstance(call, Call) and call.client.startswith(client)]


def make_client(server: Server) -> Client:
    return Client("client", server.connect, server.history, random.Random(1))


@pytest.mark.slow
def test_a_seed_reproduces_its_requests_byte_for_byte_and_another_seed_differs() -> None:
    first, repeated, other = (run_day(seed, calls=400) for seed in (1, 1, 2))
    assert msgspec.json.encode(first.history.entries) == msgspec.json.encode(
        repeated.history.entries
    )
    assert first.requests == repeated.requests
    assert first.requests != other.requests
    for day in (first, other):
        calls = calls_of(day)
        assert 200 < len(calls) < 600
        assert max(call.at for call in calls if call.client != "final") > 1800


def test_every_kind_of_client_occurs_in_some_run() -> None:
    seen = {type(actor) for seed in range(20) for actor in make_work(seed).actors}
    assert seen == {kind for kind, *_ in KINDS}


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_every_shard_has_topics_and_every_durability_class_occurs(shards: int) -> None:
    for seed in range(5):
        work = make_work(seed, shards)
        assert {shard_of(topic.name, shards) for topic in work.topics} == {*range(shards)}
        assert {shard_of(topic.name, shards) for topic in work.dests} == {*range(shards)}
        classes = {topic.config.get("durability", "fsync") for topic in work.topics}
        assert classes == {"fsync", "disk", "memory", "ephemeral"}


@pytest.mark.slow
def test_only_an_append_with_a_key_is_retried_until_it_succeeds() -> None:
    answers = iter([None, response(503, {"error": {}}), b"", response(429, {})] * 20)

    def answer(line: str, body: bytes) -> bytes | None:
        return next(answers, accept(line, body)) if b'"records"' in body else accept(line, body)

    seed = next(seed for seed in range(9) if make_work(seed).has["keys"])
    appends = defaultdict[str, list[Call]](list)
    for call in calls_of(run_day(seed, answer, calls=400), "appender"):
        first = call.body["records"][0]["data"]
        appends[f"{first['by']} {first['n']}"].append(call)
    assert any(len(same) > 2 for same in appends.values())
    for same in appends.values():
        is_keyed = bool(same[0].headers or "idempotency_key" in same[0].body)
        assert any(call.status == 200 for call in same) or not is_keyed, same
        assert len(same) == 1 or is_keyed, same
        assert all((call.body, call.headers) == (same[0].body, same[0].headers) for call in same)


def test_a_client_records_plain_and_chunked_responses_and_lost_connections() -> None:
    broken = response(200, {"a": 1})[:-3]
    chunks = b'{"pieces"', b":[1,2]}", b""
    answers = iter(
        [response(200, {"a": 1}), stream_of(*chunks, type=b"application/json"), broken, None]
    )

    async def main(server: Server) -> None:
        client = make_client(server)
        client.slow = 0.5
        for n in range(4):
            await client.call("POST", f"/{n}", {"n": n}, X_A="b")

    server = simulated(lambda line, body: next(answers), main)
    calls = calls_of(server)
    assert [(call.status, call.answer) for call in calls] == [
        *((200, {"a": 1}), (200, {"pieces": [1, 2]}), (None, None), (None, None))
    ]
    assert server.requests == [(f"POST /{n}", b'{"n":%d}' % n) for n in range(4)]
    assert all(call.headers == {"X-A": "b"} for call in calls)
    assert all(call.began < call.ended for call in calls)


def test_a_client_abandons_an_unanswered_call_and_records_when_it_is_stopped() -> None:
    async def main(server: Server) -> None:
        client = make_client(server)
        await client.call("GET", "/one")
        with trio.move_on_after(1):
            await client.call("GET", "/two")

    first, second = calls_of(simulated(lambda line, body: b"", main))
    assert first.status is second.status is None
    assert first.ended_at == LIMIT_S
    assert second.ended_at == LIMIT_S + 1


FRAMED = stream_of(b": hb\n\nretry: 2000\n\n", EVENT[:9], EVENT[9:])
BARE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + EVENT


@pytest.mark.parametrize(
    ("answer", "how"), [(FRAMED, "left"), (FRAMED + b"0\r\n\r\n", "lost"), (BARE, "left")]
)
def test_a_stream_records_its_events_and_its_end_but_no_comments(answer: bytes, how: str) -> None:
    async def main(server: Server) -> None:
        with trio.move_on_after(5):
            async with make_client(server).stream("GET", "/v0/watch/w") as events:
                assert [event.event async for event in events] == ["record"]
                assert how == "lost"

    server = simulated(lambda line, body: answer, main)
    call, record, end = server.history.entries
    assert isinstance(call, Call)
    assert call.status == 200
    assert isinstance(record, StreamEvent)
    assert (record.id, record.data) == ("7", {"topic": "a", "to_seq": 7, "head_seq": 9})
    assert isinstance(end, StreamEvent)
    assert (end.call, end.event, end.data) == (call.began, "end", how)


def test_a_refused_stream_is_recorded_as_a_call_with_its_response() -> None:
    async def main(server: Server) -> None:
        async with make_client(server).stream("GET", "/v0/watch/w") as events:
            assert not [event async for event in events]

    server = simulated(lambda line, body: response(404, {"error": {"code": "not_found"}}), main)
    (call,) = server.history.entries
    assert isinstance(call, Call)
    assert (call.status, call.answer) == (404, {"error": {"code": "not_found"}})
