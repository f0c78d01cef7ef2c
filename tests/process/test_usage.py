"""What a process uses, as the kernel tells it."""

from __future__ import annotations

import mmap
import os
import resource
from pathlib import Path

import pytest

from topics.process.usage import LISTED_EVERY, Usage

MIB = 1 << 20


def test_memory_that_is_touched_counts_as_own_unless_it_is_shared() -> None:
    usage = Usage()
    before = usage.values()
    own, shared = mmap.mmap(-1, 16 * MIB, mmap.MAP_PRIVATE), mmap.mmap(-1, 16 * MIB)
    for memory in (own, shared):
        memory.write(bytes(16 * MIB))
    after = usage.values()
    grown = {name: after[name] - before[name] for name in before}
    assert 31 * MIB <= grown["topics_process_resident_bytes"] < 64 * MIB
    assert 15 * MIB <= grown["topics_process_own_bytes"] < 31 * MIB
    assert grown["topics_process_cpu_ms_total"] >= 0


def test_open_files_are_counted_and_their_limit_is_the_soft_one() -> None:
    usage = Usage()
    before = usage.values()["topics_process_open_files"]
    pipe = os.pipe()
    values = usage.values()
    for fd in pipe:
        os.close(fd)
    assert values["topics_process_open_files"] == before + 2
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert values["topics_process_open_files_max"] == max(0, soft)


def test_a_kernel_that_does_not_tell_their_number_is_asked_for_a_list_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "statm").write_text("100 50 20 1 0 30 0\n")
    files = tmp_path / "fd"
    files.mkdir()
    for number in range(4):
        (files / str(number)).touch()
    real = Path.stat

    def stat(path: Path) -> os.stat_result:
        found = real(path)
        return os.stat_result((*found[:6], 0, *found[7:])) if path == files else found

    monkeypatch.setattr(Path, "stat", stat)
    usage = Usage(tmp_path)
    counted = []
    for _ in range(LISTED_EVERY + 1):
        counted.append(usage.values()["topics_process_open_files"])
        (files / "4").touch()
    assert counted == [3] * LISTED_EVERY + [4]
    page = resource.getpagesize()
    values = usage.values()
    assert values["topics_process_resident_bytes"] == 50 * page
    assert values["topics_process_own_bytes"] == 30 * page


def test_a_process_without_a_free_descriptor_goes_on_with_what_it_read_before(
    tmp_path: Path,
) -> None:
    usage = Usage()
    before = usage.values()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        with pytest.raises(OSError, match="Too many open files"):  # noqa: PT012
            while True:
                taken.append(os.dup(0))
        after = usage.values()
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert after["topics_process_resident_bytes"] == before["topics_process_resident_bytes"]
    assert after["topics_process_open_files_max"] == 64
    assert set(Usage(tmp_path).values()) == set(before), "where there is no such file at all"
