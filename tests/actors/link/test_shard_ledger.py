"""What the shards hold together, whichever of them are there."""

from __future__ import annotations

import os

from topics.actors.link.board import Board, ShardState
from topics.actors.link.ledger import forget_counts
from topics.actors.link.process_id import shard_id
from topics.actors.link.shard_ledger import ShardLedger


def ledgers(shards: int = 2) -> tuple[Board, list[ShardLedger]]:
    board = Board.create(shards=shards, fronts=1)
    return board, [ShardLedger(board, index) for index in range(shards)]


def test_shards_share_both_caps() -> None:
    _, (one, other) = ledgers()
    for count, peer in ((one.topics, other.topics), (one.total_bytes, other.total_bytes)):
        assert [count.take(10, 6), peer.take(10, 5), peer.take(10, 4)] == [True, False, True]
        count.give_back(6)
        assert count.total() == peer.total() == 4


def test_a_shard_is_unknown_until_it_has_reported_once() -> None:
    board, (one, other) = ledgers()
    assert one.replayed() is not None
    one.report(3, 500)
    board.shard(1).progress_ppm = 250_000
    assert one.replayed() == 0.25
    other.report(0, 0)
    assert one.replayed() is None
    assert other.replayed() is None
    board.shard(1).clear()
    forget_counts(board, shard_id(1))
    assert ShardLedger(board, 0).replayed() is None, "also later, when it is away"


def test_what_a_dead_shard_held_counts_until_it_tells_what_it_has_found() -> None:
    board, (one, other) = ledgers()
    for ledger in (one, other):
        ledger.report(2, 100)
    assert other.topics.take(5)
    forget_counts(board, shard_id(1))
    assert not one.topics.take(5)
    again = ShardLedger(board, 1)
    assert (again.topics.total(), again.total_bytes.total()) == (5, 200)
    again.report(2, 90)
    assert (one.topics.total(), one.total_bytes.total()) == (4, 190)
    assert one.topics.take(5)


def test_a_damaged_shard_is_waited_for_by_nobody() -> None:
    board, (one, _) = ledgers()
    one.report(1, 10)
    board.shard(1).state = ShardState.RECOVERING
    assert one.replayed() is not None
    board.shard(1).state = ShardState.DAMAGED
    assert one.replayed() is None
    assert one.topics.total() == 1


def test_processes_that_compete_take_just_what_there_is() -> None:
    """Each child takes one at a time until nothing is left; together they hold the whole cap."""
    _, all_ledgers = ledgers(3)
    for ledger in all_ledgers:
        ledger.report(0, 0)
    children = []
    for ledger in all_ledgers:
        pid = os.fork()
        if pid == 0:
            while ledger.topics.take(10_000):
                pass
            os._exit(0)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
    assert all_ledgers[0].topics.total() == 10_000
