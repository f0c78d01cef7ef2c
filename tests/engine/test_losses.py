"""Losses, removal and replaced index entries: readers see exactly the lost seqs, and counts and
bytes are exact.
"""

from __future__ import annotations

import pytest

from tests.engine.shard_support import EngineHarness, fill, gap_of
from topics.engine import replacing
from topics.engine.locators import Locator, in_extent
from topics.engine.losses import mark_damaged, mark_lost, next_loss, skip_trimmed
from topics.engine.reading import read
from topics.engine.record_index import IndexEntry
from topics.engine.removal import cut_to, delete_runs, live_of, settle
from topics.engine.replacing import parts, replace_entries
from topics.engine.store import Unreadable
from topics.engine.topic import Topic
from topics.formats.api.diff_body import Diff
from topics.formats.disk.records import RecordsView
from topics.formats.ranges import SeqRange, SeqRun, seq_ranges


def test_deleted_records_in_a_damaged_write_are_not_lost(harness: EngineHarness) -> None:
    harness.append("a", records=[{"data": n, "tag": "no" if n == 3 else "yes"} for n in range(4)])
    harness.append("a", "next")
    harness.commit()
    harness.delete_records("a", match="no")
    harness.delete_records("a", before_seq=2)
    harness.commit()
    topic = harness.engine.topic("a")
    mark_damaged(topic, 0, harness)
    assert topic.damage_floor == 4, "seqs 2 and 3 were damaged"
    assert (topic.count, topic.earliest_seq) == (1, 5)
    assert gap_of(harness.read("a", 1)) == (2, 4, "damaged"), (
        "a gap continues across deleted records"
    )


def test_each_loss_is_reported_once_across_deleted_and_filtered_records(
    harness: EngineHarness,
) -> None:
    for data in (1, 2):
        harness.append("a", records=[{"data": data, "tag": f"t{data}"}], node="me")
    harness.commit()
    harness.delete_records("a", match="t2")
    harness.commit()
    topic = harness.engine.topic("a")
    for first in (3, 6):
        mark_lost(topic, SeqRange(first, first + 1))
        topic.next_seq = first + 2
        harness.append("a", 5, node="me")
        harness.commit()
    pages = [
        harness.read("a", seq, nodes=frozenset(nodes))
        for seq, nodes in ((0, {"me"}), (1, {"me"}), (4, {"me"}), (5, {"me"}), (0, {}), (1, {}))
    ]
    assert [(gap_of(page), page.next_from_seq) for page in pages] == [
        *(((3, 4, "mixed"), 5), ((2, 4, "mixed"), 5), ((6, 7, "mixed"), 8)),
        *(((6, 7, "mixed"), 8), (None, 2), ((2, 4, "mixed"), 5)),
    ]
    assert gap_of(harness.read("a", 1, until_seq=3)) == (2, 4, "mixed"), "a gap is reported as one"
    assert harness.read("a", 1, until_seq=3).next_from_seq == 5, (
        "the cursor continues after the gap"
    )
    page = read(topic, Diff(from_seq=1), harness, head_seq=3)
    assert (gap_of(page), page.next_from_seq) == ((2, 3, "mixed"), 3), (
        "the gap ends at the head that the reader may see"
    )


# Seqs that are skipped because the source of a router has lost records


def test_a_replay_onto_a_newer_state_skips_no_seqs_twice(harness: EngineHarness) -> None:
    fill(harness, 1)
    topic = harness.engine.topic("a")
    for first in (2, 6):
        skip_trimmed(topic, SeqRange(first, first + 1))
        topic.next_seq += 2
        fill(harness, 2)
    before = (topic.trimmed, topic.head_seq, topic.next_seq, topic.start_seq, topic.floors)
    assert before[0] == ((2, 3), (6, 7))
    skip_trimmed(topic, SeqRange(2, 3))
    assert before == (
        *(topic.trimmed, topic.head_seq, topic.next_seq),
        *(topic.start_seq, topic.floors),
    )


def test_the_next_loss_is_the_first_one_of_any_cause(harness: EngineHarness) -> None:
    fill(harness, 1)
    topic = harness.engine.topic("a")
    topic.losses = (SeqRange(9, 10), SeqRange(20, 21))
    topic.damaged = (SeqRange(5, 6), SeqRange(11, 11))
    topic.trimmed = (SeqRange(7, 8),)
    found, seq = [], 1
    while (loss := next_loss(topic, seq, 20)) is not None:
        found.append(loss)
        seq = loss.last + 1
    assert found == [
        (5, 6, "damaged"),
        (7, 8, "source_trim"),
        (9, 10, "mixed"),
        (11, 11, "damaged"),
        (20, 21, "mixed"),
    ]
    assert next_loss(topic, 6, 6) == (5, 6, "damaged"), "a range that has begun before"
    assert next_loss(topic, 12, 19) is None


# Removal


SIZES = (2, 3, 4)  # Records of each write; the seqs are 1 to 9


@pytest.fixture
def topic(harness: EngineHarness) -> Topic:
    fill(harness, *SIZES)
    return harness.engine.topic("a")


