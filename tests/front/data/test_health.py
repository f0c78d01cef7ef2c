"""Health and readiness."""

from __future__ import annotations

from tests.support.fake_shards import FakeShards
from tests.support.front import RECORD, running


async def test_readiness_reports_the_replay_progress() -> None:
    shards = FakeShards(ready=False)
    async with running(shards=shards) as run:
        client = await run.connect()
        assert (await client.request("GET", "/v0/health")).json()["status"] == "ok"
        for method, path, body in (
            ("GET", "/v0/ready", b""),
            ("POST", "/v0/topics/a", RECORD),
            ("GET", "/v0/topics", b""),
        ):
            answer = await client.request(method, path, body)
            assert (answer.status, answer.code) == (503, "not_ready")
            assert answer.headers["retry-after"] == "1"
            assert answer.json()["error"]["detail"]["replay_progress"] == 0.25
        shards.ready = True
        assert (await client.request("GET", "/v0/ready")).json()["wal_replay_complete"] is True
        head = await client.request("HEAD", "/healthz")
        assert head.status == 200
        assert int(head.headers["content-length"]) > 0
