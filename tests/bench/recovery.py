"""How fast a shard starts: ``python -m tests.bench.recovery [--records 1000000] [--batch 1,1000]
[--dir DIR]``.

Builds a data directory through the engine and the log as a shard does, then opens it by the shard's
own `recover`, each time in a fresh process. Beside it, in the same process and just before: reading
the same files and taking their CRC, the least that any recovery must do. The page cache is warm; a
cold start is bounded by the disk. Required: 1,000,000 records/s for writes of 1,000 records,
300,000 records/s for writes of one.

``keys`` gives every write an idempotency key that is still alive: each is one more CBOR map and one
more entry to remember. ``anon`` is the memory of the process after the start without the mapped
log, less what it was before; ``peak`` the largest resident size, the mapped log included, which the
kernel may drop at any time.
"""

from __future__ import annotations

import argparse
import mmap
import multiprocessing
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import crc32c
from msgspec import Raw

from topics.config import MIB, Settings
from topics.engine.changes import append, reservation
from topics.engine.changes.append import Append
from topics.engine.locators import in_log
from topics.engine.now import Now
from topics.formats.api.append_body import AppendBody, RecordIn
from topics.storage.recovery.steps import recover

DATA = Raw(b'{"pad":"' + b"x" * 190 + b'"}')
GROUP_BYTES = 4 * MIB
SETTINGS = Settings()


@dataclass(frozen=True)
class Figures:
    """One start."""

    seconds: float
    floor_s: float  # reading and CRC of the same bytes
    log_bytes: int
    records: int
    anon_bytes: int
    peak_bytes: int


def now() -> Now:
    return Now(time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000)


def build(folder: Path, records: int, batch: int, topics: int, keys: bool) -> None:
    """Write ``records`` records, ``batch`` in each write, over ``topics`` topics in turn."""
    shard = recover(
        folder,
        0,
        1,
        now(),
        wal_file_bytes=SETTINGS.wal_file_bytes,
        wal_sync_ms=SETTINGS.wal_sync_ms,
    )
    engine, wal = shard.engine, shard.wal
    rows, flushed = [RecordIn(DATA)] * batch, 0
    for number in range(records // batch):
        body = AppendBody(rows, idempotency_key=f"key-{number}" if keys else None)
        change = append.decide(engine.table, f"topic-{number % topics}", body, now())
        assert isinstance(change, Append)
        for frame in change.frames:
            wal.append(frame)
        reserved = reservation.decide(change.topic)
        for frame in reserved.frames if reserved else ():
            wal.append(frame)
        engine.commit(change, in_log(0), now())
        if wal.next_lsn - flushed > GROUP_BYTES:
            flushed = wal.next_lsn
            wal.flush(sync=False)
            wal.take_progress()
    wal.stop()


def start(folder: Path) -> Figures:
    """Open the directory as a shard does. In a process of its own."""
    paths = sorted((folder / "wal" / "00").glob("*.wal"))
    floor_s = min(read_and_check(paths) for _ in range(2))
    before = anonymous_bytes()
    began = time.perf_counter()
    shard = recover(
        folder,
        0,
        1,
        now(),
        wal_file_bytes=SETTINGS.wal_file_bytes,
        wal_sync_ms=SETTINGS.wal_sync_ms,
    )
    seconds = time.perf_counter() - began
    anon = anonymous_bytes() - before
    records = sum(topic.count for topic in shard.engine.topics.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    log_bytes = shard.wal.next_lsn
    shard.wal.stop()
    return Figures(seconds, floor_s, log_bytes, records, anon, peak)


def read_and_check(paths: list[Path]) -> float:
    began = time.perf_counter()
    for path in paths:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as view,
        ):
            crc32c.crc32c(view)
    return time.perf_counter() - began


def anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def starts(folder: Path, rounds: int) -> Iterator[Figures]:
    for _ in range(rounds):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            yield pool.apply(start, (folder,))


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--records", type=int, default=1_000_000)
    options.add_argument("--batch", default="1,1000", help="records in one write")
    options.add_argument("--topics", type=int, default=16)
    options.add_argument("--keys", action="store_true", help="every write has an idempotency key")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument(
        "--dir",
        type=Path,
        default=None,
        help="where to build, default the system's folder for temporary files",
    )
    chosen = options.parse_args()
    print(
        f"{'batch':>6}{'records':>11}{'records/s':>12}{'GB/s':>7}{'x floor':>9}{'anon B/rec':>12}"
        f"{'anon MB':>9}{'peak MB':>9}"
    )
    for batch in map(int, chosen.batch.split(",")):
        folder = Path(tempfile.mkdtemp(prefix="topics-recovery-", dir=chosen.dir))
        try:
            build(folder, chosen.records, batch, chosen.topics, chosen.keys)
            runs = sorted(starts(folder, chosen.rounds), key=lambda run: run.seconds)
        finally:
            shutil.rmtree(folder)
        run = runs[len(runs) // 2]
        assert run.records == chosen.records // batch * batch, "every record came back"
        slower = statistics.median(each.seconds / each.floor_s for each in runs)
        print(
            f"{batch:>6}{run.records:>11,}{run.records / run.seconds:>12,.0f}"
            f"{run.log_bytes / run.seconds / 1e9:>7.2f}{slower:>9.1f}"
            f"{run.anon_bytes / run.records:>12.1f}{run.anon_bytes / 1e6:>9.1f}"
            f"{run.peak_bytes / 1e6:>9.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
