"""Which segments are merged: many neighbours of which little lives, and only if it pays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from topics.actors.shard.sealing.merging import (
    EXTENT_COST_BYTES,
    RUN_MAX_SEGMENTS,
    RUN_MIN_SEGMENTS,
    Candidate,
    LiveRoom,
    choose_run,
)
from topics.engine.locators import in_extent, in_log
from topics.engine.record_index import RecordIndex

FILE = 1 << 20  # of a segment, and the most that a merged one holds


def candidates(*live: int | None, file_bytes: int = FILE, dead_bytes: int = 0) -> list[Candidate]:
    return [Candidate(number, each, file_bytes, dead_bytes) for number, each in enumerate(live, 1)]


def test_a_few_segments_stay_as_they_are() -> None:
    assert choose_run(candidates(*[1] * (RUN_MIN_SEGMENTS - 1)), FILE) == []
    assert choose_run(candidates(*[1] * RUN_MIN_SEGMENTS), FILE) == [*range(1, 9)]


def test_a_few_segments_are_merged_when_their_dead_records_would_fill_one() -> None:
    assert choose_run(candidates(FILE // 9, FILE // 9, dead_bytes=FILE // 2 - 1), FILE) == []
    assert choose_run(candidates(FILE // 9, FILE // 9, dead_bytes=FILE // 2), FILE) == [1, 2]
    assert choose_run(candidates(FILE // 9, dead_bytes=FILE), FILE) == [1]
    assert choose_run(candidates(FILE // 2 + 1, dead_bytes=FILE), FILE) == [], "it does not pay"


def test_live_records_that_do_not_fit_one_segment_stay() -> None:
    assert choose_run(candidates(*[FILE // 7] * 12), FILE) == []
    assert len(choose_run(candidates(*[FILE // 9] * 12), FILE)) == 9


def test_the_longest_run_is_chosen_and_a_segment_that_stays_divides_runs() -> None:
    live: list[int | None] = [*[1] * 9, None, *[1] * 10, FILE, *[1] * 8]
    assert choose_run(candidates(*live), FILE) == [*range(11, 21)]


def test_a_run_has_a_bound() -> None:
    assert len(choose_run(candidates(*[0] * 500), FILE)) == RUN_MAX_SEGMENTS


def test_a_large_segment_without_dead_records_is_not_written_again_for_a_few_small_ones() -> None:
    large = Candidate(1, FILE // 2, FILE // 2, 0)
    small = [Candidate(number, 100, 100, 0) for number in range(2, 9)]
    assert choose_run([large, *small], FILE) == []
    # Together they become larger first.
    assert choose_run([large, *small, Candidate(9, 100, 100, 0)], FILE) == [*range(2, 10)]
    # Where as much has died as is written, it is.
    aged = [each._replace(file_bytes=FILE // 4) for each in small]
    assert len(choose_run([large, *aged], FILE)) == 8


@given(st.lists(st.integers(0, FILE), max_size=60))
def test_what_is_left_follows_what_lives_and_what_is_written_what_was_sealed(
    live: list[int],
) -> None:
    """Seal after seal with merges between them: the written bytes are less than the sealed ones."""
    standing: list[Candidate] = []
    written = 0
    for number, each in enumerate(live):
        standing.append(Candidate(number, each, FILE, 0))
        while run := choose_run(standing, FILE):
            merged = [found for found in standing if found.number in run]
            at = standing.index(merged[0])
            size = sum(found.live_bytes or 0 for found in merged)
            written += size
            standing[at : at + len(merged)] = [Candidate(1000 + number, size, size, 0)]
    assert written <= len(live) * FILE / 2
    total = sum(live)
    assert len(standing) <= RUN_MIN_SEGMENTS * (1 + total / FILE) * 4


def test_room_is_counted_by_what_is_live_in_segments() -> None:
    index = RecordIndex()
    index.add(1, 10, in_extent(5, 0), 1000, 0)  # of which 4 went from the front
    index.take(0, 4, 400)
    index.add(11, 10, in_extent(6, 0), 1000, 0)  # of which 3 went from the middle
    index.take(1, 3, 300)
    index.add(21, 5, in_extent(6, 1), 500, 0)
    index.add(26, 5, in_log(4096), 500, 0)
    index.add(31, 1, in_extent(7, 0), 1, 0)
    index.take(4, 1, 1)
    topic: Any = SimpleNamespace(index=index, start_seq=5, sealed_seq=31)
    room = LiveRoom()
    assert sum(room.count(topic)) >= 5
    assert room.bytes == {
        5: 600 + EXTENT_COST_BYTES,
        6: 700 + 4 * EXTENT_COST_BYTES + 500 + EXTENT_COST_BYTES,
    }
    assert room.dead == {5: 400, 6: 300}


def test_a_topic_may_change_while_it_is_counted() -> None:
    index = RecordIndex()
    for number in range(1500):
        index.add(1 + number, 1, in_extent(1, number), 10, 0)
    topic: Any = SimpleNamespace(index=index, start_seq=1, sealed_seq=1500)
    room = LiveRoom()
    steps = room.count(topic)
    next(steps)
    index.drop(700)
    topic.start_seq = 701
    assert sum(steps) > 700
    assert room.bytes[1] == (512 + 800) * (10 + EXTENT_COST_BYTES)
