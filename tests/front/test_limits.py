"""Limits of one client among others."""

from __future__ import annotations

import pytest

from topics.actors.link.board import Board
from topics.actors.link.ledger import LimitsLedger
from topics.actors.link.process_id import front_id
from topics.config import Settings
from topics.engine.access import ANYONE, Principal
from topics.errors import Throttled
from topics.front.limits import Cap, Slots, make_slots

ONE, TWO = Principal(b"one", slot=0), Principal(b"two", slot=1)


def slots(in_all: int = 0, per_key: int = 0) -> Slots:
    return Slots("too many", in_all=Cap("all", in_all), per_key=Cap("key", per_key))


def test_above_the_cap_of_all_nobody_has_a_slot_until_one_is_released() -> None:
    held = slots(in_all=2)
    held.acquire(ONE)
    held.acquire(TWO)
    for principal in (ONE, TWO, ANYONE):
        with pytest.raises(Throttled) as raised:
            held.acquire(principal)
        assert raised.value.detail == {"limit": "all", "max": 2, "retry_after_ms": 1000}
    assert (held.used, held.used_by(ONE), held.used_by(TWO)) == (2, 1, 1)
    held.release(TWO)
    held.acquire(ONE)


def test_a_key_at_its_cap_takes_no_slot_of_others() -> None:
    held = slots(in_all=3, per_key=1)
    held.acquire(ONE)
    for _ in range(5):
        with pytest.raises(Throttled, match="too many") as raised:
            held.acquire(ONE)
        assert raised.value.detail["limit"] == "key"
    assert held.used == 1
    held.acquire(TWO)


def test_requests_without_keys_have_no_cap_of_their_own() -> None:
    held = slots(per_key=1)
    for _ in range(3):
        held.acquire(ANYONE)
    assert held.used == 3


def test_a_slot_that_is_about_to_be_left_counts_as_free() -> None:
    held = slots(in_all=1, per_key=1)
    held.add(ONE)
    with pytest.raises(Throttled):
        held.check(ONE)
    held.check(ONE, leaving=1)
    assert held.used == 1, "a check takes nothing"


def test_without_caps_there_is_always_a_slot() -> None:
    held = slots()
    for _ in range(100):
        held.check(ONE)
        held.acquire(ONE)
    for _ in range(100):
        held.release(ONE)
    assert (held.used, held.used_by(ONE)) == (0, 0)


def test_fronts_with_one_ledger_share_the_caps() -> None:
    settings = Settings(
        max_sse_connections=3,
        max_sse_connections_per_key=2,
        max_watch_sessions=3,
        max_watch_sessions_per_key=1,
    )
    board = Board.create(shards=0, fronts=2)
    fronts = [make_slots(settings, 9, LimitsLedger(board, front_id(index))) for index in (0, 1)]
    one, two = ONE, TWO
    for front in fronts:
        front.streams.acquire(one)
        front.connections.acquire()
    assert [front.streams.used_by(one) for front in fronts] == [2, 2]
    assert [front.connections.used for front in fronts] == [1, 1], "descriptors are not shared"
    for front in fronts:
        with pytest.raises(Throttled) as raised:
            front.streams.acquire(one)
        assert raised.value.detail["limit"] == "max_sse_connections_per_key"
    fronts[0].streams.acquire(two)
    with pytest.raises(Throttled) as raised:
        fronts[1].streams.check(two)
    assert raised.value.detail["limit"] == "max_sse_connections"
    for key in (one, two, ANYONE):
        fronts[1].watch_sessions.acquire(key)
    for key, most in ((ANYONE, 3), (one, 3)):
        with pytest.raises(Throttled) as raised:
            fronts[0].watch_sessions.acquire(key)
        assert raised.value.detail["max"] == most
    fronts[1].watch_sessions.release()
    with pytest.raises(Throttled) as raised:
        fronts[0].watch_sessions.acquire(one)
    assert raised.value.detail["limit"] == "max_watch_sessions_per_key"
    fronts[1].watch_sessions.release(one)
    fronts[0].watch_sessions.acquire(one)
