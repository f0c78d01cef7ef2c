"""Groups of frames: which groups share one write and one sync, and in which order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from topics.formats.disk.wal import FileHeader
from topics.storage.wal.groups import GroupQueue, WalGroup
from topics.storage.wal.log_file import WalFile

WAIT_S = 10


@pytest.fixture
def file(tmp_path: Path) -> Iterator[WalFile]:
    file = WalFile(tmp_path, FileHeader(0, 0, 7, 8192), 8192)
    yield file
    file.close()


def group(file: WalFile, start: int, *, era: int = 0, new_file: bool = False) -> WalGroup:
    return WalGroup(era, file, start, start + 100, [b"x" * 100], sync=False, new_file=new_file)


def take(waiting: GroupQueue) -> list[int] | None:
    """Return the start positions of the groups that are taken next, or None at the end."""
    groups = waiting.take(time.perf_counter() + WAIT_S)
    return None if groups is None else [each.start for each in groups]


def test_groups_of_different_files_or_eras_are_taken_separately(file: WalFile) -> None:
    waiting = GroupQueue()
    waiting.put(group(file, 0))
    waiting.put(group(file, 100, new_file=True))
    waiting.put(group(file, 200))
    waiting.put(group(file, 300, era=1))
    assert take(waiting) == [0]
    assert take(waiting) == [100, 200]
    assert take(waiting) == [300]


def test_the_end_is_reported_after_all_groups_that_were_handed_over_before(file: WalFile) -> None:
    waiting = GroupQueue()
    waiting.put(group(file, 0))
    waiting.put(group(file, 100, era=1))
    waiting.close()
    assert take(waiting) == [0]
    assert take(waiting) == [100]
    assert take(waiting) is None
