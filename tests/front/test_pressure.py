"""The responses of a front under pressure to writes and new streams."""

from __future__ import annotations

import pytest

from tests.support.front import HANDSHAKE, RECORD, running
from tests.support.live_harness import refuse_next
from topics.engine.priority import BANDS
from topics.front.pressure import pressure

FORCED = b'{"records":[{"data":1}],"disable_backpressure":true}'


@pytest.fixture(autouse=True)
def _no_refusal_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pressure, "REFUSAL_HOLD_S", 0.0)


async def test_a_refused_append_gets_429_with_a_retry_time() -> None:
    async with running() as run:
        client = await run.connect()
        refuse_next(run.server.pressure)
        answer = await client.request("POST", "/v0/topics/a", RECORD)
        assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        error = answer.json()["error"]
        assert (error["code"], error["detail"]) == ("throttled", {"retry_after_ms": 1000})
        assert run.shards.calls == [], "the refused append was sent to the shard"
        for governor in run.server.pressure.governors:
            governor._debts = [0.0] * BANDS
        assert (await client.request("POST", "/v0/topics/a", RECORD)).status == 201


async def test_a_long_refused_body_is_freed() -> None:
    async with running() as run:
        client = await run.connect()
        refuse_next(run.server.pressure)
        body = b'{"records":[{"data":"%b"}]}' % (b"x" * 8000)  # in shared memory
        assert (await client.request("POST", "/v0/topics/a", body)).status == 429
        assert run.shards.blocks_out == 0


async def test_an_append_that_disables_backpressure_is_accepted() -> None:
    async with running() as run:
        client = await run.connect()
        refuse_next(run.server.pressure)
        assert (await client.request("POST", "/v0/topics/a", FORCED)).status == 201


async def test_reads_and_other_changes_are_not_refused() -> None:
    async with running() as run:
        client = await run.connect()
        await client.request("POST", "/v0/topics/a", RECORD)
        refuse_next(run.server.pressure)
        for method, path, body in (
            ("POST", "/v0/topics/a/diff", b"{}"),
            ("PUT", "/v0/topics/b", b"{}"),
            ("GET", "/v0/health", b""),
        ):
            assert (await client.request(method, path, body)).status in (200, 201), path


async def test_a_new_stream_is_refused_before_its_head() -> None:
    async with running() as run:
        client = await run.connect()
        for path in ("/v0/topics/a/work?node=n", "/v0/ws"):
            refuse_next(run.server.pressure)
            answer = await client.request("GET", path, b"", **HANDSHAKE)
            assert (answer.status, answer.code) == (429, "throttled"), path
            assert answer.headers["retry-after"] in ("1", "2")
        assert run.shards.calls == []


async def test_the_band_of_an_outcome_is_learned() -> None:
    async with running() as run:
        client = await run.connect()
        await client.request("POST", "/v0/topics/a", RECORD)
        assert run.server.pressure.bands.of("a") == 4, "the band of the fake shards was not learned"
