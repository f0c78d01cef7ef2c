"""Topics: when a put is answered."""

from __future__ import annotations

from tests.support.shard import Desk


async def test_a_put_is_answered_once_its_config_is_on_the_disk(desk: Desk) -> None:
    made = desk.put("a", ttl_ms=7)
    desk.written()
    assert desk.answers() == []
    desk.synced()
    ((number, answer),) = desk.bodies()
    assert (number, answer["status"], answer["config"]["ttl_ms"]) == (made, 201, 7)
    again = desk.put("a", ttl_ms=8)
    desk.synced()
    assert desk.answers() == [(again, 200)]
