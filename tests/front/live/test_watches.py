"""Watch sessions without a stream."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.limits import LIMITS
from tests.support.live_harness import LiveHarness
from topics.config import Settings
from topics.engine.access import ANYONE
from topics.errors import NotFound, Throttled
from topics.formats.api.watch import decode_watch
from topics.front.limits import make_slots
from topics.front.live import watches
from topics.front.live.watches import SESSION_TTL_S, Watches


async def test_an_unused_session_expires_and_releases_its_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def no_heads(*_: Any) -> dict[str, Any]:
        return {}

    clock: Any = SimpleNamespace(now=1000.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(watches, "time", clock)
    monkeypatch.setattr(watches, "heads_of", no_heads)
    live = LiveHarness().live
    slots = live.slots = make_slots(Settings(max_watch_sessions=2), 100)
    made = Watches(live)
    request = decode_watch(b'{"topics":{"t":{}}}', LIMITS, 10)

    async def create() -> str:
        answer = await made.create(request, ANYONE, lenient=True)
        return str(answer["wid"])

    first = await create()
    clock.now += SESSION_TTL_S / 2
    await create()
    with pytest.raises(Throttled) as raised:
        await create()
    assert raised.value.detail["limit"] == "max_watch_sessions"
    clock.now += SESSION_TTL_S / 2 + 1
    with pytest.raises(NotFound):
        made.open(first, ANYONE, b"")
    assert slots.watch_sessions.used == 1
    await create()
    with pytest.raises(Throttled):
        await create()
