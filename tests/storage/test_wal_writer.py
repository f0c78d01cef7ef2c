"""The log's writer: order, groups, files one after the other, a full disk, a broken disk."""

from __future__ import annotations

import errno
import os
import random
import select
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.storage.log_support import ForgetfulDisk, failing
from topics.formats.buffers import Buffer
from topics.formats.disk.frames import (
    FRAME_HEADER_BYTES,
    Frame,
    FrameHeader,
    FrameKind,
    Stop,
    check_frame,
)
from topics.formats.disk.wal import FILE_HEADER_BYTES
from topics.storage.disk import make_directory, write_all
from topics.storage.wal import writer as wal_writer
from topics.storage.wal.blobs import BlobStore
from topics.storage.wal.file import NoRoom, WalFile
from topics.storage.wal.groups import GroupQueue, WalGroup
from topics.storage.wal.log import Wal
from topics.storage.wal.progress import Progress
from topics.storage.wal.spares import SpareFiles
from topics.storage.wal.writer import AT_ONCE_MAX_BYTES

WAIT_MS = 10_000
FILE_BYTES = 8192
ROOM = FILE_BYTES - FILE_HEADER_BYTES


def frame(size: int = 100, seq: int = 1) -> Frame:
    """An APPEND frame whose body is one table entry and ``size`` bytes of blob."""
    return Frame(
        FrameKind.APPEND,
        1,
        seq,
        0,
        1,
        0,
        0,
        (size.to_bytes(4, "little"), b"%c" % (65 + seq % 26) * size),
    )


class Log(Wal):
    """A log whose reports are taken one at a time."""

    def __init__(
        self,
        folder: Path,
        *,
        sync_ms: int,
        file_bytes: int,
        files: Sequence[WalFile] = (),
        position: int = 0,
    ) -> None:
        self._reports: deque[Progress] = deque()
        super().__init__(
            folder,
            0,
            [*files],
            position,
            blobs=BlobStore(folder.parent / "blob"),
            file_bytes=file_bytes,
            sync_ms=sync_ms,
        )

    def next_progress(self) -> Progress:
        while not self._reports:
            poller = select.poll()
            poller.register(self.progress_fd, select.POLLIN)
            assert poller.poll(WAIT_MS), "the writer reports every write"
            self._reports += self.take_progress()
        return self._reports.popleft()

    def flush(self, *, sync: bool) -> Progress | None:
        progress = super().flush(sync=sync)
        if progress is not None:
            self._reports.append(progress)
        return progress


def start(folder: Path, *, sync_ms: int = 60_000, file_bytes: int = FILE_BYTES) -> Log:
    make_directory(folder)
    return Log(folder, sync_ms=sync_ms, file_bytes=file_bytes)


@pytest.fixture
def wal(tmp_path: Path) -> Iterator[Log]:
    wal = start(tmp_path / "wal")
    yield wal
    wal.stop()


def hand_over(wal: Log, *frames: Frame, sync: bool = False) -> Progress:
    for each in frames:
        wal.append(each)
    wal.flush(sync=sync)
    return wal.next_progress()


def frames_on_disk(folder: Path) -> list[FrameHeader]:
    """Every frame of every file, in order; the log must be without a hole."""
    found: list[FrameHeader] = []
    position = 0
    for path in sorted(folder.glob("*.wal")):
        file = WalFile.open(path, 0)
        assert file.base == position
        while isinstance(
            header := check_frame(file.view(), file.offset(position), position, file.seed),
            FrameHeader,
        ):
            found.append(header)
            position = header.end
        assert header is Stop.END
        file.close()
    return found


