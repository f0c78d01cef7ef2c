"""The routes of queues: what reaches the shard, pages of leases, and every refusal."""

from __future__ import annotations

import pytest

from tests.support.fake_shards import FakeShards
from tests.support.front import LANES, bearer, running
from topics.formats.wire import calls

KEYS = "boss,reader:read,writer:write,worker:read+write:t."
NAMED = b'{"node":"n","seqs":[1]}'
POSTS = ("claim", "ack", "nack", "extend")
PATHS = [
    *(("POST", f"/v0/topics/t.a/{name}", NAMED) for name in (*POSTS, "redrive")),
    ("GET", "/v0/topics/t.a/work?node=n", b""),
    ("GET", "/v0/topics/t.a/leases", b""),
]
EVERY_CALL = pytest.mark.parametrize(
    ("method", "path", "body"), PATHS, ids=[path.rpartition("/")[2] for _, path, _ in PATHS]
)


@LANES
@pytest.mark.parametrize("name", POSTS)
async def test_what_a_worker_says_reaches_the_shard_as_it_was_sent(fast: bool, name: str) -> None:
    async with running(fast=fast, keys=KEYS, shards=FakeShards(topics={"t.a": []})) as run:
        client = await run.connect()
        path = f"/v0/topics/t.a/{name}"
        answer = await client.ask("POST", path, NAMED, authorization=bearer("worker"))
        assert (answer.status, answer.json()["topic"]) == (200, "t.a")
        [(method, params, body)] = run.shards.calls
        assert (method, body) == (f"queue.{name}", NAMED)
        assert (params.topic, params.at > 0) == ("t.a", True)


async def test_a_redrive_needs_no_body_and_tells_the_names_that_the_key_may_see() -> None:
    async with running(keys=KEYS, shards=FakeShards(topics={"t.a": []})) as run:
        client = await run.connect()
        for key, body, prefixes in (("boss", b"", None), ("worker", b'{"to":"t.b"}', ["t."])):
            path = "/v0/topics/t.a/redrive"
            assert (await client.ask("POST", path, body, authorization=bearer(key))).status == 200
            method, params, raw = run.shards.calls[-1]
            assert (method, raw) == ("queue.redrive", body)
            assert params == calls.RedriveParams("t.a", prefixes, params.at)


# Refusals


@EVERY_CALL
async def test_a_shard_that_is_away_is_a_503(method: str, path: str, body: bytes) -> None:
    async with running(shards=FakeShards(ready=False)) as run:
        client = await run.connect()
        answer = await client.ask(method, path, body)
        assert (answer.status, answer.code) == (503, "not_ready")
        assert answer.headers["retry-after"]
