"""Sources of a segment: writes that are split, cut or in memory, and live records of extents."""

from __future__ import annotations

import functools

import pytest

from tests.actors.shard.sealing.sealing_support import (
    Sealer,
    delete,
    fill,
    seen,
)
from tests.formats.disk.segment_support import build_bytes, extents, plain, source
from topics.actors.shard.sealing import rewriting, sources
from topics.actors.shard.sealing.sources import GAP_BYTES, kept_runs
from topics.engine.locators import is_extent, is_in_memory
from topics.formats.api.diff_body import TagMatch
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.segment_build import build
from topics.formats.ranges import IndexRun


def test_records_in_memory_stay_between_sealed_ones(client: Sealer) -> None:
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
    """The topic begins now in the middle of a write that is in no extent: none of its flags may
    become an extent's.
    """
    for _ in range(4):
        client.append(
            "a", records=[{"data": 1, "tag": "last" if index == 7 else None} for index in range(8)]
        )
        client.append("a", "x" * 600)  # each write has its log file
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


def test_short_gaps_are_carried_along_and_long_ones_left_out() -> None:
    found = view(100, 400)
    length = -(-GAP_BYTES // found.size(0, 1))
    assert runs(found, {*range(10, 10 + length - 1)}) == [(0, 100)]
    assert runs(found, {*range(10, 10 + length + 1)}) == [(0, 10), (11 + length, 100)]
    assert runs(found, {0, 1, 98, 99}) == [(2, 98)]


def test_a_large_dead_record_is_left_out() -> None:
    assert runs(view(5, 2 * GAP_BYTES), {1, 3}) == [(0, 1), (2, 3), (4, 5)]


def test_runs_reach_over_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "STEP_RECORDS", 7)
    found = view(60, 400)
    length = -(-GAP_BYTES // found.size(0, 1)) + 1
    dead = {5, 6, 7, 20, *range(30, 30 + length)}
    assert runs(found, dead) == [(0, 30), (30 + length, 60)]
    steps = [*kept_runs(found, bytes(60), 0)]
    assert steps.count(None) == 9
