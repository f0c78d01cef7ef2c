"""Contents of a merged segment: which records are copied."""

from __future__ import annotations

import pytest

from tests.formats.disk.segment_support import build_bytes, extents, plain, source
from topics.actors.shard.sealing import merge_contents
from topics.actors.shard.sealing.merge_contents import GAP_BYTES, kept_runs
from topics.formats.disk.extent_view import ExtentView
from topics.formats.ranges import IndexRun


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


def test_short_gaps_are_carried_along_and_long_ones_left_out() -> None:
    found = view(100, 400)
    length = -(-GAP_BYTES // found.size(0, 1))
    assert runs(found, {*range(10, 10 + length - 1)}) == [(0, 100)]
    assert runs(found, {*range(10, 10 + length + 1)}) == [(0, 10), (11 + length, 100)]
    assert runs(found, {0, 1, 98, 99}) == [(2, 98)]


def test_a_large_dead_record_is_left_out() -> None:
    assert runs(view(5, 2 * GAP_BYTES), {1, 3}) == [(0, 1), (2, 3), (4, 5)]


def test_runs_reach_over_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_contents, "STEP_RECORDS", 7)
    found = view(60, 400)
    length = -(-GAP_BYTES // found.size(0, 1)) + 1
    dead = {5, 6, 7, 20, *range(30, 30 + length)}
    assert runs(found, dead) == [(0, 30), (30 + length, 60)]
    steps = [*kept_runs(found, bytes(60), 0)]
    assert steps.count(None) == 9
