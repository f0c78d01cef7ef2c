"""Grants: which are known, and for how long."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from topics.actors.shard.queues import grants
from topics.actors.shard.queues.grants import FORGET_S, Grant, Grants


def a_session() -> Any:
    return object()


def grant(cid: int, session: Any) -> Grant:
    topic: Any = None
    return Grant(session, cid, topic, [(cid, cid)])


async def test_a_grant_is_taken_once_by_its_serial_or_by_its_call() -> None:
    table, session, other = Grants(), a_session(), a_session()
    first, second = table.add(grant(7, session)), table.add(grant(8, session))
    assert table.take(other, first) is None
    assert table.take(session, first) == grant(7, session)
    assert table.take(session, first) is None
    assert table.take_call(session, 7) is None
    assert table.take_call(session, 8) == grant(8, session)
    assert (second, len(table)) == (2, 0)


async def test_old_grants_are_forgotten_as_new_ones_come(autojump_clock: MockClock) -> None:
    table, session = Grants(), a_session()
    for cid in range(3):
        table.add(grant(cid, session))
    await trio.sleep(FORGET_S)
    table.add(grant(3, session))
    table.add(grant(4, session))
    assert len(table) == 2
    assert table.take_call(session, 2) is None


async def test_the_number_of_grants_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grants, "GRANTS_MAX", 3)
    table, session = Grants(), a_session()
    for cid in range(9):
        table.add(grant(cid, session))
    assert len(table) == 3
    assert table.take(session, 6) is None
    assert table.take(session, 7) == grant(6, session)


async def test_the_grants_of_a_session_go_with_it() -> None:
    table, session, other = Grants(), a_session(), a_session()
    table.add(grant(1, session))
    kept = table.add(grant(1, other))
    table.forget_session(session)
    assert len(table) == 1
    assert table.take(other, kept) == grant(1, other)
