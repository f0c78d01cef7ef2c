"""Caps that several processes share, each counting in words of its own."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from functools import partial

import pytest

from topics.actors.link.board import Board
from topics.actors.link.ledger import (
    KeyLimit,
    Limit,
    LimitsLedger,
    assign_key_slots,
    forget_counts,
)
from topics.actors.link.process_id import front_id, shard_id

KEYS = [hashlib.sha256(name).digest() for name in (b"one", b"two", b"three")]


def ledgers(fronts: int) -> tuple[Board, list[LimitsLedger]]:
    board = Board.create(shards=1, fronts=fronts)
    assign_key_slots(board, KEYS)
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
    counts += [ledger.of_key(limit, key) for limit in KeyLimit for key in KEYS]
    for number, count in enumerate(counts):
        assert count.take(0, amount=number + 1), "0 is no cap"
    assert [count.total() for count in counts] == [*range(1, len(counts) + 1)]
    assert other.of_key(KeyLimit.REQUESTS_IN_FLIGHT, KEYS[2]).total() == len(counts)


def test_more_than_one_is_taken_whole_or_not_at_all() -> None:
    count = LimitsLedger.of_one_front([]).of_server(Limit.SSE_CONNECTIONS)
    assert count.take(10, amount=7)
    assert not count.take(10, amount=4)
    assert count.take(10, amount=3)
    count.give_back(10)
    assert count.total() == 0


def test_what_was_not_taken_cannot_be_given_back() -> None:
    count = LimitsLedger.of_one_front(KEYS).of_key(KeyLimit.SSE_CONNECTIONS, KEYS[0])
    with pytest.raises(AssertionError):
        count.give_back()


def test_a_dead_front_holds_nothing_and_the_others_keep_theirs() -> None:
    board, (one, other) = ledgers(2)
    for ledger in (one, other):
        assert ledger.of_server(Limit.SSE_CONNECTIONS).take(2)
        assert ledger.of_key(KeyLimit.SSE_CONNECTIONS, KEYS[1]).take(2)
    forget_counts(board, front_id(0))
    assert other.of_server(Limit.SSE_CONNECTIONS).total() == 1
    assert other.of_key(KeyLimit.SSE_CONNECTIONS, KEYS[1]).total() == 1


def test_counts_of_shards_are_not_those_of_fronts() -> None:
    board, (front,) = ledgers(1)
    shard = LimitsLedger(board, shard_id(0))
    assert shard.of_server(Limit.WATCH_SESSIONS).take(1)
    assert front.of_server(Limit.WATCH_SESSIONS).total() == 0
    forget_counts(board, shard_id(0))
    assert shard.of_server(Limit.WATCH_SESSIONS).total() == 0


def test_a_key_without_a_slot_is_an_error_and_too_many_keys_are_refused() -> None:
    with pytest.raises(KeyError):
        LimitsLedger.of_one_front(KEYS[:2]).of_key(KeyLimit.SSE_CONNECTIONS, KEYS[2])
    with pytest.raises(ValueError, match="3 keys and 2 slots"):
        assign_key_slots(Board.create(shards=1, fronts=1, key_slots=2), KEYS)


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