class Gate:
    """Holds the writer inside its next sync until opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self._open = threading.Event(), threading.Event()
        real = WalFile.sync

        def sync(file: WalFile) -> None:
            self.reached.set()
            assert self._open.wait(WAIT_MS / 1000)
            real(file)

        monkeypatch.setattr(WalFile, "sync", sync)

    def wait(self) -> None:
        assert self.reached.wait(WAIT_MS / 1000)

    def open(self) -> None:
        self._open.set()


# Order and groups


def test_frames_stand_in_the_order_in_which_they_were_appended(wal: Log) -> None:
    locators = [wal.append(frame(seq=seq)) for seq in range(1, 6)]
    wal.flush(sync=False)
    progress = wal.next_progress()
    assert progress.written == wal.position
    found = frames_on_disk(wal.folder)
    assert [header.lsn for header in found] == locators
    assert [header.first_seq for header in found] == [1, 2, 3, 4, 5]


def test_records_are_found_again_by_their_place(wal: Log) -> None:
    locators = [wal.append(frame(size, seq=size)) for size in (1, 50, 3000, 2000, 7)]
    wal.flush(sync=True)
    wal.wait_synced()
    for size, locator in zip((1, 50, 3000, 2000, 7), locators, strict=True):
        view = wal.records(locator)
        assert view.count == 1
        assert bytes(view.blob) == b"%c" % (65 + size % 26) * size
    assert wal.counters.rotations == 2


def test_nothing_is_written_before_flush(wal: Log) -> None:
    wal.append(frame())
    assert wal.counters.batches == 0
    assert hand_over(wal).written == wal.position


def test_only_a_group_that_asks_for_it_is_synced(wal: Log) -> None:
    first = hand_over(wal, frame())
    assert (first.written, first.synced, first.sync_ms) == (wal.position, 0, 0.0)
    second = hand_over(wal, frame(), sync=True)
    assert (second.written, second.synced) == (wal.position, wal.position)
    assert wal.counters.fsyncs == 1


def test_a_sync_without_frames_syncs_what_was_written_before(wal: Log) -> None:
    hand_over(wal, frame())
    assert hand_over(wal, sync=True).synced == wal.position


def test_flush_without_anything_to_do_does_nothing(wal: Log) -> None:
    wal.flush(sync=True)
    hand_over(wal, frame(), sync=True)
    wal.flush(sync=False)
    wal.flush(sync=True)
    assert wal.take_progress() == []
    assert wal.counters.batches == 1


def test_groups_that_wait_share_one_write_and_one_sync(
    wal: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    wal.append(frame())
    wal.flush(sync=True)
    gate.wait()
    for seq in range(2, 10):
        wal.append(frame(seq=seq))
        wal.flush(sync=seq % 2 == 0)
    gate.open()
    assert wal.next_progress().synced < wal.position
    assert wal.next_progress().synced == wal.position
    assert (wal.counters.batches, wal.counters.fsyncs) == (2, 2)
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == list(range(1, 10))


def test_a_frame_knows_how_far_the_log_was_synced(wal: Log) -> None:
    hand_over(wal, frame(), sync=True)
    synced = wal.position
    hand_over(wal, frame())
    hand_over(wal, frame())
    assert [header.durable_lsn for header in frames_on_disk(wal.folder)] == [0, synced, synced]


def test_a_large_group_is_written_whole(tmp_path: Path) -> None:
    wal = start(tmp_path / "wal", file_bytes=16 << 20)
    hand_over(wal, *(frame(1500, seq) for seq in range(1, 2001)))
    assert len(frames_on_disk(wal.folder)) == 2000
    wal.stop()


# What the loop writes itself


def at_once(wal: Log, *frames: Frame) -> Progress | None:
    for each in frames:
        wal.append(each)
    return wal.flush(sync=False)


def test_a_short_group_is_written_when_flush_returns(wal: Log) -> None:
    hand_over(wal, frame(seq=1))
    progress = at_once(wal, frame(seq=2), frame(seq=3))
    assert progress is not None
    assert (progress.written, progress.error) == (wal.position, None)
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1, 2, 3]
    assert wal.take_progress() == []
    assert wal.counters.batches == 2


def test_the_first_group_of_a_file_and_a_long_one_go_to_the_writer(tmp_path: Path) -> None:
    wal = start(tmp_path / "wal", file_bytes=1 << 20)
    assert at_once(wal, frame(seq=1)) is None
    wal.next_progress()
    assert at_once(wal, frame(AT_ONCE_MAX_BYTES, seq=2)) is None
    wal.next_progress()
    assert at_once(wal, frame(seq=3)) is not None
    wal.stop()
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1, 2, 3]


def test_nothing_is_written_at_once_beside_a_sync_or_before_what_is_on_its_way(
    wal: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_over(wal, frame(seq=1))
    gate = Gate(monkeypatch)
    wal.append(frame(seq=2))
    wal.flush(sync=True)
    gate.wait()
    assert at_once(wal, frame(seq=3)) is None, "a sync is under way"
    gate.open()
    while wal.next_progress().written < wal.position:
        pass
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1, 2, 3]


def test_what_the_writer_is_asked_meanwhile_stands_where_it_belongs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was woken for the first of several writes of the loop, and a group of its own waits by the
    time that it looks.
    """
    wal = start(tmp_path / "wal")
    hand_over(wal, frame(seq=1), sync=True)
    wal.stop()
    late: list[threading.Thread] = []
    file = WalFile.open(wal.folder / "0000000000000000.wal", 0)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda thread: late.append(thread))
        again = Log(
            wal.folder, sync_ms=60_000, file_bytes=FILE_BYTES, files=[file], position=wal.position
        )
    for seq in (2, 3):
        assert at_once(again, frame(seq=seq)) is not None
    again.flush(sync=True)
    assert at_once(again, frame(seq=4)) is None, "what it stands behind waits for a sync"
    again.append(frame(seq=5))
    again.flush(sync=True)
    again.append(frame(seq=6))
    assert again.flush(sync=False) is None, "one is on its way"
    for thread in late:
        thread.start()
    again.wait_synced()
    again.stop()
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1, 2, 3, 4, 5, 6]


