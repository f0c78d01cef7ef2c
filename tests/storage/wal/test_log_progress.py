"""Errors of the log: after an error nothing is written, and refused frames are cut off."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.log import failing
from tests.support.polling import is_readable
from tests.support.wal import (
    WAIT_MS,
    flush_immediately,
    frame,
    frames_on_disk,
    hand_over,
    start,
    sync_by,
)
from topics.formats.buffers import Buffer
from topics.formats.disk.wal import FILE_HEADER_BYTES
from topics.storage.disk import write_all
from topics.storage.wal.log_file import WalFile
from topics.storage.wal.writer import WalWriter

# A broken disk


@pytest.fixture(params=["thread", "loop"])
def writes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the thread or the loop write and sync a short group that requests a sync."""
    sync_by(monkeypatch, loop=request.param == "loop")


@pytest.mark.usefixtures("writes")
@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_nothing_is_written_after_an_error(
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
    assert wal.synced_lsn == good.synced


@pytest.mark.usefixtures("writes")
@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
def test_refused_frames_are_cut_off_before_their_refusal_is_reported(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames that were reported as written are kept, synced or not, because they are
    acknowledged.
    """
    wal = start(tmp_path / "wal")
    hand_over(wal, frame(seq=1), sync=True)
    hand_over(wal, frame(seq=2))
    end = wal.next_lsn
    real = os.pwritev

    def torn(fd: int, chunks: list[bytes], offset: int) -> int:
        real(fd, chunks, offset)
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


def test_a_sync_that_fails_during_a_write_is_reported_after_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group that the loop writes in the meantime is refused too, although its write
    succeeded.
    """
    wal = start(tmp_path / "wal", sync_ms=60_000)
    good = hand_over(wal, frame(seq=1))
    is_reported: list[bool] = []
    real = write_all

    def write_during_a_failed_sync(fd: int, chunks: Sequence[Buffer], offset: int) -> None:
        real(fd, chunks, offset)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(WalFile, "sync", failing(errno.EIO))
            syncer = threading.Thread(
                target=wal.writer.syncer.sync, args=(wal._files[0], good.written)
            )
            syncer.start()
            syncer.join()
        is_reported.append(is_readable(wal.progress_fd, 0))

    monkeypatch.setattr("topics.storage.wal.writer.write_all", write_during_a_failed_sync)
    assert flush_immediately(wal, frame(seq=2)) is None
    assert is_reported == [False]
    lost = wal.next_progress()
    assert (lost.error is wal.failed is not None, lost.written) == (True, good.written)
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1]
    wal.stop()


@pytest.mark.usefixtures("writes")
def test_frames_that_cannot_be_cut_off_are_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wal = start(tmp_path / "wal")
    hand_over(wal, frame(seq=1), sync=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing(errno.EIO))
        patch.setattr(WalFile, "blank", failing(errno.EIO))
        lost = hand_over(wal, frame(seq=2), sync=True)
    assert lost.error is not None
    assert "failed frames not erased" in capsys.readouterr().out
    wal.stop()


def test_a_failed_background_sync_breaks_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = start(tmp_path / "wal", sync_ms=1)
    hand_over(wal, frame(), sync=True)
    monkeypatch.setattr(os, "fdatasync", failing(errno.EIO))
    hand_over(wal, frame())
    assert wal.next_progress().error is wal.failed is not None
    wal.stop()


@pytest.mark.usefixtures("no_spares")
def test_a_log_file_whose_name_cannot_be_synced_breaks_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = start(tmp_path / "wal")
    hand_over(wal, frame(2000), sync=True)
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    wal.append(frame(3000))
    wal.flush(sync=True)
    assert wal.next_progress().error is wal.failed is not None
    wal.stop()


# The loop's own syncs


def test_a_log_that_fails_during_a_sync_of_the_loop_discards_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = start(tmp_path / "wal")
    good = hand_over(wal, frame(seq=1), sync=True)
    sync_by(monkeypatch, loop=True)
    with monkeypatch.context() as patch:
        patch.setattr(
            WalFile, "sync", lambda _: wal.writer.state.fail(OSError(errno.EIO, "given up"))
        )
        wal.append(frame(seq=2))
        assert wal.flush(sync=True) is None
    lost = wal.next_progress()
    assert (lost.error is wal.failed is not None, lost.written) == (True, good.written)
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1]
    wal.stop()


def test_the_thread_does_not_report_frames_that_the_loop_has_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread has written its own group when the loop writes the next one, whose sync fails."""
    wal = start(tmp_path / "wal")
    sync_by(monkeypatch, loop=True)
    wrote, may_report = threading.Event(), threading.Event()

    def between(_writer: WalWriter) -> None:
        wrote.set()
        assert may_report.wait(WAIT_MS / 1000)

    def fail(_file: WalFile) -> None:
        may_report.set()
        assert is_readable(wal.progress_fd, WAIT_MS / 1000)
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        patch.setattr(WalWriter, "_prepare_next_file", between)
        patch.setattr(WalFile, "sync", fail)
        wal.append(frame(seq=1))
        wal.flush(sync=False)
        end = wal.next_lsn
        assert wrote.wait(WAIT_MS / 1000)
        wal.append(frame(seq=2))
        assert wal.flush(sync=True) is None
    first, lost = wal.next_progress(), wal.next_progress()
    assert (first.written, first.error) == (end, None)
    assert (lost.written, lost.error is wal.failed is not None) == (end, True)
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1]
    wal.stop()
