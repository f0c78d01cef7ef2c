"""The topics and bytes that all shards hold together, with any set of running shards."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

import pytest

from tests.actors.link.link_support import Fence
from topics.actors.link.board import Board, ShardState
from topics.actors.link.ledger import Limit, ShardLedger


def ledgers(shards: int = 2) -> tuple[Board, list[ShardLedger]]:
    board = Board(shards)
    return board, [ShardLedger(board, index) for index in range(shards)]


def test_shards_share_both_caps() -> None:
    _, (one, other) = ledgers()
    for count, peer in ((one.topics, other.topics), (one.total_bytes, other.total_bytes)):
        assert [count.take(10, 6), peer.take(10, 5), peer.take(10, 4)] == [True, False, True]
        count.release(6)
        assert count.total() == peer.total() == 4


def test_an_amount_that_was_not_taken_cannot_be_released() -> None:
    _, (ledger,) = ledgers(1)
    assert ledger.topics.take(0, amount=3), "0 means no cap"
    with pytest.raises(AssertionError):
        ledger.topics.release(4)


def test_a_shard_that_withdraws_its_count_checks_the_capacity_again() -> None:
    """Two shards each count one for the last slot, and both see a sum above the cap."""
    board, (one, other) = ledgers()
    here, there = one.topics, board.shard(1).limits
    fences = 0

    def race() -> None:
        nonlocal fences
        fences += 1
        if fences == 1:
            there[Limit.TOPICS] = 1  # Between the first check and the sum of this process
        elif fences == 2:
            there[Limit.TOPICS] = 0

    here._fence = Fence(race)
    assert here.take(1)
    assert (fences, here.total(), there[Limit.TOPICS]) == (3, 1, 0)
    assert not other.topics.take(1)


def test_an_amount_above_the_cap_is_rejected_without_being_counted() -> None:
    board, (one, _) = ledgers()
    here = one.topics

    def fail() -> None:
        raise AssertionError("the amount was counted")

    here._fence = Fence(fail)
    assert not here.take(10, amount=11)
    assert board.shard(0).limits[Limit.TOPICS] == 0


def test_a_shard_is_unknown_until_its_first_report() -> None:
    board, (one, other) = ledgers()
    assert one.replayed() is not None
    one.report(3, 500)
    board.shard(1).progress_ppm = 250_000
    assert one.replayed() == 0.25
    other.report(0, 0)
    assert one.replayed() is None
    assert other.replayed() is None
    board.shard(1).clear()
    assert ShardLedger(board, 0).replayed() is None, "the shard remains known after it has stopped"


def test_the_usage_of_a_dead_shard_counts_until_its_successor_reports() -> None:
    board, (one, other) = ledgers()
    for ledger in (one, other):
        ledger.report(2, 100)
    assert other.topics.take(5)
    board.shard(1).clear()
    assert not one.topics.take(5)
    successor = ShardLedger(board, 1)
    assert (successor.topics.total(), successor.total_bytes.total()) == (5, 200)
    successor.report(2, 90)
    assert (one.topics.total(), one.total_bytes.total()) == (4, 190)
    assert one.topics.take(5)


def test_no_shard_waits_for_the_report_of_a_damaged_shard() -> None:
    board, (one, _) = ledgers()
    one.report(1, 10)
    board.shard(1).state = ShardState.RECOVERING
    assert one.replayed() is not None
    board.shard(1).state = ShardState.DAMAGED
    assert one.replayed() is None
    assert one.topics.total() == 1


def test_competing_processes_take_exactly_the_available_amount() -> None:
    """Each child takes one at a time until nothing is left. Together they must hold exactly the
    cap.
    """
    _, all_ledgers = ledgers(3)
    for ledger in all_ledgers:
        ledger.report(0, 0)

    def take_all(ledger: ShardLedger) -> bool:
        while ledger.topics.take(10_000):
            pass
        return True

    children = [child(partial(take_all, ledger)) for ledger in all_ledgers]
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
    assert all_ledgers[0].topics.total() == 10_000


@pytest.mark.slow
def test_two_shards_that_race_for_the_last_slot_never_both_get_it() -> None:
    """Cell 0 of each shard is set while it holds the slot. Cell 1 counts how often the slot was
    granted.
    """
    board, all_ledgers = ledgers(3)
    counters, until = [board.shard(index).counters for index in range(3)], time.monotonic() + 1

    def compete(index: int) -> bool:
        count, own = all_ledgers[index].topics, counters[index]
        while time.monotonic() < until:
            if count.take(1):
                own[0], own[1] = 1, own[1] + 1
                if any(other[0] for other in counters if other is not own):
                    return False
                own[0] = 0
                count.release()
        return True

    children = [child(partial(compete, index)) for index in range(3)]
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
    assert sum(own[1] for own in counters) > 100
    assert all_ledgers[0].topics.total() == 0


def child(body: Callable[[], bool]) -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if body() else 1)
    return pid