def test_what_was_written_at_once_is_synced_after_its_time(tmp_path: Path) -> None:
    """However the loop's writes fall between the looks of the writer, none is forgotten: so they
    come at times left to chance.
    """
    wal = start(tmp_path / "wal", sync_ms=1, file_bytes=1 << 20)
    hand_over(wal, frame(), sync=True)
    chance = random.Random(1)
    direct = 0
    for seq in range(2, 400):
        direct += at_once(wal, frame(1, seq)) is not None
        if chance.random() < 0.2:
            wal.wait_synced()
        elif chance.random() < 0.3:
            time.sleep(chance.random() * 0.003)
    wal.wait_synced()
    assert direct > 100
    wal.stop()


def test_much_that_was_written_at_once_is_synced_before_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    length = frame().length
    monkeypatch.setattr(wal_writer, "SYNC_BYTES", 5 * length)
    looks = threading.Semaphore(0)
    take = GroupQueue.take

    def look(groups: GroupQueue, until: float) -> list[WalGroup] | None:
        looks.release()
        return take(groups, until)

    monkeypatch.setattr(GroupQueue, "take", look)
    wal = start(tmp_path / "wal")
    hand_over(wal, frame(), sync=True)
    assert at_once(wal, frame(seq=2)) is not None
    for _ in range(
        3
    ):  # at the start, after the first frame, and after the second, for which it was woken
        assert looks.acquire(timeout=WAIT_MS / 1000)
    for seq in range(3, 9):
        assert at_once(wal, frame(seq=seq)) is not None
    while wal.next_progress().synced <= 2 * length:
        pass
    wal.stop()


def test_an_error_of_the_loops_own_write_breaks_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = start(tmp_path / "wal")
    good = hand_over(wal, frame(seq=1), sync=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", failing(errno.EIO))
        assert at_once(wal, frame(seq=2)) is None
    lost = wal.next_progress()
    assert lost.error is wal.failed
    assert lost.error is not None
    assert (lost.error.errno, lost.synced) == (errno.EIO, good.synced)
    for sync in (False, True):
        wal.append(frame(seq=3))
        assert wal.flush(sync=sync) is None
    wal.stop()
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1]


# Syncs that nobody waits for


def test_what_nobody_waits_for_is_synced_after_its_time(tmp_path: Path) -> None:
    wal = start(tmp_path / "wal", sync_ms=1)
    assert hand_over(wal, frame()).synced == 0
    assert wal.next_progress().synced == wal.position
    wal.stop()


