"""Groups that wait are taken together: those of one file and one era, in order."""

from __future__ import annotations

import math
import time
from pathlib import Path

from topics.formats.disk.wal import FileHeader
from topics.storage.wal.file import WalFile
from topics.storage.wal.groups import GroupQueue, WalGroup


def group(folder: Path, start: int, *, era: int = 0, new_file: bool = False) -> WalGroup:
    file = WalFile(folder, FileHeader(0, 0, 7), 8192)
    return WalGroup(era, file, start, start + 8, [b"12345678"], False, new_file)


def starts(queue: GroupQueue) -> list[int] | None:
    groups = queue.take(math.inf)
    return None if groups is None else [each.start for each in groups]


def test_groups_are_taken_up_to_the_next_file_or_era(tmp_path: Path) -> None:
    queue = GroupQueue()
    queue.put(group(tmp_path, 0))
    queue.put(group(tmp_path, 8))
    queue.put(group(tmp_path, 16, new_file=True))
    queue.put(group(tmp_path, 24))
    queue.put(group(tmp_path, 16, era=1))
    queue.close()
    assert [starts(queue) for _ in range(4)] == [[0, 8], [16, 24], [16], None]


def test_nothing_is_taken_when_the_time_has_come() -> None:
    assert GroupQueue().take(time.perf_counter()) == []
