"""Tests of merging: segments with few live records are merged into one, and readers receive the
same records.
"""

from __future__ import annotations

import errno
import math
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.actors.shard.sealing.damage_support import flip, lost, walk
from tests.actors.shard.sealing.sealing_support import (
    Sealer,
    check_kill_and_restart,
    check_restart,
    copy,
    damage_newest_checkpoint,
    delete,
    eager_merges,
    extents,
    files,
    fill,
    findings,
    free_all,
    seen,
    small_extents,
)
from tests.support.log import failing
from topics.actors.shard.sealing import merging, rewriting, sealing
from topics.actors.shard.sealing.merging import Merging
from topics.actors.shard.sealing.rewriting import Rewriting
from topics.actors.shard.sealing.sources import LogFile, Segments
from topics.engine.locators import Locator, split_locator
from topics.engine.record_index import IndexEntry
from topics.engine.replacing import replace_entries
from topics.engine.topic import Topic
from topics.formats.api.diff_body import TagMatch
from topics.storage import disk
from topics.storage.disk import Damaged
from topics.storage.segments import segment_file as segment_file
from topics.storage.segments.merge_reader import MergeReader
from topics.storage.segments.segment_file import Segment, SegmentWriter
from topics.storage.segments.segment_store import SegmentStore

pytestmark = pytest.mark.slow

BUILDING: list[tuple[Any, str]] = [
    (MergeReader, "open"),
    (MergeReader, "read_ahead"),
    (MergeReader, "view"),
    (SegmentStore, "begin"),
    (SegmentWriter, "write"),
    (disk, "sync_directory"),
    (segment_file, "Segment"),
    (Segment, "check_tables"),
    (rewriting, "MappedSegment"),
    (Segment, "entries"),
]
SLOW = [f"slow{number}" for number in range(60)]


def age(client: Sealer, seals: int, seed: int = 1) -> None:
    """Fill the log with a fast topic that has a cap. Slow topics leave a few live records in each
    segment.
    """
    rng = random.Random(seed)
    if "fast" not in client.engine.topics:
        client.put("fast", cap_records=4)
        for name in SLOW:
            client.put(name, cap_records=4)
    until = client.sealing.reclaim.sealed + seals
    while client.sealing.reclaim.sealed < until:
        client.append("fast", "x" * 900)
        if rng.random() < 0.8:
            fill(client, rng.choice(SLOW), rounds=1, size=5)
        client.later(10)
        client.seal()


def segments_of(client: Sealer) -> set[int]:
    return {split_locator(locator)[0] for locator in extents(client)}


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    eager_merges(monkeypatch)


@pytest.fixture
def aged(client: Sealer, monkeypatch: pytest.MonkeyPatch) -> Sealer:
    """Return a shard whose next round merges segments."""
    with monkeypatch.context() as patch:
        patch.setattr(Merging, "merge", _no_merge)
        age(client, 12)
        fill(client, "mixed", rounds=8, size=200)
        age(client, 8, seed=2)
        delete(client, "mixed", match=TagMatch("Eq", "even"))
        free_all(client)
    assert len(segments_of(client)) > 8
    client.sealing.merging.is_due = True
    return client


async def _no_merge(*_: object) -> None:
    """Merge nothing."""


# Purpose of merging


