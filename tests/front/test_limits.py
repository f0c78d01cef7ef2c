"""Limits of one client among others."""

from __future__ import annotations

import trio

from tests.support.fake_backend import FakeBackend
from tests.support.front import LANES, running
from topics.config import Settings


@LANES
async def test_a_key_has_its_cap_of_requests_in_flight(fast: bool) -> None:
    settings = Settings(max_inflight_per_key=2)
    backend = FakeBackend(topics={"slow": []}, gate=trio.Event())
    async with running(fast=fast, settings=settings, keys="one,two", backend=backend) as run:
        assert backend.gate is not None
        clients = [await run.connect() for _ in range(3)]
        for client in clients[:2]:
            await client.say(
                b"POST /v0/topics/slow/diff HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer one\r\n\r\n"
            )
        await run.until(lambda: backend.waiting == 2)
        answer = await clients[2].ask("GET", "/v0/topics", authorization="Bearer one")
        assert (answer.status, answer.code) == (429, "throttled")
        assert answer.json()["error"]["detail"] == {"limit": "max_inflight_per_key", "max": 2}
        assert (await clients[2].ask("GET", "/v0/topics", authorization="Bearer two")).status == 200
        assert (await clients[2].ask("GET", "/v0/health")).status == 200
        backend.gate.set()
        for client in clients[:2]:
            assert (await client.hear()).status == 200
        assert (await clients[2].ask("GET", "/v0/topics", authorization="Bearer one")).status == 200
