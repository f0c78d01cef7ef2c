"""The metrics page: required rights, availability and formats."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from tests.support.fake_shards import FakeShards
from tests.support.front import bearer, running
from tests.support.raw_client import RawResponse, request
from topics.actors.rpc.session import Reply
from topics.formats.wire import calls
from topics.formats.wire.contract import Call, P, R
from topics.front.admin import metrics
from topics.front.request import Body

PATHS = pytest.mark.parametrize("path", ["/v0/metrics", "/metrics"])
TEXT = "text/plain; version=0.0.4; charset=utf-8"
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


def text_of(answer: RawResponse) -> str:
    return answer.body.decode()


@PATHS
async def test_the_text_format_can_be_parsed_by_prometheus(path: str) -> None:
    async with running(shards=FakeShards(topics={"a": [1, 2]})) as run:
        client = await run.connect()
        answer = await client.request("GET", path, accept=PROMETHEUS)
        assert (answer.status, answer.headers["content-type"]) == (200, TEXT)
        found = {family.name: family for family in text_string_to_metric_families(text_of(answer))}
        (head,) = found["topics_topic_head_seq"].samples
        assert (head.labels, head.value) == ({"topic": "a"}, 2)
        assert found["topics_ready"].samples[0].value == 1


async def test_the_page_is_served_while_shards_recover() -> None:
    async with running(shards=FakeShards(ready=False)) as run:
        client = await run.connect()
        answer = await client.request("GET", "/v0/metrics")
        assert answer.status == 200
        lines = text_of(answer).splitlines()
        assert "topics_ready 0" in lines
        assert "topics_recovery_progress 0.25" in lines
        assert "topics_topic_metrics_truncated 1" in lines


class Slow(FakeShards):
    """A shard that replies to metrics requests when its gate opens."""

    async def answer(
        self, shard: int, call: Call[P, R], params: Any, body: Body = b""
    ) -> Reply[Any]:
        if call is calls.METRICS_READ:
            assert self.gate is not None
            await self.gate.wait()
        return await super().answer(shard, call, params, body)


async def test_a_key_that_is_removed_during_the_request_gets_no_names() -> None:
    gate = trio.Event()
    async with running(keys="k,removed", shards=Slow(topics={"a": []}, gate=gate)) as run:
        clients = [await run.connect() for _ in range(2)]
        for client, key in zip(clients, ("k", "removed"), strict=True):
            await client.send(request("GET", "/v0/metrics", b"", authorization=bearer(key)))
        reads = run.server._context.metric_reads
        await run.until(lambda: reads.borrowed_tokens == 2)
        await run.replace_keys("k")
        gate.set()
        assert [(await client.receive()).status for client in clients] == [200, 401]


async def test_a_long_page_is_rendered_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "STEP_NS", 0)
    steps = 0

    async def others() -> None:
        nonlocal steps
        while True:
            await trio.lowlevel.checkpoint()
            steps += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        assert await metrics._joined(iter([b"a"] * 50)) == b"a" * 50
        nursery.cancel_scope.cancel()
    assert steps >= 40
