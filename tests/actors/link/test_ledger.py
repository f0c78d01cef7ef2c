"""Caps that several processes share, each counting in words of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

import pytest

from topics.actors.link.board import Board
from topics.actors.link.ledger import (
    KeyLimit,
    KeySlots,
    Limit,
    LimitsLedger,
    forget_counts,
)
from topics.actors.link.process_id import front_id, shard_id
from topics.engine.access import Access

SLOTS = range(3)


def ledgers(fronts: int) -> tuple[Board, list[LimitsLedger]]:
    board = Board.create(shards=1, fronts=fronts)
    return board, [LimitsLedger(board, front_id(index)) for index in range(fronts)]


def test_fronts_share_one_cap() -> None:
    _, (one, other) = ledgers(2)
    here, there = one.of_server(Limit.WATCH_SESSIONS), other.of_server(Limit.WATCH_SESSIONS)
    assert [here.take(3), there.take(3), here.take(3), there.take(3)] == [True, True, True, False]
    assert here.total() == there.total() == 3
    here.give_back()
    assert there.take(3)
    assert not here.take(3)


def test_every_limit_and_every_key_is_counted_apart() -> None:
    _, (ledger, other) = ledgers(2)
    counts = [ledger.of_server(limit) for limit in Limit]
    counts += [ledger.of_key(limit, key) for limit in KeyLimit for key in SLOTS]
    for number, count in enumerate(counts):
        assert count.take(0, amount=number + 1), "0 is no cap"
    assert [count.total() for count in counts] == [*range(1, len(counts) + 1)]
    assert other.of_key([*KeyLimit][-1], 2).total() == len(counts)


def test_more_than_one_is_taken_whole_or_not_at_all() -> None:
    _, (ledger,) = ledgers(1)
    count = ledger.of_server(Limit.SSE_CONNECTIONS)
    assert count.take(10, amount=7)
    assert not count.take(10, amount=4)
    assert count.take(10, amount=3)
    count.give_back(10)
    assert count.total() == 0


def test_what_was_not_taken_cannot_be_given_back() -> None:
    _, (ledger,) = ledgers(1)
    count = ledger.of_key(KeyLimit.SSE_CONNECTIONS, 0)
    with pytest.raises(AssertionError):
        count.give_back()


def test_a_dead_front_holds_nothing_and_the_others_keep_theirs() -> None:
    board, (one, other) = ledgers(2)
    for ledger in (one, other):
        assert ledger.of_server(Limit.SSE_CONNECTIONS).take(2)
        assert ledger.of_key(KeyLimit.SSE_CONNECTIONS, 1).take(2)
    forget_counts(board, front_id(0))
    assert other.of_server(Limit.SSE_CONNECTIONS).total() == 1
    assert other.of_key(KeyLimit.SSE_CONNECTIONS, 1).total() == 1


def test_counts_of_shards_are_not_those_of_fronts_and_outlive_their_process() -> None:
    board, (front,) = ledgers(1)
    shard = LimitsLedger(board, shard_id(0))
    assert shard.of_server(Limit.TOPICS).take(1)
    assert front.of_server(Limit.TOPICS).total() == 0
    forget_counts(board, shard_id(0))
    assert shard.of_server(Limit.TOPICS).total() == 1


def test_who_took_a_count_back_looks_again_whether_there_is_room() -> None:
    """Two processes count one each for the last place, and both see the sum above the cap."""
    board, (one, other) = ledgers(2)
    here, there = one.of_server(Limit.SSE_CONNECTIONS), board.front(1).limits
    fences = 0

    def race() -> None:
        nonlocal fences
        fences += 1
        if fences == 1:
            there[Limit.SSE_CONNECTIONS] = 1  # between the look and the sum of this process
        elif fences == 2:
            there[Limit.SSE_CONNECTIONS] = 0

    here._fence = race
    assert here.take(1)
    assert (fences, here.total(), there[Limit.SSE_CONNECTIONS]) == (3, 1, 0)
    assert not other.of_server(Limit.SSE_CONNECTIONS).take(1)


def test_what_cannot_fit_is_not_in_the_way_of_what_fits() -> None:
    board, (one, _) = ledgers(2)
    here = one.of_server(Limit.SSE_CONNECTIONS)

    def fail() -> None:
        raise AssertionError("nothing was counted")

    here._fence = fail
    assert not here.take(10, amount=11)
    assert board.front(0).limits[Limit.SSE_CONNECTIONS] == 0


# Which key counts where


def slots_of(access: Access) -> list[int]:
    return [principal.slot for principal in access.principals]


def test_every_key_has_a_slot_of_its_own_and_keeps_it_when_others_come_and_go() -> None:
    slots = KeySlots(Board.create(shards=1, fronts=1, key_slots=4))
    first = slots.assign(Access.parse("one,two:r,three"))
    assert slots_of(first) == [0, 1, 2]
    assert slots_of(slots.assign(Access.parse("four,three,two:w"), first)) == [3, 2, 1]


def test_the_slot_of_a_key_that_has_just_gone_is_not_taken_yet() -> None:
    """Until every front has heard of it, requests of the key are still counted there."""
    slots = KeySlots(Board.create(shards=1, fronts=1, key_slots=3))
    first = slots.assign(Access.parse("one,two"))
    second = slots.assign(Access.parse("one,three"), first)
    assert slots_of(second) == [0, 2]
    told = "too many keys: 1 are new and 0 of 3 slots are free; removed keys free theirs later"
    with pytest.raises(ValueError, match=told):
        slots.assign(Access.parse("one,three,four"))
    assert slots_of(slots.assign(Access.parse("one,three,four"), second)) == [0, 2, 1]


def test_the_slot_of_a_removed_key_is_used_again_when_no_front_counts_in_it() -> None:
    board, (one, other) = ledgers(2)
    slots = KeySlots(board)
    before = slots.assign(Access.parse("old"))
    held = [one.of_key(KeyLimit.SSE_CONNECTIONS, 0), other.of_key(KeyLimit.REQUESTS_IN_FLIGHT, 0)]
    for count in held:
        assert count.take(1)
    before = slots.assign(Access.parse("next"), before)
    for number, count in enumerate(held):
        before = slots.assign(Access.parse(f"next,new{number}"), before)
        assert 0 not in slots_of(before)
        count.give_back()
    assert slots_of(slots.assign(Access.parse("next,last"), before)) == [1, 0]


def test_a_key_that_comes_back_counts_where_it_still_holds_something() -> None:
    board, (front, _) = ledgers(2)
    slots = KeySlots(board)
    before = slots.assign(Access.parse("old,other"))
    assert front.of_key(KeyLimit.SSE_CONNECTIONS, 0).take(1)
    for text in ("other", "other,new"):
        before = slots.assign(Access.parse(text), before)
    assert slots_of(slots.assign(Access.parse("new,old"), before)) == [2, 0]


@pytest.mark.slow
def test_fronts_that_race_for_the_last_place_never_both_get_it() -> None:
    """Word 0 of each front says that it holds the place, word 1 how often it was granted."""
    board, (*all_ledgers,) = ledgers(3)
    words, until = [board.front(index).counters for index in range(3)], time.monotonic() + 1

    def compete(index: int) -> bool:
        count, own = all_ledgers[index].of_server(Limit.SSE_CONNECTIONS), words[index]
        while time.monotonic() < until:
            if count.take(1):
                own[0], own[1] = 1, own[1] + 1
                if any(other[0] for other in words if other is not own):
                    return False
                own[0] = 0
                count.give_back()
        return True

    children = [child(partial(compete, index)) for index in range(3)]
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
    assert sum(own[1] for own in words) > 100
    assert all_ledgers[0].of_server(Limit.SSE_CONNECTIONS).total() == 0


def child(body: Callable[[], bool]) -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if body() else 1)
    return pid
