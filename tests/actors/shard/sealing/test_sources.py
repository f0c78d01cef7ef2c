"""Tests of the sources of a segment, and of the choice of segments to merge."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.actors.shard.sealing.sealing_support import (
    Sealer,
    delete,
    fill,
    seen,
)
from tests.formats.disk.segment_support import build_bytes, extents, plain, source
from topics.actors.shard.sealing import rewriting, sources
from topics.actors.shard.sealing.merging import (
    EXTENT_COST_BYTES,
    RUN_MAX_SEGMENTS,
    RUN_MIN_SEGMENTS,
    Candidate,
    LiveBytes,
    choose_run,
)
from topics.actors.shard.sealing.sources import GAP_BYTES, kept_runs
from topics.engine.locators import in_extent, in_log, is_extent, is_in_memory
from topics.engine.record_index import RecordIndex
from topics.formats.api.diff_body import TagMatch
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.segment_build import build
from topics.formats.ranges import IndexRun


def test_records_in_memory_keep_their_order_between_sealed_ones(client: Sealer) -> None:
    for durability in ("disk", "ephemeral", "memory", "ephemeral", "fsync"):
        client.put("a", durability=durability)
        fill(client, "a", rounds=8)
    before = seen(client)
    client.seal()
    assert seen(client) == before
    locators = [*client.engine.topic("a").index.locators()]
    assert any(is_in_memory(locator) for locator in locators)
    assert any(is_extent(locator) for locator in locators)


def test_a_write_may_be_split_over_extents_and_keeps_its_key(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewriting, "build", functools.partial(build, extent_records=4))
    client.append("a", *range(11), key="eleven")
    fill(client, "a")
    client.append("a", *range(30), key="thirty")
    fill(client, "a")
    before = seen(client)
    client.seal()
    assert len(client.engine.topic("a").index) > 10
    assert seen(client) == before
    client.kill()
    again = client.again()
    assert seen(again) == before
    assert again.append("a", 1, key="eleven") == (1, True)
    again.kill()


@pytest.mark.parametrize("steps", range(1, 8))
def test_a_delete_up_to_the_middle_of_a_write_between_two_steps_can_be_sealed(
    steps: int, client: Sealer
) -> None:
    """The topic then begins in the middle of a write that is in no extent. The flags of this write
    must not be used for an extent.
    """
    for _ in range(4):
        client.append(
            "a", records=[{"data": 1, "tag": "last" if index == 7 else None} for index in range(8)]
        )
        client.append("a", "x" * 600)  # each write fills a log file
    delete(client, "a", match=TagMatch("Eq", "last"))
    for _ in range(steps):
        client.step()
    delete(client, "a", before_seq=12)
    before = seen(client)
    client.seal()
    assert seen(client) == before
    client.kill()
    again = client.again()
    assert seen(again) == before
    again.kill()


# Segments


def view(count: int, size: int) -> ExtentView:
    (found,) = extents(build_bytes([source(1, 1, [plain(count, size)])[0]]))
    return found


def runs(found: ExtentView, dead: set[int], start: int = 0) -> list[IndexRun]:
    flags = bytes(index in dead for index in range(found.count)) if dead else None
    return [run for run in kept_runs(found, flags, start) if run is not None]


def test_all_records_from_the_start_of_the_topic_on_are_copied() -> None:
    assert runs(view(10, 50), set()) == [(0, 10)]
    assert runs(view(10, 50), set(), start=4) == [(4, 10)]
    assert runs(view(10, 50), set(), start=10) == []
    assert runs(view(10, 50), {*range(10)}) == []


def test_short_gaps_are_copied_and_long_gaps_are_omitted() -> None:
    found = view(100, 400)
    length = -(-GAP_BYTES // found.size(0, 1))
    assert runs(found, {*range(10, 10 + length - 1)}) == [(0, 100)]
    assert runs(found, {*range(10, 10 + length + 1)}) == [(0, 10), (11 + length, 100)]
    assert runs(found, {0, 1, 98, 99}) == [(2, 98)]


def test_a_large_dead_record_is_omitted() -> None:
    assert runs(view(5, 2 * GAP_BYTES), {1, 3}) == [(0, 1), (2, 3), (4, 5)]


def test_runs_extend_over_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "STEP_RECORDS", 7)
    found = view(60, 400)
    length = -(-GAP_BYTES // found.size(0, 1)) + 1
    dead = {5, 6, 7, 20, *range(30, 30 + length)}
    assert runs(found, dead) == [(0, 30), (30 + length, 60)]
    steps = [*kept_runs(found, bytes(60), 0)]
    assert steps.count(None) == 9


# Choice of segments to merge: many adjacent segments with few live records, and only if the merge
# frees enough space


FILE = 1 << 20  # the size of a segment, and the maximum size of a merged one


def candidates(*live: int | None, file_bytes: int = FILE, dead_bytes: int = 0) -> list[Candidate]:
    return [Candidate(number, each, file_bytes, dead_bytes) for number, each in enumerate(live, 1)]


def test_a_few_segments_are_not_merged() -> None:
    assert choose_run(candidates(*[1] * (RUN_MIN_SEGMENTS - 1)), FILE) == []
    assert choose_run(candidates(*[1] * RUN_MIN_SEGMENTS), FILE) == [*range(1, 9)]


def test_a_few_segments_are_merged_when_their_dead_records_would_fill_one() -> None:
    assert choose_run(candidates(FILE // 9, FILE // 9, dead_bytes=FILE // 2 - 1), FILE) == []
    assert choose_run(candidates(FILE // 9, FILE // 9, dead_bytes=FILE // 2), FILE) == [1, 2]
    assert choose_run(candidates(FILE // 9, dead_bytes=FILE), FILE) == [1]
    assert choose_run(candidates(FILE // 2 + 1, dead_bytes=FILE), FILE) == [], "it frees too little"


def test_live_records_that_do_not_fit_into_one_segment_are_not_merged() -> None:
    assert choose_run(candidates(*[FILE // 7] * 12), FILE) == []
    assert len(choose_run(candidates(*[FILE // 9] * 12), FILE)) == 9


def test_the_longest_run_is_chosen_and_an_excluded_segment_divides_runs() -> None:
    live: list[int | None] = [*[1] * 9, None, *[1] * 10, FILE, *[1] * 8]
    assert choose_run(candidates(*live), FILE) == [*range(11, 21)]


def test_the_length_of_a_run_is_bounded() -> None:
    assert len(choose_run(candidates(*[0] * 500), FILE)) == RUN_MAX_SEGMENTS


def test_a_large_segment_without_dead_records_is_not_rewritten_for_a_few_small_ones() -> None:
    large = Candidate(1, FILE // 2, FILE // 2, 0)
    small = [Candidate(number, 100, 100, 0) for number in range(2, 9)]
    assert choose_run([large, *small], FILE) == []
    # The small segments are merged with each other first.
    assert choose_run([large, *small, Candidate(9, 100, 100, 0)], FILE) == [*range(2, 10)]
    # The large segment is merged if its dead records are as large as the written data.
    aged = [each._replace(file_bytes=FILE // 4) for each in small]
    assert len(choose_run([large, *aged], FILE)) == 8


@given(st.lists(st.integers(0, FILE), max_size=60))
def test_remaining_segments_are_bounded_by_live_bytes_and_writes_by_sealed_bytes(
    live: list[int],
) -> None:
    """Simulate many seals with merges between them. The merges write fewer bytes than the seals."""
    remaining: list[Candidate] = []
    written = 0
    for number, each in enumerate(live):
        remaining.append(Candidate(number, each, FILE, 0))
        while run := choose_run(remaining, FILE):
            merged = [found for found in remaining if found.number in run]
            at = remaining.index(merged[0])
            size = sum(found.live_bytes or 0 for found in merged)
            written += size
            remaining[at : at + len(merged)] = [Candidate(1000 + number, size, size, 0)]
    assert written <= len(live) * FILE / 2
    total = sum(live)
    assert len(remaining) <= RUN_MIN_SEGMENTS * (1 + total / FILE) * 4


def test_space_is_counted_by_the_live_bytes_in_segments() -> None:
    index = RecordIndex()
    index.add(1, 10, in_extent(5, 0), 1000, 0)  # 4 of these are removed at the front
    index.take(0, 4, 400)
    index.add(11, 10, in_extent(6, 0), 1000, 0)  # 3 of these are removed in the middle
    index.take(1, 3, 300)
    index.add(21, 5, in_extent(6, 1), 500, 0)
    index.add(26, 5, in_log(4096), 500, 0)
    index.add(31, 1, in_extent(7, 0), 1, 0)
    index.take(4, 1, 1)
    topic: Any = SimpleNamespace(index=index, start_seq=5, sealed_seq=31)
    live_bytes = LiveBytes()
    assert sum(live_bytes.count(topic)) >= 5
    assert live_bytes.bytes == {
        5: 600 + EXTENT_COST_BYTES,
        6: 700 + 4 * EXTENT_COST_BYTES + 500 + EXTENT_COST_BYTES,
    }
    assert live_bytes.dead == {5: 400, 6: 300}


def test_a_topic_may_change_while_it_is_counted() -> None:
    index = RecordIndex()
    for number in range(1500):
        index.add(1 + number, 1, in_extent(1, number), 10, 0)
    topic: Any = SimpleNamespace(index=index, start_seq=1, sealed_seq=1500)
    live_bytes = LiveBytes()
    steps = live_bytes.count(topic)
    next(steps)
    index.drop(700)
    topic.start_seq = 701
    assert sum(steps) > 700
    assert live_bytes.bytes[1] == (512 + 800) * (10 + EXTENT_COST_BYTES)
