"""Spare files and the reserve of the log: kept, found after a restart, and used only by entitled
frames.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.log import failing
from tests.support.wal import leave_space
from topics.formats.disk.frames import FrameKind
from topics.formats.disk.wal import FileHeader
from topics.storage.disk import MARGIN_BYTES
from topics.storage.wal import spares as wal_spares
from topics.storage.wal.log import SPACE_FREEING_KINDS
from topics.storage.wal.log_file import WalFile, log_name
from topics.storage.wal.spares import SPARES_MAX, SpareFiles

SIZE = 64 << 10


def log_file(folder: Path, base: int, size: int = SIZE) -> WalFile:
    file = WalFile(folder, FileHeader(0, base, base, size), size)
    file.create()
    return file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_released_log_files_fill_the_reserve_first_and_then_the_spares(
    tmp_path: Path,
) -> None:
    stock = SpareFiles(tmp_path, 0, SIZE)
    stock.add([log_file(tmp_path, base) for base in range(2 + SPARES_MAX)])
    assert (stock.has_reserve, len(stock)) == (True, SPARES_MAX)
    assert names(tmp_path) == [f"{base:016x}.spare" for base in range(1, 1 + SPARES_MAX)] + [
        "log.reserve"
    ]
    stock.add([log_file(tmp_path, 77, 2 * SIZE)])
    assert len(names(tmp_path)) == 1 + SPARES_MAX
    again = SpareFiles(tmp_path, 0, SIZE)
    assert (again.has_reserve, len(again)) == (True, SPARES_MAX)
    other = SpareFiles(tmp_path, 0, 2 * SIZE)
    assert (other.has_reserve, len(other)) == (False, 0)
    assert names(tmp_path) == [], "files of another size are deleted to free their space"


def test_a_log_file_whose_removal_was_not_synced_is_added_by_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, files = SpareFiles(tmp_path, 0, SIZE), [log_file(tmp_path, base) for base in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(wal_spares, "sync_directory", failing(errno.EIO))
        with pytest.raises(OSError, match="Input/output error"):
            stock.add(files)
    assert (stock.has_reserve, len(stock)) == (False, 0)
    stock.add(files)
    assert (stock.has_reserve, len(stock)) == (True, 1)


def test_fill_succeeds_if_there_are_a_spare_and_the_reserve_afterwards(tmp_path: Path) -> None:
    stock = SpareFiles(tmp_path, 0, SIZE)
    with pytest.MonkeyPatch.context() as patch:
        leave_space(patch, SIZE)
        assert not stock.fill("a")
        with pytest.raises(OSError, match="No space left"):
            stock.fill_reserve()
    assert names(tmp_path) == []
    assert stock.fill("a")
    assert names(tmp_path) == [*(path.name for path in tmp_path.glob("a.*.spare")), "log.reserve"]
    taken = stock.take()
    assert taken is not None
    reserve = stock.take_reserve()
    assert reserve is not None
    assert stock.fill("a")
    assert {taken, reserve} & {tmp_path / name for name in names(tmp_path)} == {taken, reserve}
    stock.take()
    stock.take_reserve()
    assert (stock.take(), stock.take_reserve()) == (None, None)


def test_a_requested_spare_is_not_created_if_others_were_added_in_the_meantime(
    tmp_path: Path,
) -> None:
    stock = SpareFiles(tmp_path, 0, SIZE)
    stock.add([log_file(tmp_path, base) for base in range(1 + SPARES_MAX)])
    stock.prepare_next(log_file(tmp_path, 99))
    tmp_path.joinpath(log_name(99)).unlink()
    assert len(stock) == SPARES_MAX
    assert len(names(tmp_path)) == 1 + SPARES_MAX


def sizes(folder: Path) -> dict[str, int]:
    return {path.suffix: path.stat().st_size for path in folder.iterdir() if path.suffix != ".wal"}


def half_full(stock: SpareFiles, base: int) -> None:
    """Write the first half of a log file with this base."""
    file = WalFile(stock.folder, FileHeader(0, base, base, stock.file_bytes), stock.file_bytes)
    assert not stock.is_next_due(file, file.base)
    if stock.is_next_due(file, file.base + file.size // 2):
        stock.requested_after = base
        stock.prepare_next(file)


def test_log_files_grow_one_after_another_up_to_the_bound_with_the_reserve_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_spares, "FIRST_FILE_BYTES", SIZE)
    stock = SpareFiles(tmp_path, 0, 3 * SIZE)
    stock.fill_reserve()
    assert (stock.file_bytes, sizes(tmp_path)) == (SIZE, {".reserve": SIZE})
    with monkeypatch.context() as patch:
        free_space = SimpleNamespace(f_blocks=1 << 30, f_bavail=3 * SIZE + MARGIN_BYTES, f_frsize=1)
        # Not enough for a reserve and a file twice as large
        patch.setattr(os, "statvfs", lambda _: free_space)
        half_full(stock, 0)
    assert (stock.file_bytes, sizes(tmp_path)) == (SIZE, {".reserve": SIZE, ".spare": SIZE})
    half_full(stock, 1)
    twice = {".reserve": 2 * SIZE, ".spare": 2 * SIZE}
    assert (stock.file_bytes, sizes(tmp_path)) == (2 * SIZE, twice)
    requested_earlier = WalFile(tmp_path, FileHeader(0, 2, 2, SIZE), SIZE)
    stock.begin_file(requested_earlier, may_use_reserve=False)
    assert requested_earlier.path.stat().st_size == 2 * SIZE, "a larger spare is also used"
    assert WalFile.open(requested_earlier.path, 0).size == 2 * SIZE
    half_full(stock, 3)
    for base in (4, 5):
        half_full(stock, base)
        assert (stock.file_bytes, sizes(tmp_path)) == (
            3 * SIZE,
            dict.fromkeys((".reserve", ".spare"), 3 * SIZE),
        )
    again = SpareFiles(tmp_path, SIZE, 3 * SIZE)
    assert (again.file_bytes, again.has_reserve, len(again)) == (3 * SIZE, True, 1)
    again.take_reserve()
    assert SpareFiles(tmp_path, 2 * SIZE, 3 * SIZE).file_bytes == 2 * SIZE


def test_a_kill_while_log_files_grow_leaves_no_file_of_the_wrong_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_spares, "FIRST_FILE_BYTES", SIZE)
    for call, wanted in (("prepare", SIZE), ("_put_reserve", SIZE), ("take", 2 * SIZE)):
        folder = tmp_path / call
        folder.mkdir()
        stock = SpareFiles(folder, 0, 2 * SIZE)
        assert stock.fill(f"{0:016x}.room")
        with monkeypatch.context() as patch:
            patch.setattr(wal_spares if call == "prepare" else SpareFiles, call, killed)
            with pytest.raises(KeyboardInterrupt):
                half_full(stock, 0)
        again = SpareFiles(folder, SIZE, 2 * SIZE)
        assert (again.file_bytes, again.has_reserve) == (wanted, True)
        assert {*sizes(folder).values()} == {wanted}


def killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_only_frames_that_free_space_or_start_a_process_may_use_the_reserve() -> None:
    assert {
        FrameKind.DELETE,
        FrameKind.TOPIC_DELETED,
        FrameKind.FLOOR,
        FrameKind.START,
        FrameKind.ROUTERS_GONE,
    } == SPACE_FREEING_KINDS
