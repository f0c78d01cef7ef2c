"""The routes of watch sessions: what of a request makes the session, and what opens its stream."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.fake_backend import FakeBackend
from tests.support.front import Running, running
from tests.support.live_desk import calm, refuse_next
from tests.support.raw_client import request
from topics.engine.access import ANYONE
from topics.errors import Throttled
from topics.formats.api.fields import HeadFields
from topics.formats.wire import calls
from topics.formats.wire.contract import Call, P, R
from topics.front.live.event_stream import HEADERS, RETRY
from topics.front.routes import watch


class Heads(FakeBackend):
    """Shards that say where their topics stand, and open feeds."""

    def _answer(
        self, call: Call[P, R], params: Any, raw: bytes, shard: int
    ) -> tuple[tuple[Any, ...], bytes]:
        if call is calls.TOPIC_HEADS:
            known = [name for name in params.topics if name in self.topics]
            return calls.TopicHeadsResult({n: (len(self.topics[n]), 1, 1) for n in known}), b""
        if call is calls.FEED_OPEN:
            return calls.FeedOpenResult(len(self.topics[params.topic]), 1, 1), b""
        return super()._answer(call, params, raw, shard)


async def created(run: Running, query: str = "", padding: int = 0) -> tuple[int, dict[str, Any]]:
    client = await run.connect()
    body = b'{"topics":{"a":{"tail":true},"gone":{"from_seq":0}}}' + b" " * padding
    answer = await client.ask("POST", f"/v0/watch{query}", body)
    return answer.status, answer.json()


@pytest.mark.parametrize("padding", [0, 50_000], ids=["inline", "in shared memory"])
async def test_a_session_is_created_from_a_body_of_any_length(padding: int) -> None:
    async with running(backend=Heads(topics={"a": [1, 2], "gone": []})) as run:
        status, session = await created(run, padding=padding)
        assert (status, session["stream_url"]) == (200, f"/v0/watch/{session['wid']}")
        assert session["topics"]["a"]["from_seq"] == 2
        assert session["performance"]["server_total_ms"] >= 0
        assert run.backend.blocks_out == 0
        assert run.backend.replies_out == 0


@pytest.mark.parametrize(("query", "status"), [("", 404), ("?lenient=true", 200)])
async def test_only_a_lenient_session_may_name_unknown_topics(query: str, status: int) -> None:
    async with running(backend=Heads(topics={"a": []})) as run:
        found, members = await created(run, query)
        assert found == status
        assert status == 404 or members["topics"].keys() == {"a"}


async def test_a_stream_begins_with_its_headers_and_the_time_of_a_retry() -> None:
    async with running(backend=Heads(topics={"a": [1], "gone": []})) as run:
        _, session = await created(run)
        client = await run.connect()
        await client.say(request("GET", session["stream_url"], accept="text/html"))
        assert (await client.hear()).status == 406
        await client.say(request("GET", session["stream_url"], accept="text/event-stream"))
        while b"caught-up" not in client._buffer:
            await client._more()
        head, _, events = client._buffer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"content-type: text/event-stream; charset=utf-8" in head
        assert events.startswith(RETRY)
        run.stop.set()


async def test_a_stream_continues_after_the_id_that_the_client_saw_last() -> None:
    asked: list[tuple[Any, ...]] = []

    class Watches:
        def open(self, wid: str, principal: object, accept: bytes) -> object:
            asked.append((wid, principal, accept))
            return session

        async def stream(self, *arguments: object) -> None:
            asked.append(arguments)

    fields = HeadFields([(b"accept", b"a"), (b"accept", b"b"), (b"last-event-id", b" 17 ")])
    head = SimpleNamespace(head=fields, wid="wid_1", principal=ANYONE)
    session = SimpleNamespace(cursors={"t": (0, 1)})
    pressure = calm()
    context = cast("Any", SimpleNamespace(watches=Watches(), pressure=pressure))
    answer = await watch.stream(context, cast("Any", head), b"", 0)
    assert asked == [("wid_1", ANYONE, b"a,b")], "refused before the head of the answer is sent"
    assert (answer.status, answer.headers) == (200, HEADERS)
    assert answer.stream is not None
    await answer.stream("connection")
    assert asked[1:] == [(session, "connection", b"17")]
    refuse_next(pressure)
    with pytest.raises(Throttled):
        await watch.stream(context, cast("Any", head), b"", 0)