def test_steady_writing_does_not_put_the_sync_off(tmp_path: Path) -> None:
    wal = start(tmp_path / "wal", sync_ms=200, file_bytes=64 << 20)
    end = time.monotonic() + WAIT_MS / 1000
    while not wal.synced:
        assert time.monotonic() < end, "a record waits no longer than sync_ms for its sync"
        wal.append(frame())
        wal.flush(sync=False)
        while wal.synced < wal.position and not wal.take_progress():
            select.select([wal.progress_fd], [], [], 1)
    wal.stop()


def test_the_writer_starts_from_where_the_log_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[threading.Thread] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda thread: late.append(thread))
        wal = start(tmp_path / "wal")
    wal.append(frame())
    wal.flush(sync=False)
    for thread in late:
        thread.start()
    assert wal.next_progress().synced == 0
    wal.stop()


# Files


def test_a_file_that_is_full_is_synced_before_the_next_one_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = start(tmp_path / "wal")
    order: list[str] = []
    real_sync, real_create = WalFile.sync, WalFile.create

    def sync(file: WalFile) -> None:
        order.append(f"sync {file.base}")
        real_sync(file)

    def create(file: WalFile, spare: Path | None) -> None:
        order.append(f"create {file.base}")
        real_create(file, spare)

    monkeypatch.setattr(WalFile, "sync", sync)
    monkeypatch.setattr(WalFile, "create", create)
    length = frame(1000).length
    fit = ROOM // length
    for _ in range(2 * fit + 1):
        wal.append(frame(1000))
    wal.flush(sync=False)
    wal.stop()
    second, third = fit * length, 2 * fit * length
    assert order == [
        "create 0",
        "sync 0",
        f"create {second}",
        f"sync {second}",
        f"create {third}",
        f"sync {third}",
    ]


def test_a_frame_takes_the_last_byte_of_a_file(wal: Log) -> None:
    exact = frame(ROOM - FRAME_HEADER_BYTES - 4)
    assert exact.length == ROOM
    hand_over(wal, exact)
    assert wal.counters.rotations == 1
    hand_over(wal, frame(1), sync=True)
    wal.wait_synced()
    assert wal.counters.rotations == 2
    assert [header.lsn for header in frames_on_disk(wal.folder)] == [0, ROOM]


def test_a_frame_larger_than_a_file_gets_a_file_of_its_size(wal: Log) -> None:
    for size in (10, 100_000, 10):
        wal.append(frame(size))
    wal.flush(sync=True)
    wal.wait_synced()
    sizes = [path.stat().st_size for path in sorted(wal.folder.glob("*.wal"))]
    assert sizes == [FILE_BYTES, FILE_HEADER_BYTES + frame(100_000).length, FILE_BYTES]
    assert len(frames_on_disk(wal.folder)) == 3


def test_every_file_has_its_own_salt(wal: Log) -> None:
    hand_over(wal, frame(ROOM - 100))
    hand_over(wal, frame(ROOM - 100))
    wal.flush(sync=True)
    wal.wait_synced()
    assert len({path.read_bytes()[24:32] for path in wal.folder.glob("*.wal")}) == 2


# A full disk


