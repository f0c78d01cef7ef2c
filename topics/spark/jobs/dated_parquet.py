"""Dated Parquet: records of topics as files in folders by date, as an archive has them, written by
one process without a JVM.

    OUT/date=2026-11-23/part-00000.parquet

The date is that of the timestamp in UTC. A file holds records of one topic, by their offsets.
Everything is written to OUT.pending and renamed when it is whole and on the disk: OUT is there with
all records, or not at all. What a killed process left in OUT.pending is written anew.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructField, StructType

from topics.client.http import Record
from topics.spark.errors import JobError
from topics.spark.jobs.archive_files import CODEC, DAY_MS
from topics.spark.jobs.files import PENDING
from topics.spark.source.columns import TYPES, Columns
from topics.storage.disk import sync_directory

DATE: Final = "date="
FILE_RECORDS: Final = 5_000_000
ROW_GROUP_RECORDS: Final = 100_000


class DatedParquet:
    """Writes a new folder ``out``. Raises `JobError` when it is there or being written, and
    OSError.
    """

    def __init__(self, out: Path) -> None:
        self._out, self._pending = out, out.with_name(out.name + PENDING)
        self._lock = -1  # of the pending folder: it ends with the process
        if out.exists():
            raise JobError(f"{out} is there already; name a new folder")
        self._columns = Columns(StructType([StructField(*each) for each in TYPES.items()]))
        self._file: _File | None = None
        self._number = 0

    def write(self, records: Sequence[Record], topic: str) -> None:
        """Append records of a topic, in the order of their seqs, after all before them."""
        for day, some in by_day(records):
            file = self._file
            if file is None or not file.takes(topic, day):
                file = self._next_file(topic, day)
            file.write(self._columns, some)

    def _next_file(self, topic: str, day: int) -> _File:
        self._close_file()
        folder = self._pending / f"{DATE}{date_of(day)}"
        folder.mkdir(parents=True, exist_ok=True)
        self._file = _File(folder / f"part-{self._number:05d}.parquet", topic, day)
        self._number += 1
        return self._file

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        self._pending.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._pending, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._take_over()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def _take_over(self) -> None:
        """Lock the pending folder, and remove what a killed process left there."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JobError(f"{self._pending}: another job writes it") from None
        left = [*self._pending.iterdir()]
        if strange := [path for path in left if not path.name.startswith(DATE)]:
            raise JobError(f"{strange[0]} is there already; name a new folder")
        for path in left:
            shutil.rmtree(path)

    def __exit__(self, kind: type[BaseException] | None, *_failure: object) -> None:
        try:
            self._finish(failed=kind is not None)
        finally:
            os.close(self._lock)

    def _finish(self, *, failed: bool) -> None:
        if failed:
            shutil.rmtree(self._pending, ignore_errors=True)
            return
        self._close_file()
        for folder in (*self._pending.iterdir(), self._pending):
            sync_directory(folder)
        self._pending.rename(self._out)
        sync_directory(self._out.parent)


class _File:
    """A file of one topic and one day, open."""

    def __init__(self, path: Path, topic: str, day: int) -> None:
        self._path, self._topic, self._day = path, topic, day
        self._writer: pq.ParquetWriter | None = None
        self._batches: list[pa.RecordBatch] = []  # of the next row group
        self._batched = self._count = 0

    def takes(self, topic: str, day: int) -> bool:
        """Whether records of this topic and day go into it."""
        return (topic, day) == (self._topic, self._day) and self._count < FILE_RECORDS

    def write(self, columns: Columns, records: Sequence[Record]) -> None:
        """Append records."""
        self._batches.append(columns.batch(records, self._topic, 0))
        self._batched += len(records)
        self._count += len(records)
        if self._batched >= ROW_GROUP_RECORDS:
            self._write_group()

    def _write_group(self) -> None:
        group = pa.Table.from_batches(self._batches)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, group.schema, compression=CODEC)
        self._writer.write_table(group, row_group_size=self._batched)
        self._batches, self._batched = [], 0

    def close(self) -> None:
        """Finish the file, and bring it to the disk."""
        if self._batches:
            self._write_group()
        if self._writer is not None:
            self._writer.close()
        handle = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def by_day(records: Sequence[Record]) -> Iterator[tuple[int, Sequence[Record]]]:
    """Records by the day of their `$ts`, which never goes back; days since 1970."""
    start = 0
    while start < len(records):
        day = records[start].ts // DAY_MS
        stop = len(records)
        if records[-1].ts // DAY_MS != day:
            stop = bisect_right(records, day, start, key=lambda record: record.ts // DAY_MS)
        yield day, records[start:stop]
        start = stop


def date_of(day: int) -> str:
    """``2026-11-23``."""
    return str((datetime.fromtimestamp(0, UTC) + timedelta(days=day)).date())
