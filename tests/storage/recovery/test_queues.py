"""Queues after a restart: which jobs are leased, claimable, delayed or being moved."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.jobs import (
    DYING,
    FREE,
    HELD,
    Known,
    ack,
    all_known,
    begin_move,
    claim,
    end_move,
    extend,
    known,
    nack,
)
from tests.support.log import Client, LossyDisk, append_streamed, log_files
from tests.support.recovery import frames_of
from topics.engine.now import Now
from topics.formats.disk.frames import FRAME_HEADER_BYTES, FrameKind

HOUR_MS = 3_600_000


def later(client: Client, ms: int) -> Now:
    """Return the time after a restart: the wall clock continues, and the monotonic clock starts
    anew.
    """
    return Now(client.now.ts + ms, 17)


def queue(path: Path, **config: object) -> Client:
    client = Client(path)
    client.put("q", **{"type": "queue", "leases_durable": True, **config})
    return client


def restarted(client: Client, ms: int = 0, *, stop: bool = False) -> Client:
    """Restart the process after `ms` milliseconds."""
    path, now = client.wal.folder.parent.parent, later(client, ms)
    if stop:
        client.stop()
    else:
        client.kill()
    return Client(path, now=now)


def known_jobs(client: Client, name: str = "q") -> Known:
    return known(client.engine.queue(name), client.now)


def busy(path: Path, after_step: Callable[[Client], None] = lambda _: None) -> Client:
    """Fill a queue with jobs in every state. ``after_step`` is called after each step."""
    client = queue(path, max_deliveries=2, dead_letter="d", durability="fsync")
    steps: list[Callable[[], object]] = [
        lambda: client.append("q", *range(12)),
        lambda: client.append(
            "q", records=[{"data": 1, "delay_ms": 50}, {"data": 2}, {"data": 3, "delay_ms": 90_000}]
        ),
        lambda: claim(client, "q", 6),
        lambda: nack(client, "q", 2, 3),
        lambda: nack(client, "q", 4, delay_ms=30_000),
        lambda: extend(client, "q", 1, 6, lease_ms=HOUR_MS),
        lambda: ack(client, "q", 5, 77),
        lambda: claim(client, "q", 3, node="v", lease_ms=500),
        lambda: nack(client, "q", 3, 2, node="v"),
        lambda: client.append("log", 1, 2),
        lambda: claim(client, "q", 2, node="v"),
        lambda: begin_move(client, "q", 1),
        lambda: end_move(client, "q", 3),
        lambda: begin_move(client, "q"),
        lambda: client.delete_records("q", before_seq=2),
        lambda: claim(client, "q", 2),
    ]
    for step in steps:
        client.later(7)
        step()
        after_step(client)
    return client


# State that a restart restores


def test_a_lease_that_expired_while_the_server_was_down_is_claimable(tmp_path: Path) -> None:
    client = queue(tmp_path)
    client.append("q", 1)
    claim(client, "q", lease_ms=500)
    client = restarted(client, 500)
    assert known_jobs(client).rows[1].state is HELD, "a lease is valid at its deadline"
    client = restarted(client, 1)
    assert known_jobs(client).rows == {1: (FREE, 0, 0, 1, "")}
    (job,) = claim(client, "q")
    assert job.deliveries == 2
    client.kill()


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("durable", [False, True])
def test_delays_continue_by_the_wall_clock_across_a_restart(
    tmp_path: Path, stop: bool, durable: bool
) -> None:
    client = queue(tmp_path, leases_durable=durable)
    records = [{"data": 1, "delay_ms": 1000}, {"data": 2}, {"data": 3, "delay_ms": 9000}]
    client.append("q", records=records)
    due = client.now.ts + 9000
    client = restarted(client, 1000, stop=stop)
    assert known_jobs(client).delays.get(3) == due
    assert [claim(client, "q")[0].seq for _ in "21"] == [2, 1], "in the order of their times"
    client = restarted(client, 7999, stop=stop)
    assert 3 not in [job.seq for job in claim(client, "q", 9)]
    client = restarted(client, 1, stop=stop)
    assert 3 in [job.seq for job in claim(client, "q", 9)]
    client.kill()


def test_delays_of_a_streamed_append_are_restored_from_its_blob(tmp_path: Path) -> None:
    client = queue(tmp_path)
    records = [{"data": 1, "delay_ms": 4000}, {"data": 2}]
    append_streamed(client, "q", records=records)
    before = known_jobs(client)
    assert before.delays == {1: client.now.ts + 4000}
    client = restarted(client)
    assert known_jobs(client) == before
    client.kill()


@pytest.mark.parametrize("durable", [False, True])
def test_a_move_to_the_dead_letter_topic_continues_after_a_kill(
    tmp_path: Path, durable: bool
) -> None:
    client = queue(tmp_path, max_deliveries=1, dead_letter="d", leases_durable=durable)
    client.append("q", 1, 2, 3)
    claim(client, "q", 3)
    nack(client, "q", 1, 2, 3)
    assert claim(client, "q", 3) == []
    assert begin_move(client, "q", 2) == [1, 2]
    client = restarted(client)
    assert known_jobs(client).rows[1] == known_jobs(client).rows[2] == (DYING, 0, 0, 1, "d")
    assert 1 not in [job.seq for job in claim(client, "q", 9)]
    assert {1, 2} <= {*begin_move(client, "q")}
    end_move(client, "q", 1, 2)
    for stop in (False, True, False):
        client = restarted(client, stop=stop)
        assert known_jobs(client).dead_lettered == 2
    assert not known_jobs(client).rows.keys() & {1, 2}
    client.kill()


def test_no_job_is_held_longer_than_the_maximum_lease_after_a_clock_step(tmp_path: Path) -> None:
    client = queue(tmp_path)
    client.append("q", 1, 2)
    client.append("q", records=[{"data": 1, "delay_ms": 1000}])
    claim(client, "q", 2)
    nack(client, "q", 2, delay_ms=1000)
    client = restarted(client, -1000 * HOUR_MS)
    client.later(24 * HOUR_MS + 1)
    assert {job.seq for job in claim(client, "q", 9)} == {1, 2}
    client.later(29 * 24 * HOUR_MS)
    assert 3 in {job.seq for job in claim(client, "q", 9)}
    client.kill()


# A log that ends at any frame


@pytest.fixture
def no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable syncs, for tests that open a log many times and simulate no power failure."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(os, "fdatasync", lambda _: None)


@pytest.mark.parametrize("stop", [False, True], ids=["kill", "stop"])
def test_jobs_in_every_state_are_restored_as_they_were(tmp_path: Path, stop: bool) -> None:
    client = busy(tmp_path)
    before = all_known(client)
    states = {row.state for row in before["q"].rows.values()}
    assert states == {HELD, FREE, DYING}
    assert before["q"].delays
    assert before["q"].dead_lettered == 1
    for _ in range(2):  # A second restart changes nothing
        client = restarted(client, stop=stop)
        assert all_known(client) == before
    client.kill()


@pytest.mark.slow
@pytest.mark.usefixtures("no_syncs")
def test_a_kill_between_any_two_frames_keeps_all_changes_acknowledged_before_it(
    tmp_path: Path,
) -> None:
    acknowledged: list[tuple[int, Known]] = [(0, Known({}, {}, 0))]
    client = busy(
        tmp_path / "data",
        lambda client: acknowledged.append((client.wal.next_lsn, known_jobs(client))),
    )
    path, end = log_files(tmp_path / "data")[0], client.now
    acknowledged = [(lsn, aged(each, end)) for lsn, each in acknowledged]
    client.kill()
    content = path.read_bytes()
    frames = frames_of(path)
    for offset, header in frames:
        expected = [each for lsn, each in acknowledged if lsn <= header.lsn][-1]
        for cut in cuts(offset, header.end - header.lsn, header.kind == FrameKind.LEASE):
            target = tmp_path / "cut"
            shutil.rmtree(target, ignore_errors=True)
            (target / "wal" / "00").mkdir(parents=True)
            (target / "wal" / "00" / path.name).write_bytes(
                content[:cut].ljust(len(content), b"\0")
            )
            client = Client(target, now=Now(end.ts, 17))
            if "q" in client.engine.topics:
                assert aged(known_jobs(client), end) == expected, (header, cut)
            client.kill()


def cuts(offset: int, length: int, is_torn: bool) -> list[int]:
    """Return the offsets at which the log is cut: before the frame, and within it."""
    if not is_torn:
        return [offset]
    return [offset, offset + 9, offset + FRAME_HEADER_BYTES, offset + length - 12]


def aged(each: Known, now: Now) -> Known:
    """Return the state at a later time, with expired leases and delays ended."""
    rows = {
        seq: row._replace(state=FREE, until_ts=0, number=0, node="")
        if (row.state is HELD and row.until_ts < now.ts)
        or (row.state is FREE and row.until_ts <= now.ts)
        else row
        for seq, row in each.rows.items()
    }
    return each._replace(rows=rows)


def test_leases_and_moves_are_as_durable_as_their_class_specifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LossyDisk(monkeypatch)
    client = Client(tmp_path / "data", sync_ms=60_000)
    config = {"type": "queue", "max_deliveries": 1, "dead_letter": "d"}
    client.put("disk", **config)
    client.put("fsync", **config, leases_durable=True, durability="fsync")
    for name in ("disk", "fsync"):
        client.append(name, 1, 2, 3)
        claim(client, name, lease_ms=500)
        client.later(600)
    assert claim(client, "disk", lease_ms=500)
    assert begin_move(client, "disk") == [1], (
        "the start of a move is synced in every durability class"
    )
    claim(client, "fsync")
    nack(client, "fsync", 2, delay_ms=HOUR_MS)
    before = all_known(client)
    disk.power_loss(tmp_path / "data", tmp_path / "left")
    client.kill()
    client = Client(tmp_path / "left", boot="second", now=later(client, 0))
    assert all_known(client) == before
    client.kill()


# Duration of a start


@pytest.mark.slow
def test_a_start_restores_a_hundred_thousand_leases_in_seconds(tmp_path: Path) -> None:
    client = Client(tmp_path, file_bytes=64 << 20)
    client.put("q", type="queue", leases_durable=True)
    for _ in range(100):
        client.append("q", *range(1000))
        assert len(claim(client, "q", 1000, lease_ms=HOUR_MS)) == 1000
    before = known_jobs(client)
    assert len(before.rows) == 100_000
    for stop in (False, True, False):
        client.stop() if stop else client.kill()
        began = time.process_time()
        client = Client(tmp_path, file_bytes=64 << 20)
        print(f"a start with 100,000 leases: {time.process_time() - began:.2f} s")
        assert time.process_time() - began < 10
        assert known_jobs(client) == before
    client.kill()
