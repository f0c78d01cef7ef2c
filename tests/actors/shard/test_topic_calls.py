"""Calls for topics: a put gets its reply after the config is synced."""

from __future__ import annotations

from tests.support.shard import ShardHarness


async def test_a_put_gets_its_reply_after_its_config_is_synced(harness: ShardHarness) -> None:
    made = harness.put("a", ttl_ms=7)
    harness.written()
    assert harness.answers() == []
    harness.synced()
    ((number, answer),) = harness.bodies()
    assert (number, answer["status"], answer["config"]["ttl_ms"]) == (made, 201, 7)
    again = harness.put("a", ttl_ms=8)
    harness.synced()
    assert harness.answers() == [(again, 200)]
