"""Ranges: the records and the losses between two seqs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from msgspec import Raw

from topics.client.values import Tombstone
from topics.spark.client.http import Page, Record, TopicsClient
from topics.spark.client.ranges import RECREATED, UNSYNCED, Loss, Range, read_range


class Topic:
    """A topic with the seqs ``live``. Its pages have at most ``page`` records (§3)."""

    def __init__(
        self, live: Sequence[int], head: int, *, floor: int = 1, epoch: int = 7, page: int = 3
    ) -> None:
        self.live, self.head, self.floor, self.epoch, self.page = live, head, floor, epoch, page
        self.requested: list[int] = []

    def diff(self, topic: str, *, from_seq: int, limit: int, epoch: int | None, **_: Any) -> Page:
        assert limit > 0
        self.requested.append(from_seq)
        gap = None
        if epoch != self.epoch:
            gap = self.tombstone(1, self.head, RECREATED)
            from_seq = 0
        elif from_seq + 1 < self.floor:
            gap = self.tombstone(from_seq + 1, self.floor - 1, "cap")
            from_seq = self.floor - 1
        seqs = [seq for seq in self.live if seq > from_seq][: min(limit, self.page)]
        more = bool(seqs) and seqs[-1] != self.live[-1]
        reached = seqs[-1] if more else max(self.head, from_seq)
        records = [Record(seq=seq, ts=seq, data=Raw(b"%d" % seq)) for seq in seqs]
        return Page(records, reached, self.head, self.floor, not more, self.epoch, gap)

    def tombstone(self, first: int, last: int, reason: str) -> Tombstone:
        return Tombstone(
            gap_from=first,
            gap_to=last,
            reason=reason,
            missed_estimate=last - first + 1,
            earliest_seq=self.floor,
            head_seq=self.head,
        )


def read(topic: Topic, after: int, last: int) -> list[int | Loss]:
    found: list[int | Loss] = []
    client = cast("TopicsClient", topic)
    for page in read_range(client, Range("s", "t", after, last, 7), found.append):
        assert page
        found += [record.seq for record in page]
    return found


def test_a_range_is_exclusive_at_its_start_and_inclusive_at_its_end() -> None:
    topic = Topic(range(1, 11), 10)
    assert read(topic, 0, 10) == list(range(1, 11))
    assert read(topic, 3, 8) == [4, 5, 6, 7, 8]
    assert read(topic, 4, 5) == [5]
    assert read(topic, 5, 5) == []


def test_deleted_records_are_skipped_silently() -> None:
    assert read(Topic([2, 9], 12), 0, 12) == [2, 9]
    assert read(Topic([2, 9], 12), 2, 8) == []
    assert read(Topic([], 12), 0, 12) == []


@pytest.mark.parametrize(
    ("after", "last", "lost"),
    [(0, 10, Loss(1, 5, "cap", 5)), (2, 10, Loss(3, 5, "cap", 3)), (0, 4, Loss(1, 4, "cap", 4))],
)
def test_evicted_records_are_reported_within_the_range(after: int, last: int, lost: Loss) -> None:
    topic = Topic(range(6, 11), 10, floor=6)
    assert read(topic, after, last) == [lost, *range(6, last + 1)]


def test_a_loss_before_the_range_is_not_reported() -> None:
    assert read(Topic(range(6, 11), 10, floor=6), 5, 10) == [6, 7, 8, 9, 10]


def test_records_of_another_incarnation_are_not_read() -> None:
    topic = Topic(range(1, 11), 10, epoch=8)
    assert read(topic, 2, 10) == [Loss(3, 10, RECREATED, 8)]
    assert read(topic, 20, 30) == [Loss(21, 30, RECREATED, 10)]


def test_a_head_below_the_range_is_a_loss() -> None:
    assert read(Topic(range(1, 6), 5), 3, 9) == [4, 5, Loss(6, 9, UNSYNCED, 4)]


def test_the_callback_for_losses_may_raise() -> None:
    def refuse(lost: Loss) -> None:
        raise LookupError(lost)

    topic = Topic(range(6, 11), 10, floor=6)
    with pytest.raises(LookupError):
        list(read_range(cast("TopicsClient", topic), Range("s", "t", 0, 10, 7), refuse))
    assert topic.requested == [0]
