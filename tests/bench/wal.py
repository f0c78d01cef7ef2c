"""What the log costs above the disk: ``python -m tests.bench.wal [--megabytes 64] [--group 64]
[--dir DIR]``.

Frames of one to 10,000 records of 200 bytes are encoded and handed to the writer thread, ``group``
frames of one record or 256 KiB at a time, as a shard does after each batch of messages; with
``sync`` every group asks for an fdatasync. No more than 8 MiB are on their way. Beside it, in the
same run: one bare write of the same bytes for each group into a file with all its room, and one
fdatasync. ``x floor`` is the time as a multiple of that; it may be below 1, because the writer
merges groups that wait. ``wait us`` is the time between handing over one group and its report, when
nothing else is on its way.
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from topics.config import MIB, Settings
from topics.formats.disk.frames import Frame, FrameKind, encode_frame
from topics.formats.disk.wal import FILE_HEADER_BYTES
from topics.storage.copy_reader import CopyReader
from topics.storage.disk import make_directory
from topics.storage.linked import LinkedPayloads
from topics.storage.wal.blobs import BlobStore
from topics.storage.wal.log import Wal

RECORD = b'{"$seq":1234567,"$ts":1748450000123,"data":{"pad":"' + b"x" * 144 + b'"}},'
BATCHES = (1, 100, 1000, 10_000)
IN_FLIGHT_BYTES = 8 * MIB
GROUP_BYTES = 256 << 10
SETTINGS = Settings()


class Log:
    """A log of its own, and waiting for it."""

    def __init__(self, folder: Path) -> None:
        make_directory(folder / "wal")
        blobs = BlobStore(folder / "blob")
        size, sync_ms = SETTINGS.wal_file_bytes, SETTINGS.wal_sync_ms
        self.wal = Wal(
            folder / "wal",
            0,
            [],
            0,
            blobs=blobs,
            copies=CopyReader(blobs, LinkedPayloads(folder, 0)),
            file_bytes=size,
            sync_ms=sync_ms,
        )
        self.written = self.synced = 0
        self._poller = select.poll()
        self._poller.register(self.wal.progress_fd, select.POLLIN)

    def hand_over(self, frames: list[Frame], *, sync: bool) -> None:
        for frame in frames:
            self.wal.append(frame)
        self.wal.flush(sync=sync)

    def wait(self, position: int, *, sync: bool) -> None:
        while (self.synced if sync else self.written) < position:
            self._poller.poll()
            for progress in self.wal.take_progress():
                if progress.error is not None:
                    raise progress.error
                self.written, self.synced = progress.written, progress.synced


def through_the_log(
    folder: Path, groups: list[list[Frame]], sync: bool
) -> tuple[float, float, int]:
    """Seconds for all groups, microseconds for one alone, syncs made."""
    log = Log(folder)
    log.hand_over(groups[0], sync=True)  # makes the file
    log.wait(log.wal.next_lsn, sync=True)
    before, began = log.wal.counters.fsyncs, time.perf_counter()
    for group in groups:
        log.hand_over(group, sync=sync)
        log.wait(log.wal.next_lsn - IN_FLIGHT_BYTES, sync=sync)
    log.wait(log.wal.next_lsn, sync=sync)
    seconds, syncs = time.perf_counter() - began, log.wal.counters.fsyncs - before
    waits = []
    for group in groups[:50]:
        began = time.perf_counter()
        log.hand_over(group, sync=sync)
        log.wait(log.wal.next_lsn, sync=sync)
        waits.append(time.perf_counter() - began)
    log.wal.stop()
    return seconds, statistics.median(waits) * 1e6, syncs


def bare(folder: Path, blocks: list[bytes], sync: bool) -> float:
    fd = os.open(folder / "bare", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        os.posix_fallocate(fd, 0, FILE_HEADER_BYTES + sum(map(len, blocks)))
        os.fsync(fd)
        began, offset = time.perf_counter(), FILE_HEADER_BYTES
        for block in blocks:
            offset += os.pwrite(fd, block, offset)
            if sync:
                os.fdatasync(fd)
        return time.perf_counter() - began
    finally:
        os.close(fd)


def grouped(batch: int, megabytes: int, group_frames: int) -> list[list[Frame]]:
    ends, blob = bytes(4 * batch), RECORD * batch
    frame = Frame(FrameKind.APPEND, 1, 1, 1, batch, 0, 0, (ends, blob))
    together = min(group_frames, max(1, GROUP_BYTES // frame.length))
    return [[frame] * together for _ in range(max(1, megabytes * MIB // (frame.length * together)))]


def measure(folder: Path, batch: int, sync: bool, groups: list[list[Frame]], rounds: int) -> None:
    blocks = [
        b"".join(piece for frame in group for piece in encode_frame(frame, 0, 0, 1))
        for group in groups
    ]
    length, count = sum(map(len, blocks)), sum(map(len, groups)) * batch
    ratios, runs = [], []
    for turn in range(rounds):
        run = through_the_log(folder / f"{batch}-{sync}-{turn}", groups, sync)
        ratios.append(run[0] / bare(folder, blocks, sync))
        runs.append(run)
    seconds, wait_us, syncs = sorted(runs)[rounds // 2]
    print(
        f"{batch:>6} {'sync' if sync else 'write':<6}"
        f"{count / seconds:>12,.0f}{length / seconds / 1e6:>9,.0f}"
        f"{statistics.median(ratios):>9.2f}{len(groups):>8}{syncs:>7}{wait_us:>9,.0f}",
        flush=True,
    )


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--megabytes",
        type=int,
        default=64,
        help="for each row; the log's file is made before the clock starts",
    )
    options.add_argument("--group", type=int, default=64, help="frames handed over together")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument(
        "--dir",
        type=Path,
        default=None,
        help="where to write, default the system's folder for temporary files",
    )
    chosen = options.parse_args()
    print(
        f"{'batch':>6} {'':<6}{'records/s':>12}{'MB/s':>9}{'x floor':>9}{'groups':>8}"
        f"{'syncs':>7}{'wait us':>9}"
    )
    for batch in BATCHES:
        for sync in (False, True):
            folder = Path(tempfile.mkdtemp(prefix="topics-wal-", dir=chosen.dir))
            try:
                measure(
                    folder,
                    batch,
                    sync,
                    grouped(batch, chosen.megabytes, chosen.group),
                    chosen.rounds,
                )
            finally:
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
