"""Removal: counts, bytes and the start of a topic are exact after each cut and each delete."""

from __future__ import annotations

import pytest

from tests.engine.shard_support import Desk, fill, seqs_of
from topics.engine.locators import Locator
from topics.engine.removal import cut_to, delete_runs, live_of, settle
from topics.engine.store import Unreadable
from topics.engine.topic import Topic
from topics.formats.disk.records import RecordsView
from topics.formats.ranges import SeqRun, seq_ranges

SIZES = (2, 3, 4)  # records of each write: seqs 1 to 9


@pytest.fixture
def topic(desk: Desk) -> Topic:
    fill(desk, *SIZES)
    return desk.engine.topic("a")


def bytes_of(desk: Desk, topic: Topic, *seqs: int) -> int:
    """Rendered bytes of these records, one by one."""
    total = 0
    for seq in seqs:
        at = topic.index.find(seq)
        first_seq, _, locator, _ = topic.index.entry(at)
        total += desk.records(locator).size(seq - first_seq, seq - first_seq + 1)
    return total


@pytest.mark.parametrize(
    ("cut", "last", "entries"), [(1, 0, 3), (3, 2, 2), (4, 3, 2), (7, 6, 1), (10, 9, 0)]
)
def test_a_cut_removes_all_below_it_and_tells_the_last_that_lived(
    desk: Desk, topic: Topic, cut: int, last: int, entries: int
) -> None:
    left = range(cut, 10)
    size = bytes_of(desk, topic, *left)
    assert cut_to(topic, cut, desk) == last
    assert (topic.start_seq, topic.count, topic.bytes) == (cut, len(left), size)
    assert len(topic.index) == entries
    assert seqs_of(desk.read("a")) == [*left]


def test_a_cut_passes_over_what_was_deleted(desk: Desk, topic: Topic) -> None:
    delete_runs(topic, [SeqRun(4, 3)], desk)
    assert cut_to(topic, 6, desk) == 3
    assert (topic.start_seq, topic.count) == (7, 3)


def test_a_delete_in_the_middle_takes_exactly_its_records(desk: Desk, topic: Topic) -> None:
    left = (1, 2, 5, 8, 9)
    size = bytes_of(desk, topic, *left)
    for _ in range(2):  # again, for nothing
        delete_runs(topic, [SeqRun(3, 2), SeqRun(6, 2)], desk)
        assert (topic.start_seq, topic.count, topic.bytes) == (1, len(left), size)
    assert seqs_of(desk.read("a")) == [*left]


def test_a_write_of_which_nothing_lives_leaves_the_index_once_it_is_the_first(
    desk: Desk, topic: Topic
) -> None:
    delete_runs(topic, [SeqRun(3, 3)], desk)
    assert (len(topic.index), topic.start_seq) == (3, 1)
    delete_runs(topic, [SeqRun(1, 2)], desk)
    assert (len(topic.index), topic.start_seq, topic.count) == (1, 6, 4)


def test_losses_before_the_start_become_floors(desk: Desk, topic: Topic) -> None:
    topic.losses = seq_ranges([(3, 3), (8, 8)])
    topic.damaged = seq_ranges([(4, 4)])
    topic.trimmed = seq_ranges([(5, 5), (9, 9)])
    cut_to(topic, 6, desk)
    settle(topic, desk)
    assert (topic.loss_floor, topic.damage_floor, topic.trim_floor) == (4, 5, 6)
    assert (topic.losses, topic.damaged, topic.trimmed) == (((8, 8),), (), ((9, 9),))


def test_records_whose_lengths_cannot_be_read_go_all_the_same(
    desk: Desk, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = topic.bytes

    def unreadable(locator: Locator) -> RecordsView:
        raise Unreadable

    monkeypatch.setattr(desk, "records", unreadable)
    assert live_of(topic, 2, 0, 4, desk).record_count == 4
    assert cut_to(topic, 4, desk) == 3
    assert topic.count == 6
    assert 0 < topic.bytes < whole
    assert cut_to(topic, 10, desk) == 9
    assert (topic.count, topic.bytes) == (0, 0)
