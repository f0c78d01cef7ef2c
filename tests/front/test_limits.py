"""Limits of slots for all clients and for each key."""

from __future__ import annotations

import pytest

from topics.engine.access import ANYONE, Principal
from topics.errors import Throttled
from topics.front.limits import Cap, Slots

ONE, TWO = Principal(b"one"), Principal(b"two")


def slots(in_all: int = 0, per_key: int = 0) -> Slots:
    return Slots("too many", in_all=Cap("all", in_all), per_key=Cap("key", per_key))


def test_above_the_common_cap_no_client_gets_a_slot_until_one_is_released() -> None:
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


def test_a_key_at_its_cap_uses_no_slots_of_others() -> None:
    held = slots(in_all=3, per_key=1)
    held.acquire(ONE)
    for _ in range(5):
        with pytest.raises(Throttled, match="too many") as raised:
            held.acquire(ONE)
        assert raised.value.detail["limit"] == "key"
    assert held.used == 1
    held.acquire(TWO)


def test_a_slot_that_is_about_to_be_released_counts_as_free() -> None:
    held = slots(in_all=1, per_key=1)
    held.add(ONE)
    with pytest.raises(Throttled):
        held.check(ONE)
    held.check(ONE, leaving=1)
    assert held.used == 1, "a check must not use a slot"