def test_files_and_extents_are_bounded_by_the_live_records_for_any_length_of_history(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.actors.shard.sealing.merging.EXTENT_COST_BYTES", 64)
    counts: list[int] = []
    for _ in range(6):
        age(client, 55, seed=len(counts))
        free_all(client)
        counts.append(len(files(client.path, "segment")))
        assert segments_of(client) == {*client.shard.segments.segments}
    assert client.sealing.reclaim.sealed >= 330
    assert client.sealing.rewriting.merged > 100
    assert max(counts) <= 24
    assert len(extents(client)) <= 2 * len(SLOW) + 10
    check_kill_and_restart(client, seen(client))


@pytest.mark.usefixtures("eager")
def test_a_merge_changes_nothing_that_readers_or_writers_notice(aged: Sealer) -> None:
    before, old = seen(aged), segments_of(aged)
    aged.seal()
    assert aged.sealing.rewriting.merged >= 2
    assert seen(aged) == before
    assert len(segments_of(aged)) < len(old)
    free_all(aged)
    assert len(files(aged.path, "segment")) == len(segments_of(aged))
    assert findings(aged.path) == []
    check_kill_and_restart(aged, before)


def test_an_idle_shard_whose_records_are_deleted_shrinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Sealer(tmp_path / "data", file_bytes=64 << 10)
    for number in range(90):
        tag = "even" if number % 9 else "kept"
        client.append("a", records=[{"data": "x" * 900, "tag": tag}] * 8)
    free_all(client)
    client.seal()
    assert len(segments_of(client)) > 8
    assert not client.sealing.merging.is_due
    before = sum(path.stat().st_size for path in files(client.path, "segment"))
    with monkeypatch.context() as patch:
        patch.setattr(sealing, "RETRY_INTERVAL_S", math.inf)  # no automatic checkpoint
        patch.setattr(merging, "EXTENT_COST_BYTES", 64)
        delete(client, "a", match=TagMatch("Eq", "even"))
        client.seal()
        assert not client.sealing.rewriting.merged, "more deletes may follow soon"
        client.seal()
        assert client.sealing.rewriting.merged > 8
    free_all(client)
    assert sum(path.stat().st_size for path in files(client.path, "segment")) < before / 3
    assert len(client.shown("a")) == 80
    check_kill_and_restart(client, seen(client))


@pytest.mark.usefixtures("eager")
def test_an_install_runs_in_steps_of_some_extents_and_a_stop_completes_it(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[int] = []
    small_extents(monkeypatch, 2)
    with monkeypatch.context() as patch:
        patch.setattr(Merging, "merge", _no_merge)
        fill(client, "mixed", rounds=16, size=200)
        age(client, 4)
        delete(client, "mixed", match=TagMatch("Eq", "even"))
        free_all(client)
    client.sealing.merging.is_due = True

    def noting(topic: Topic, found: list[IndexEntry], *rest: Any) -> list[Locator]:
        if topic.name == "mixed":
            parts.append(len(found))
        return replace_entries(topic, found, *rest)

    monkeypatch.setattr(rewriting, "replace_entries", noting)
    before = seen(client)
    while len(parts) < 3:
        assert client.step()
        if parts:
            assert seen(client) == before
    fill(client, "mixed", rounds=1)
    delete(client, "mixed", match=TagMatch("Eq", "o3"))
    before = seen(client)
    client.stop()
    assert len(parts) > 4
    assert max(parts) <= 3
    check_restart(client, before)


# Crashes


@pytest.mark.usefixtures("eager")
def test_a_kill_between_any_two_steps_loses_nothing(aged: Sealer, tmp_path: Path) -> None:
    before, number = seen(aged), 0
    continues = True
    while continues:
        continues = aged.step()
        number += 1
        if number % 3 and not aged.sealing.rewriting.is_installing:
            continue
        _starts_alike(aged, tmp_path / "copy", before)
    assert aged.sealing.rewriting.merged
    for _ in range(3):
        aged.checkpoint()
        _starts_alike(aged, tmp_path / "copy", before)
        _starts_alike(aged, tmp_path / "copy", before, damage=damage_newest_checkpoint)


def _starts_alike(
    client: Sealer,
    target: Path,
    expected: Any,
    damage: Callable[[Path], None] = lambda _: None,
) -> None:
    """Start a shard on a copy of the files, as after a kill, and compare its state."""
    copy(client.path, target)
    damage(target)
    again = Sealer(target, now=client.now, file_bytes=client.wal.file_bytes)
    assert seen(again) == expected
    again.kill()


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144])
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_changes_during_a_merge_are_applied_to_the_merged_segment(
    aged: Sealer, steps: int, how: str
) -> None:
    for number in range(1, 400):
        continues = aged.step()
        if number % steps == 0:
            _change(aged, number)
        if not continues:
            break
    before = seen(aged)
    if steps % 2:
        aged.seal()
        free_all(aged)
        assert seen(aged) == before
    getattr(aged, how)()
    check_restart(aged, before)


def _change(client: Sealer, number: int) -> None:
    rng = random.Random(number)
    names = sorted({*client.engine.topics} - {"fast"})
    name = rng.choice(names)
    topic = client.engine.topic(name)
    match rng.randrange(5 if len(names) > 3 else 4):
        case 0:
            fill(client, name, rounds=2, size=5)
        case 1:
            delete(client, name, match=TagMatch("Eq", "odd"))
        case 2:
            delete(client, name, before_seq=topic.start_seq + 1)
        case 3:
            client.put(name, cap_records=rng.randrange(1, 4))
        case _:
            client.delete(name)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("step", ["_build", "_install"])
