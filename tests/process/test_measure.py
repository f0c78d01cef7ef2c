"""The measurements of a process for the metrics."""

from __future__ import annotations

import builtins
import errno
import mmap
import os
import resource
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.actors.link.link_support import Pair
from topics.actors.link import counters
from topics.actors.link.counters import CounterCells
from topics.actors.link.process_id import shard_id
from topics.actors.link.tick import TICK_INTERVAL_S
from topics.formats.api.metrics_text import Histogram, Value
from topics.process.measure import UNKNOWN, measure, used_files

MIB = 1 << 20


async def test_each_tick_stores_its_lag_and_the_counters_of_links_and_process(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    pair = Pair()
    pair.connect()
    pair.shard.link.send("s", b"12345")
    cells = CounterCells(pair.board, shard_id(0))
    fsyncs = iter(range(3, 100))
    nursery.start_soon(
        measure, cells, [pair.shard.link], lambda: {"topics_wal_fsyncs_total": next(fsyncs)}
    )
    await trio.sleep(2.5 * TICK_INTERVAL_S)
    found = {family.name: [*family.series] for family in counters.families(pair.board)}

    def value(name: str) -> Value:
        """Return a value of the shard, which is the last one of metrics with a series for each
        process.
        """
        return found[name][-1][1]

    assert value("topics_link_backlog_bytes") == pair.shard.link.backlog_bytes
    assert value("topics_link_unread_bytes") == pair.shard.link.unread_bytes
    assert value("topics_wal_fsyncs_total") == 4
    lag = value("topics_loop_lag_us")
    assert isinstance(lag, Histogram)
    assert sum(lag.buckets) == 2
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert value("topics_process_open_files_max") == max(0, soft)
    for name in ("resident_bytes", "own_bytes", "cpu_ms_total", "open_files"):
        assert value(f"topics_process_{name}") > 0  # type: ignore[operator]
    pair.close()


def test_touched_memory_counts_as_own_unless_it_is_shared() -> None:
    before = used_files(UNKNOWN)
    own, shared = mmap.mmap(-1, 16 * MIB, mmap.MAP_PRIVATE), mmap.mmap(-1, 16 * MIB)
    page = bytes(4096)  # A longer one would be allocated from the heap and might stay there
    for memory in (own, shared):
        for _ in range(16 * MIB // len(page)):
            memory.write(page)
    after = used_files(before)
    grown = {name: after[name] - before[name] for name in before}
    assert 31 * MIB <= grown["topics_process_resident_bytes"] < 64 * MIB
    assert 15 * MIB <= grown["topics_process_own_bytes"] < 31 * MIB


def test_open_files_are_counted_even_on_a_kernel_that_does_not_report_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = used_files(UNKNOWN)["topics_process_open_files"]
    pipe = os.pipe()
    assert used_files(UNKNOWN)["topics_process_open_files"] == before + 2
    for fd in pipe:
        os.close(fd)
    (tmp_path / "statm").write_text("100 50 20 1 0 30 0\n")
    files = tmp_path / "fd"
    files.mkdir()
    for number in range(4):
        (files / str(number)).touch()
    real = os.stat

    def stat(path: str) -> os.stat_result:
        found = real(path)
        return os.stat_result((*found[:6], 0, *found[7:])) if path == str(files) else found

    with monkeypatch.context() as older_kernel:
        older_kernel.setattr(os, "stat", stat)
        found = used_files(UNKNOWN, str(tmp_path))
    page = resource.getpagesize()
    assert [*found.values()] == [50 * page, 30 * page, 3]


def test_a_process_without_a_free_descriptor_keeps_its_previous_measurements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = used_files(UNKNOWN)

    def refuse(*_args: object, **_more: object) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as full:
        full.setattr(builtins, "open", refuse)
        assert used_files(known) == known
    assert used_files(UNKNOWN, str(tmp_path)) == UNKNOWN, "the file does not exist"
