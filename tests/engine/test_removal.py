"""Removal: counts, bytes and the start of a topic are exact after each cut and each delete."""

from __future__ import annotations

import pytest

from tests.engine.shard_support import Desk, fill
from topics.engine.locators import Locator
from topics.engine.removal import cut_to, live_of, settle
from topics.engine.store import Unreadable
from topics.engine.topic import Topic
from topics.formats.disk.records import RecordsView
from topics.formats.ranges import seq_ranges

SIZES = (2, 3, 4)  # records of each write: seqs 1 to 9


@pytest.fixture
def topic(desk: Desk) -> Topic:
    fill(desk, *SIZES)
    return desk.engine.topic("a")


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