@pytest.fixture
def no_spares(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next file is made when it is needed, not before."""
    monkeypatch.setattr(SpareFiles, "is_next_due", lambda *_: False)


def test_a_file_that_is_half_full_has_a_spare_for_the_next_one(wal: Log) -> None:
    hand_over(wal, frame(4000), sync=True)
    deadline = time.monotonic() + 5
    while not wal.writer.spares:
        assert time.monotonic() < deadline, "no spare file was made"
        time.sleep(0.001)
    (inode,) = [spare.stat().st_ino for spare in wal.folder.glob("*.spare")]
    hand_over(wal, frame(3000, seq=2), sync=True)
    wal.wait_synced()
    assert inode in {path.stat().st_ino for path in wal.folder.glob("*.wal")}
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1, 2]


@pytest.mark.usefixtures("no_spares")
def test_without_room_for_a_new_file_the_log_goes_on_where_it_was(
    wal: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = hand_over(wal, frame(2000, seq=1), sync=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
        refused = hand_over(wal, frame(3000, seq=2), frame(10, seq=3))
    assert isinstance(refused.error, NoRoom)
    assert (refused.written, refused.synced) == (before.written, before.written)
    assert wal.failed is None
    wal.resume(refused.written)
    assert hand_over(wal, frame(100, seq=4)).written == wal.position  # fits the old file
    hand_over(wal, frame(3000, seq=5), sync=True)
    wal.wait_synced()
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1, 4, 5]


@pytest.mark.usefixtures("no_spares")
def test_a_delete_gets_the_reserve_where_an_append_has_no_room(
    wal: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_over(wal, frame(4000), sync=True)
    wal.writer.spares.fill_reserve()
    assert not wal.short_of_room
    delete = Frame(FrameKind.DELETE, 1, 0, 0, 10, parts=(bytes(160),))
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
        for among in ([frame(10)], [delete, frame(10)]):
            refused = hand_over(wal, *among)
            assert isinstance(refused.error, NoRoom)
            assert wal.short_of_room
            wal.resume(refused.written)
        assert hand_over(wal, delete, sync=True).synced == wal.position
        assert not wal.find_room()
    assert [header.kind for header in frames_on_disk(wal.folder)] == [
        FrameKind.APPEND,
        FrameKind.DELETE,
    ]
    assert wal.short_of_room
    assert wal.find_room()
    assert not wal.short_of_room


def test_a_log_knows_when_its_files_are_gone_or_others(wal: Log) -> None:
    assert not wal.is_gone()
    hand_over(wal, frame())
    assert not wal.is_gone()
    (path,) = wal.folder.glob("*.wal")
    path.rename(path.with_suffix(".other"))
    assert wal.is_gone()
    path.with_suffix(".other").rename(path)
    assert not wal.is_gone()
    wal.folder.rename(wal.folder.with_name("moved"))
    assert wal.is_gone()
    wal.folder.mkdir()
    assert wal.is_gone()
    wal.give_up(OSError(errno.ENOENT, "gone"))
    assert wal.next_progress().error is wal.failed is not None


@pytest.mark.usefixtures("no_spares")
def test_what_was_handed_over_before_the_loop_knew_of_the_full_disk_is_dropped(
    wal: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    wal.append(frame(2000, seq=1))
    wal.flush(sync=True)
    gate.wait()
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
    for seq in range(2, 6):
        wal.append(frame(3000, seq=seq))
        wal.flush(sync=seq == 3)
    gate.open()
    refused = wal.next_progress()
    while refused.error is None:
        refused = wal.next_progress()
    assert isinstance(refused.error, NoRoom)
    wal.resume(refused.written)
    hand_over(wal, frame(50, seq=9), sync=True)
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1, 9]
    assert wal.take_progress() == []


def test_without_room_for_the_first_file_the_log_can_still_begin_later(
    wal: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
        assert isinstance(hand_over(wal, frame()).error, NoRoom)
    wal.resume(0)
    wal.flush(sync=True)
    hand_over(wal, frame(seq=7), sync=True)
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [7]


# A broken disk


@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_after_an_error_nothing_is_ever_written_again(
    call: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = start(tmp_path / "wal")
    good = hand_over(wal, frame(seq=1), sync=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(code))
        lost = hand_over(wal, frame(seq=2), sync=True)
    assert lost.error is not None
    assert lost.error.errno == code
    assert lost.synced == good.synced
    assert wal.failed is lost.error
    content = (wal.folder / "0000000000000000.wal").read_bytes()
    wal.append(frame(seq=3))
    wal.flush(sync=True)
    wal.stop()
    assert (wal.folder / "0000000000000000.wal").read_bytes() == content
    assert wal.synced == good.synced


@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
def test_what_is_refused_is_cut_off_before_its_refusal_is_known(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was reported as written stays, synced or not: it is acknowledged."""
    wal = start(tmp_path / "wal")
    hand_over(wal, frame(seq=1), sync=True)
    hand_over(wal, frame(seq=2))
    end = wal.position
    real = os.pwritev

    def torn(fd: int, pieces: list[bytes], offset: int) -> int:
        real(fd, pieces, offset)
        raise OSError(errno.EIO, "all of it was written")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, torn if call == "pwritev" else failing(errno.EIO))
        lost = hand_over(wal, frame(3000, seq=3), frame(seq=4), sync=True)
    assert lost.error is not None
    assert (lost.written, [header.first_seq for header in frames_on_disk(wal.folder)]) == (
        end,
        [1, 2],
    )
    content = next(wal.folder.glob("*.wal")).read_bytes()
    assert not content[FILE_HEADER_BYTES + end :].strip(b"\0")
    wal.stop()