def test_no_segment_remains_if_all_records_are_deleted_during_a_merge(
    aged: Sealer, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(Rewriting, step)

    def after_all_deleted(
        rewriting: Rewriting, sources: LogFile | Segments, *arguments: Any
    ) -> Any:
        if isinstance(sources, Segments):
            for name in aged.engine.topics:
                delete(aged, name, before_seq=1 << 40)
        return original(rewriting, sources, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Rewriting, step, after_all_deleted)
        aged.seal()
    assert aged.sealing.rewriting.merged
    free_all(aged)
    assert files(aged.path, "segment") == []
    assert findings(aged.path) == []
    check_kill_and_restart(aged, seen(aged))


# Errors


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "no files"), Damaged(Path(), 0, "bad")])
@pytest.mark.parametrize(("where", "what"), BUILDING, ids=[what for _, what in BUILDING])
def test_a_failed_merge_leaves_no_files_and_a_later_round_merges(
    aged: Sealer, where: Any, what: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, files_before = seen(aged), files(aged.path, "segment")
    with monkeypatch.context() as patch:
        failures = _fail(patch, where, what, error)
        aged.seal()
        assert failures
        assert not aged.sealing.rewriting.merged
        assert files(aged.path, "segment") == files_before
        assert seen(aged) == before
        _continues_sealing(aged)
    before = seen(aged)
    assert not aged.sealing.rewriting.is_installing
    _merge_again(aged)
    free_all(aged)
    assert findings(aged.path) == []
    assert seen(aged) == before
    check_kill_and_restart(aged, before)
    error.__traceback__ = None  # a parameter outlives the test, and its frames hold mapped files


def _fail(patch: pytest.MonkeyPatch, where: Any, what: str, error: Exception) -> list[None]:
    """Let a call fail when a merge makes it, but not when other tasks do. Return the list to which
    each failure is added.
    """
    failures: list[None] = []
    merge = Merging._merge

    async def merging(*arguments: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(where, what, fails)
            return await merge(*arguments)

    def fails(*_: Any) -> None:
        failures.append(None)
        raise error

    patch.setattr(Merging, "_merge", merging)
    return failures


def _continues_sealing(client: Sealer) -> None:
    sealed, written = client.sealing.reclaim.sealed, client.sealing.checkpoints.written
    age(client, 3)
    client.checkpoint()
    assert client.sealing.reclaim.sealed > sealed
    assert client.sealing.checkpoints.written > written


def _merge_again(client: Sealer) -> None:
    client.sealing.merging.again_at = 0.0
    client.sealing.merging.is_due = True
    client.seal()
    assert client.sealing.rewriting.merged


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_complete_merged_segment_is_installed_despite_disk_errors(
    aged: Sealer, is_stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    install = Rewriting._install

    def without_files(
        rewriting: Rewriting, sources: LogFile | Segments, *rest: Any
    ) -> Iterator[None]:
        if isinstance(sources, LogFile):
            yield from install(rewriting, sources, *rest)
            return
        delete(aged, "mixed", match=TagMatch("Eq", "odd"))
        aged.shard.segments.maps.close()  # the next read opens a segment again
        steps, is_done = install(rewriting, sources, *rest), False
        while not is_done:
            with pytest.MonkeyPatch.context() as inner:
                for opening in ("os.open", "io.open"):
                    inner.setattr(opening, failing(errno.EMFILE))
                is_done = next(steps, steps) is steps
            yield

    monkeypatch.setattr(Rewriting, "_install", without_files)
    while not aged.sealing.rewriting.is_installing:
        assert aged.step()
    if not is_stopped:
        aged.seal()
        assert aged.sealing.rewriting.merged
        free_all(aged)
    before = seen(aged)
    assert not [record for record in before["mixed"]["records"] if record["$tag"] == "odd"]
    if is_stopped:
        aged.stop()
        assert aged.sealing.rewriting.merged
    else:
        aged.kill()
    assert findings(aged.path) == []
    check_restart(aged, before)


@pytest.mark.usefixtures("eager")
def test_no_segments_are_merged_without_space_for_the_next_log_file(
    aged: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(aged.path, "segment")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("topics.actors.shard.sealing.merging.check_space", full)
    aged.seal()
    assert files(aged.path, "segment") == before
    assert not aged.sealing.rewriting.merged


# Damage


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("where", ["blob", "tables", "directory"])
def test_a_damaged_segment_is_not_merged_and_its_readers_receive_a_report(
    aged: Sealer, where: str
) -> None:
    index = aged.engine.topic("mixed").index
    number, extent = split_locator(index.entry(len(index) // 2)[2])
    segment = aged.shard.segments.segments[number]
    entry = [*segment.entries()][extent]
    offset = {
        "blob": entry.offset + entry.blob_bytes - 20,
        "tables": entry.tables_at + 3,
        "directory": segment.trailer.directory_at + 80 * segment.trailer.entry_count - 30,
    }[where]
    flip(segment.path, offset)
    aged.shard.segments.maps.close()
    for _ in range(4):
        aged.sealing.merging.is_due = True
        aged.seal()
    assert number in segments_of(aged)
    assert segment.path.exists()
    assert aged.sealing.rewriting.merged >= 2
    if where != "directory":  # the directory was read at the start
        _, gaps = walk(aged, aged.engine.topic("mixed"))
        assert lost(gaps)