def test_losses_below_the_start_raise_the_floors(harness: EngineHarness, topic: Topic) -> None:
    topic.losses = seq_ranges([(3, 3), (8, 8)])
    topic.damaged = seq_ranges([(4, 4)])
    topic.trimmed = seq_ranges([(5, 5), (9, 9)])
    cut_to(topic, 6, harness)
    settle(topic, harness)
    assert (topic.loss_floor, topic.damage_floor, topic.trim_floor) == (4, 5, 6)
    assert (topic.losses, topic.damaged, topic.trimmed) == (((8, 8),), (), ((9, 9),))


def test_records_with_unreadable_lengths_are_removed_with_estimated_sizes(
    harness: EngineHarness, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = topic.bytes

    def unreadable(locator: Locator) -> RecordsView:
        raise Unreadable

    monkeypatch.setattr(harness, "records", unreadable)
    assert live_of(topic, 2, 0, 4, harness).record_count == 4
    assert cut_to(topic, 4, harness) == 3
    assert topic.count == 6
    assert 0 < topic.bytes < before
    assert cut_to(topic, 10, harness) == 9
    assert (topic.count, topic.bytes) == (0, 0)


# Replaced entries: extents replace writes or other extents


def extent(first_seq: int, count: int, index: int, segment: int = 1) -> IndexEntry:
    return IndexEntry(first_seq, count, in_extent(segment, index), 10_000, 0)


def replace(
    topic: Topic, harness: EngineHarness, *extents: IndexEntry, end_seq: int = 0
) -> list[Locator]:
    bounds = extents[0].first_seq, end_seq or extents[-1].last_seq + 1
    return replace_entries(topic, extents, *bounds, harness)


def state(topic: Topic) -> tuple[int, int, int]:
    return topic.start_seq, topic.count, topic.bytes


def layout(topic: Topic) -> list[tuple[int, int, int]]:
    """Return the first seq, the record count and the live count of each entry."""
    index = topic.index
    return [(*index.entry(at)[:2], index.live_count(at)) for at in range(len(index))]


def test_extents_replace_writes_in_parts_that_split_no_write(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacing, "STEP_EXTENTS", 1)
    fill(harness, 2, 3, 4, 1, 2)
    topic = harness.engine.topic("a")
    before = state(topic)
    extents = [extent(1, 2, 0), extent(3, 1, 1), extent(4, 3, 2), extent(7, 3, 3), extent(10, 3, 4)]
    found = []
    for part, first_seq, end_seq in parts(topic, extents, 1, 12):
        found.append(([entry.first_seq for entry in part], first_seq, end_seq))
        replace_entries(topic, part, first_seq, end_seq, harness)
        assert state(topic) == before
        assert topic.index.totals(0, len(topic.index)) == before[1:]
    assert found == [([1], 1, 3), ([3, 4, 7], 3, 10), ([10], 10, 13)]
    assert [first_seq for first_seq, _, _ in layout(topic)] == [1, 3, 4, 7, 10]
    assert [*parts(topic, [], 5, 4)] == []
    assert [*parts(topic, [], 5, 6)] == [([], 5, 7)]


def test_records_removed_before_the_replacement_stay_removed_in_the_extents(
    topic: Topic, harness: EngineHarness
) -> None:
    cut_to(topic, 2, harness)
    delete_runs(topic, [SeqRun(4, 3)], harness)
    before = state(topic)
    replace(topic, harness, extent(1, 5, 0), extent(6, 4, 1))
    assert layout(topic) == [(1, 5, 2), (6, 4, 3)]
    assert state(topic) == before
    assert topic.index.totals(0, 2) == before[1:]


def test_dead_records_between_two_extents_are_omitted(harness: EngineHarness) -> None:
    fill(harness, 9)
    topic = harness.engine.topic("a")
    delete_runs(topic, [SeqRun(4, 3)], harness)
    before = state(topic)
    replace(topic, harness, extent(1, 3, 0), extent(7, 3, 1))
    assert layout(topic) == [(1, 3, 3), (7, 3, 3)]
    assert state(topic) == before
    assert topic.index.totals(0, 2) == before[1:]


def test_records_in_memory_keep_their_index_entries(harness: EngineHarness) -> None:
    fill(harness, 2, 3)
    fill(harness, 2, 1, durability="ephemeral")
    fill(harness, 4, durability="disk")
    topic = harness.engine.topic("a")
    before, between = state(topic), [topic.index.entry(at) for at in (2, 3)]
    replace(topic, harness, extent(1, 5, 0), extent(9, 4, 1))
    assert layout(topic) == [(1, 5, 5), (6, 2, 2), (8, 1, 1), (9, 4, 4)]
    assert [topic.index.entry(at) for at in (1, 2)] == between
    assert state(topic) == before


def test_a_topic_emptied_before_the_replacement_stays_empty(harness: EngineHarness) -> None:
    fill(harness, 1)
    topic = harness.engine.topic("a")
    topic.index.drop(1)
    assert replace(topic, harness, extent(1, 1, 0)) == [in_extent(1, 0)]
    assert len(topic.index) == 0
