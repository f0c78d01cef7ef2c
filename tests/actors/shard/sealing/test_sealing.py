"""Tests of sealing step by step: it changes nothing that readers and writers can observe, for any
events between two steps.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.actors.shard.sealing.sealing_support import (
    Sealer,
    Seen,
    check_kill_and_restart,
    check_restart,
    copy,
    delete,
    ended,
    extents,
    files,
    fill,
    findings,
    sealed,
    seen,
    small_extents,
)
from topics.actors.shard import record_store
from topics.actors.shard.sealing import rewriting, sealing
from topics.actors.shard.sealing.reclaim import Pin
from topics.engine import retention
from topics.engine.changes import delete_topic
from topics.engine.locators import is_extent
from topics.engine.now import Now
from topics.formats.api.diff_body import TagMatch
from topics.storage.segments.segment_file import SegmentWriter


@pytest.mark.slow
def test_topics_are_the_same_before_and_after_sealing_and_a_restart(client: Sealer) -> None:
    client.put("capped", cap_records=5)
    client.put("old", ttl_ms=50)
    client.put("memory", durability="ephemeral")
    fill(client, "a", "capped", "old", "memory")
    delete(client, "a", match=TagMatch("Eq", "odd"))
    client.later(20)
    fill(client, "a", "old")
    before = seen(client)
    client.seal()
    assert client.sealing.reclaim.sealed > 5
    assert sealed(client, "a")
    assert seen(client) == before
    client.kill()
    again = client.again()
    after = seen(again)
    del before["memory"], after["memory"]
    assert after == before
    assert findings(client.path) == []
    again.kill()


def test_the_next_expiry_is_that_of_the_first_live_record_also_within_an_extent(
    client: Sealer,
) -> None:
    client.put("old", ttl_ms=100_000)
    for _ in range(6):
        client.append("old", 1, 2)
        client.later(10)
    fill(client, "a")
    client.seal()
    topic = client.engine.topic("old")
    assert all(map(is_extent, topic.index.locators()))
    assert topic.index.entry(0)[1] > 2
    for left in range(10, -2, -2):
        due = retention.next_expiry(topic, client.engine.store)
        assert due is not None
        client.engine.expire(topic, Now(due - 1, 0))
        assert topic.count == left + 2
        client.engine.expire(topic, Now(due, 0))
        assert topic.count == left
    assert retention.next_expiry(topic, client.engine.store) is None


def test_a_round_frees_large_numbers_of_removed_records(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_store, "RELEASE_STEP", 2)
    client.put("memory", durability="ephemeral")
    fill(client, "memory", "a", rounds=6)
    client.put("memory", cap_records=1)
    delete(client, "a", before_seq=9)
    store, before = client.commits.store, seen(client)
    assert len(store._in_memory) == 6
    client.seal()
    assert len(store._in_memory) == 1
    assert not store.release_next()
    assert seen(client) == before


def recreate(client: Sealer) -> None:
    client.delete("a")
    fill(client, "a", rounds=2)


EVENTS: dict[str, Callable[[Sealer], None]] = {
    "delete by tag": lambda client: delete(client, "a", match=TagMatch("Eq", "odd")),
    "delete below": lambda client: delete(client, "a", before_seq=9),
    "delete all": lambda client: delete(client, "a", before_seq=1 << 40),
    "a cap": lambda client: client.put("a", cap_records=3),
    "a topic is deleted": lambda client: client.delete("a"),
    "a topic is recreated": lambda client: recreate(client),
    "more writes": lambda client: fill(client, "a", "b", rounds=2),
    "another class": lambda client: client.put(
        "a", durability="fsync", idempotency_window_ms=500_000
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("event", EVENTS)
def test_changes_between_any_two_steps_have_the_same_result(
    event: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_extents(monkeypatch, 3)  # some of them split a write

    def run(steps: int) -> tuple[Seen, Seen, bool]:
        client = Sealer(copy(origin, tmp_path / "data"))
        continues = all(client.step() for _ in range(steps))
        EVENTS[event](client)
        client.seal()
        shown = seen(client)
        client.kill()
        assert findings(client.path) == []
        again = client.again()
        found = seen(again)
        again.kill()
        return shown, found, continues

    first = Sealer(tmp_path / "origin")
    fill(first, "a", "b", rounds=6)
    first.kill()
    origin = first.path
    expected, _, _ = run(0)
    # Every fourth step, starting at a different step for each event.
    steps, continues = -([*EVENTS].index(event) % 4), True
    while continues:
        steps += 4
        shown, found, continues = run(steps)
        assert shown == expected, f"after {steps} steps"
        assert found == expected, f"after {steps} steps and a restart"
    assert steps > 30


def test_a_topic_whose_delete_is_undone_during_sealing_keeps_its_records(client: Sealer) -> None:
    fill(client, "a", "b", rounds=6)
    before = seen(client)
    change = delete_topic.decide(client.engine.table, "a", False, client.now)
    assert change is not None
    client.submit(change)  # not passed to the writer, so the log does not contain it
    while client.sealing.reclaim.sealed < 1:
        assert client.step()
    client.commits._roll_back(OSError(errno.ENOSPC, "full"))
    client.wal.resume(client.wal._start)
    try:
        client.seal()
    except OSError as error:
        assert error.errno == errno.ENOSPC  # noqa: PT017 - the error is optional
    assert seen(client) == before
    client.checkpoint()
    check_kill_and_restart(client, before)


# Pace


def test_full_log_files_are_sealed_after_a_burst_or_when_the_backlog_is_too_large(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "GROWTH_MIN_BYTES", 1)

    def until_complete(files: int) -> None:
        while client.wal.count_full_files(client.sealing.reclaim.replay_from) < files:
            client.append("t", records=[{"data": "x" * 100}])

    until_complete(1)
    client.seal()
    assert client.sealing.reclaim.sealed == 0, "the log has grown since the last check"
    client.seal()
    assert client.sealing.reclaim.sealed == 1, "the log has not grown"
    until_complete(1)
    client.seal()
    until_complete(2)
    client.seal()
    assert client.sealing.reclaim.sealed == 3, "the backlog is too large"


def test_pauses_become_shorter_as_the_backlog_grows() -> None:
    pauses = [
        sealing.pause_after(0.001, waiting) for waiting in range(sealing.BACKLOG_MAX_FILES + 2)
    ]
    assert pauses[: sealing.BACKLOG_NORMAL_FILES + 1] == pytest.approx(
        [0.006] * (sealing.BACKLOG_NORMAL_FILES + 1)
    )
    assert pauses[sealing.BACKLOG_NORMAL_FILES :] == sorted(
        pauses[sealing.BACKLOG_NORMAL_FILES :], reverse=True
    )
    assert pauses[sealing.BACKLOG_MAX_FILES - 1] > 0
    assert pauses[sealing.BACKLOG_MAX_FILES :] == [0.0, 0.0]
    assert sealing.pause_after(1.0, 0) == sealing.PAUSE_MAX_S


# Rewriting: a segment is written in parts, and an interrupted install is complete or has no effect


def test_a_segment_is_written_in_parts_with_pauses_between_steps(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, pauses = list[int](), list[float]()
    original, pause = SegmentWriter.write, client.sealing.rewriting._pause

    def write(writer: SegmentWriter, chunks: Any) -> None:
        written.append(sum(map(len, chunks)))
        original(writer, chunks)

    async def noting(step_began: float) -> None:
        pauses.append(step_began)
        await pause(step_began)

    monkeypatch.setattr(SegmentWriter, "write", write)
    monkeypatch.setattr(rewriting, "WRITE_BYTES", 4096)
    monkeypatch.setattr(client.sealing.rewriting, "_pause", noting)
    fill(client, "a", "b", rounds=6)
    client.seal()
    assert extents(client)
    assert len(written) >= 2
    assert max(written) <= 2 * rewriting.WRITE_BYTES
    assert len(pauses) > len(written)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_kill_or_stop_during_an_install_seals_no_record_twice(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.engine.replacing.STEP_EXTENTS", 1)
    small_extents(monkeypatch, 4)
    with ended(Sealer(tmp_path / "data", file_bytes=12 << 10)) as client:
        fill(client, "a", "b", "c", rounds=20)
        before = seen(client)
        while not client.sealing.rewriting.is_installing:
            assert client.step()
        client.step()
        assert seen(client) == before
        assert client.sealing.rewriting.is_installing
        getattr(client, how)()
        check_restart(client, before)


def test_a_log_file_is_unmapped_when_it_is_sealed(client: Sealer) -> None:
    fill(client, "a", rounds=60)
    assert client.shown("a")
    assert mapped_files(client.path / "wal") != set()
    pin = Pin()
    client.sealing.request_checkpoint(pin, lambda _: None)
    client.seal()
    sealed_files = {path for path in files(client.path, "wal") if path.suffix == ".wal"}
    assert len(sealed_files) > 3, "the pin keeps them"
    assert mapped_files(client.path / "wal") <= {max(sealed_files)}
    assert client.shown("a")
    assert mapped_files(client.path / "wal") <= {max(sealed_files)}


def test_a_reader_keeps_the_map_of_a_sealed_file(client: Sealer) -> None:
    fill(client, "a", rounds=1)
    page = client.page("a")
    before = [bytes(chunk) for chunk in page.chunks]
    fill(client, "b", rounds=30)
    client.seal()
    assert sealed(client, "a")
    assert [bytes(chunk) for chunk in page.chunks] == before


def mapped_files(folder: Path) -> set[Path]:
    """Return the log files below the folder that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {Path(line.split(maxsplit=5)[5]) for line in lines if str(folder) in line}
    return {path for path in paths if path.suffix == ".wal"}
