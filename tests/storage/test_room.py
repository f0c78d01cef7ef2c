"""Room that is looked for before it is taken, and room that is kept: spares, the log's reserve, the
next checkpoint's.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.storage.log_support import failing
from topics.formats.disk.frames import FrameKind
from topics.formats.disk.wal import FileHeader
from topics.storage import checkpoints, disk
from topics.storage.disk import MARGIN_BYTES, allocate, check_room, write_back
from topics.storage.wal import spares as wal_spares
from topics.storage.wal.blobs import BlobStore
from topics.storage.wal.file import WalFile
from topics.storage.wal.log import MAKE_ROOM
from topics.storage.wal.spares import SPARES_MAX, SpareFiles, prepare

SIZE = 64 << 10


def leave(patch: pytest.MonkeyPatch, size: int) -> None:
    """A disk with so much room, which says so and does not give it."""
    patch.setattr(
        os,
        "statvfs",
        lambda _: SimpleNamespace(f_blocks=1 << 30, f_bavail=size // 512, f_frsize=512),
    )
    patch.setattr(os, "posix_fallocate", failing(errno.EIO))


MAKERS: list[Callable[[Path], object]] = [
    lambda folder: WalFile(folder, FileHeader(0, 0, 0), SIZE).create(),
    lambda folder: prepare(folder, "a", SIZE),
    lambda folder: BlobStore(folder).begin(1, 1, SIZE),
    lambda folder: checkpoints.keep_room(folder),
]


@pytest.mark.parametrize("make", MAKERS)
def test_a_file_that_has_no_room_takes_none_for_a_moment(
    make: Callable[[Path], object], tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        leave(patch, SIZE)
        with pytest.raises(OSError, match="No space left") as raised:
            make(tmp_path)
    assert raised.value.errno == errno.ENOSPC
    assert sum(path.stat().st_blocks for path in tmp_path.iterdir()) == 0


def test_others_keep_a_margin_and_a_disk_that_does_not_tell_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(monkeypatch, MARGIN_BYTES + SIZE)
    check_room(tmp_path, SIZE)
    with pytest.raises(OSError, match="No space left"):
        check_room(tmp_path, SIZE + 512)
    monkeypatch.setattr(
        os, "statvfs", lambda _: SimpleNamespace(f_blocks=0, f_bavail=0, f_frsize=4096)
    )
    with pytest.raises(OSError, match="Input/output error"):
        allocate(0, tmp_path, SIZE)


def test_what_cannot_be_written_back_is_told_as_the_sync_would_not_hear_of_it(
    tmp_path: Path,
) -> None:
    read, write = os.pipe()
    with pytest.raises(OSError, match="Illegal seek"):
        write_back(write, 0, 4096)
    os.close(read)
    os.close(write)


def test_zeros_are_written_where_the_disk_has_no_call_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 10_000)
    with path.open("r+b") as file:
        monkeypatch.setattr(disk, "_fallocate", None)
        disk.zero(file.fileno(), 100, 9_000)
    assert path.read_bytes() == b"x" * 100 + bytes(9_000) + b"x" * 900


# The log's


def log_file(folder: Path, base: int, size: int = SIZE) -> WalFile:
    file = WalFile(folder, FileHeader(0, base, base), size)
    file.create()
    return file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_files_that_are_needed_no_more_fill_the_reserve_first_then_the_spares(
    tmp_path: Path,
) -> None:
    stock = SpareFiles(tmp_path, SIZE)
    stock.add([log_file(tmp_path, base) for base in range(2 + SPARES_MAX)])
    assert (stock.has_reserve, len(stock)) == (True, SPARES_MAX)
    assert names(tmp_path) == [f"{base:016x}.spare" for base in range(1, 1 + SPARES_MAX)] + [
        "log.reserve"
    ]
    stock.add([log_file(tmp_path, 77, 2 * SIZE)])
    assert len(names(tmp_path)) == 1 + SPARES_MAX
    again = SpareFiles(tmp_path, SIZE)
    assert (again.has_reserve, len(again)) == (True, SPARES_MAX)
    other = SpareFiles(tmp_path, 2 * SIZE)
    assert (other.has_reserve, len(other)) == (False, 0)
    assert names(tmp_path) == [], "a full disk may want the room of what does not fit"


def test_a_file_whose_end_the_disk_did_not_learn_of_is_kept_by_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, files = SpareFiles(tmp_path, SIZE), [log_file(tmp_path, base) for base in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(wal_spares, "sync_directory", failing(errno.EIO))
        with pytest.raises(OSError, match="Input/output error"):
            stock.add(files)
    assert (stock.has_reserve, len(stock)) == (False, 0)
    stock.add(files)
    assert (stock.has_reserve, len(stock)) == (True, 1)


def test_room_is_found_when_there_is_a_spare_and_the_reserve(tmp_path: Path) -> None:
    stock = SpareFiles(tmp_path, SIZE)
    with pytest.MonkeyPatch.context() as patch:
        leave(patch, SIZE)
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


def test_a_spare_that_was_wanted_is_not_made_when_others_have_come_meanwhile(
    tmp_path: Path,
) -> None:
    stock = SpareFiles(tmp_path, SIZE)
    stock.add([log_file(tmp_path, base) for base in range(1 + SPARES_MAX)])
    stock.prepare_next(99)
    assert len(stock) == SPARES_MAX
    assert len(names(tmp_path)) == 1 + SPARES_MAX


def test_only_what_frees_room_and_what_tells_of_a_start_may_have_the_reserve() -> None:
    assert {
        FrameKind.DELETE,
        FrameKind.TOPIC_DELETED,
        FrameKind.FLOOR,
        FrameKind.START,
    } == MAKE_ROOM


# The checkpoint's


def items() -> list[bytes]:
    return [checkpoints.encode_item({"segments": [], "boot": "b"})]


def test_a_checkpoint_is_written_into_the_room_that_was_kept_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.keep_room(tmp_path)
    inode = (tmp_path / checkpoints.RESERVE_NAME).stat().st_ino
    real, left = os.pwritev, [1]

    def full_once(fd: int, pieces: list[bytes], offset: int) -> int:
        if left:
            left.pop()
            raise OSError(errno.ENOSPC, "full")
        return real(fd, pieces, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full_once)
        leave(patch, 0)
        checkpoints.write(tmp_path, 8, 0, items())
    (path,) = tmp_path.glob("*.ckpt")
    assert path.stat().st_ino == inode
    assert [found.lsn for found in checkpoints.whole(tmp_path)] == [8]
    checkpoints.write(tmp_path, 16, 0, items())
    assert (tmp_path / checkpoints.RESERVE_NAME).stat().st_size == checkpoints.RESERVE_MIN_BYTES
    assert [found.lsn for found in checkpoints.whole(tmp_path)] == [16, 8]


def test_the_room_for_a_checkpoint_is_twice_the_last_one(tmp_path: Path) -> None:
    large = checkpoints.encode_item({"id": 1, "keys": [["k" * 700_000, 1, 1, 1]]})
    checkpoints.write(tmp_path, 8, 0, [*items(), large])
    reserve = tmp_path / checkpoints.RESERVE_NAME
    assert reserve.stat().st_size == 2 * next(tmp_path.glob("*.ckpt")).stat().st_size
    assert reserve.stat().st_blocks * 512 >= reserve.stat().st_size
