"""Which sockets end when there is no memory for all messages that have begun."""

from __future__ import annotations

from typing import Any

import pytest

from topics.front.live import message_budget
from topics.front.live.message_budget import (
    NO_ROOM,
    PROGRESS_MIN_BYTES,
    STALL_MAX_S,
    MessageBudget,
)

ROOM = 1 << 20


class _Socket:
    def __init__(self) -> None:
        self.gone = False

    def fail(self, code: int, error: str) -> None:
        assert (code, error) == (429, NO_ROOM)
        self.gone = True


Socket: Any = _Socket


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(message_budget, "time", clock)
    return clock


def test_the_longest_message_ends_when_none_has_stalled(clock: Clock) -> None:
    budget = MessageBudget(ROOM)
    sockets = [Socket() for _ in range(4)]
    for step in range(1, 5):
        for socket, share in zip(sockets, (1, 2, 3, 1), strict=True):
            if not socket.gone:
                budget.hold(socket, step * share * ROOM // 24)
    assert [socket.gone for socket in sockets] == [False, False, True, False]
    assert budget.unfinished <= ROOM


def test_a_stalled_message_ends_before_one_that_moves_whatever_their_lengths(clock: Clock) -> None:
    budget = MessageBudget(ROOM)
    still, dripping, moving = Socket(), Socket(), Socket()
    budget.hold(still, 10)
    clock.now += 0.1
    for byte in range(10):
        clock.now += STALL_MAX_S / 5
        budget.hold(dripping, ROOM // 2 - 20 + byte)
    budget.hold(moving, ROOM // 2)
    assert not still.gone
    budget.hold(moving, ROOM // 2 + 5)
    assert (still.gone, dripping.gone, moving.gone) == (True, False, False)
    budget.hold(moving, ROOM - 1000)
    assert (dripping.gone, moving.gone) == (True, False)


def test_stalled_messages_make_room_for_one_that_moves(clock: Clock) -> None:
    budget = MessageBudget(ROOM)
    for _ in range(64):
        budget.hold(Socket(), ROOM // 64)
    clock.now += STALL_MAX_S + 0.1
    honest = Socket()
    for length in range(PROGRESS_MIN_BYTES, ROOM + 1, PROGRESS_MIN_BYTES):
        budget.hold(honest, length)
    assert not honest.gone
    budget.hold(honest, 0)
    assert budget.unfinished == 0


def test_a_message_that_exceeds_the_bound_ends_alone(clock: Clock) -> None:
    budget = MessageBudget(ROOM)
    small, large = Socket(), Socket()
    budget.hold(small, 1000)
    budget.hold(large, ROOM)
    assert (small.gone, large.gone) == (False, True)
    assert budget.unfinished == 1000


def test_publishes_in_flight_leave_half_of_the_bound_to_incomplete_messages(clock: Clock) -> None:
    budget = MessageBudget(ROOM)
    budget.asked = 5 * ROOM
    first, second = Socket(), Socket()
    budget.hold(first, ROOM // 2)
    assert not first.gone
    budget.hold(second, 1)
    assert (first.gone, second.gone) == (True, False)