def test_a_sync_that_fails_beside_a_write_is_told_when_that_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the loop writes meanwhile is refused with the rest, though its write went well."""
    wal = start(tmp_path / "wal", sync_ms=60_000)
    good = hand_over(wal, frame(seq=1))
    told: list[bool] = []
    real = write_all

    def meanwhile(fd: int, pieces: Sequence[Buffer], offset: int) -> None:
        real(fd, pieces, offset)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(WalFile, "sync", failing(errno.EIO))
            syncer = threading.Thread(
                target=wal.writer.syncer.sync, args=(wal._files[0], good.written)
            )
            syncer.start()
            syncer.join()
        told.append(bool(select.select([wal.progress_fd], [], [], 0)[0]))

    monkeypatch.setattr("topics.storage.wal.writer.write_all", meanwhile)
    assert at_once(wal, frame(seq=2)) is None
    assert told == [False]
    lost = wal.next_progress()
    assert (lost.error is wal.failed is not None, lost.written) == (True, good.written)
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1]
    wal.stop()


def test_frames_that_cannot_be_cut_off_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wal = start(tmp_path / "wal")
    hand_over(wal, frame(seq=1), sync=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing(errno.EIO))
        patch.setattr(WalFile, "blank", failing(errno.EIO))
        lost = hand_over(wal, frame(seq=2), sync=True)
    assert lost.error is not None
    assert "refused frames not cut off" in capsys.readouterr().out
    wal.stop()


def test_a_background_sync_that_fails_breaks_the_log_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = start(tmp_path / "wal", sync_ms=1)
    hand_over(wal, frame(), sync=True)
    monkeypatch.setattr(os, "fdatasync", failing(errno.EIO))
    hand_over(wal, frame())
    assert wal.next_progress().error is wal.failed is not None
    wal.stop()


@pytest.mark.usefixtures("no_spares")
def test_a_file_that_cannot_get_its_name_for_good_breaks_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = start(tmp_path / "wal")
    hand_over(wal, frame(2000), sync=True)
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    wal.append(frame(3000))
    wal.flush(sync=True)
    assert wal.next_progress().error is wal.failed is not None
    wal.stop()


# Waiting and stopping


def test_waiting_for_the_disk_raises_what_went_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = start(tmp_path / "wal")
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
        wal.append(frame())
        wal.flush(sync=True)
        with pytest.raises(NoRoom):
            wal.wait_synced()
    wal.resume(0)
    wal.append(frame())
    wal.flush(sync=True)
    wal.wait_synced()
    assert wal.synced == wal.position
    wal.stop()


def test_stopping_writes_and_syncs_what_was_appended(tmp_path: Path) -> None:
    wal = start(tmp_path / "wal")
    hand_over(wal, frame(seq=1))
    wal.append(frame(seq=2))
    wal.stop()
    assert wal.synced == wal.position
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1, 2]


@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
def test_stopping_tells_when_the_last_records_did_not_reach_the_disk(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = start(tmp_path / "wal")
    hand_over(wal, frame(seq=1))
    wal.append(frame(seq=2))
    monkeypatch.setattr(os, call, failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        wal.stop()


def test_stopping_a_log_without_a_frame_makes_no_file(tmp_path: Path) -> None:
    wal = start(tmp_path / "wal")
    wal.stop()
    assert list(wal.folder.iterdir()) == []


def test_a_file_that_is_to_be_used_again_has_lost_its_old_name_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = ForgetfulDisk(monkeypatch)
    wal = start(tmp_path / "wal")
    for seq in range(1, 4):
        wal.append(frame(ROOM - 200, seq))
        wal.flush(sync=True)
    wal.wait_synced()
    retired = wal.detach(wal.whole_files()[-1][1])
    wal.retire(retired)
    disk.power_loss(tmp_path / "wal", tmp_path / "left")
    wal.stop()
    assert retired
    assert not {file.path.name for file in retired} & {
        path.name for path in (tmp_path / "left").iterdir()
    }
