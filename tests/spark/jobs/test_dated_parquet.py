"""Files by date: whole or not there, each of one topic, in the order of offsets."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from msgspec import Raw

from topics.client.http import Record
from topics.spark.errors import JobError
from topics.spark.jobs import dated_parquet
from topics.spark.jobs.archive_files import DAY_MS
from topics.spark.jobs.dated_parquet import DatedParquet, by_day, date_of

NOON = 20_000 * DAY_MS + DAY_MS // 2


def record(seq: int, ts: int) -> Record:
    return Record(seq=seq, ts=ts, data=Raw(b'{"n": %d}' % seq))


def files_of(out: Path) -> dict[str, list[int]]:
    return {
        str(path.relative_to(out)): pq.read_table(path, partitioning=None)
        .column("offset")
        .to_pylist()
        for path in sorted(out.rglob("*.parquet"))
    }


def test_records_lie_in_the_folder_of_their_day(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with DatedParquet(out) as files:
        files.write([record(1, NOON), record(2, NOON), record(3, NOON + DAY_MS)], "a")
        files.write([record(4, NOON + DAY_MS)], "a")
        files.write([record(1, NOON)], "b")
    first, second = f"date={date_of(20_000)}", f"date={date_of(20_001)}"
    assert files_of(out) == {
        f"{first}/part-00000.parquet": [1, 2],
        f"{first}/part-00002.parquet": [1],
        f"{second}/part-00001.parquet": [3, 4],
    }
    table = pq.read_table(out / first / "part-00000.parquet", partitioning=None)
    assert str(table.schema.field("timestamp").type) == "timestamp[us, tz=UTC]"


def test_long_topics_are_several_files_of_several_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dated_parquet, "FILE_RECORDS", 6)
    monkeypatch.setattr(dated_parquet, "ROW_GROUP_RECORDS", 4)
    out = tmp_path / "out"
    with DatedParquet(out) as files:
        for start in range(1, 20, 2):
            files.write([record(start, NOON), record(start + 1, NOON)], "a")
    found = files_of(out)
    assert [len(offsets) for offsets in found.values()] == [6, 6, 6, 2]
    assert [*chain.from_iterable(found.values())] == list(range(1, 21))
    groups = [pq.ParquetFile(path).num_row_groups for path in sorted(out.rglob("*.parquet"))]
    assert groups == [2, 2, 2, 1]


def test_what_failed_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def fail() -> None:
        with DatedParquet(out) as files:
            files.write([record(1, NOON)], "a")
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert [*tmp_path.iterdir()] == []


def test_no_folder_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(JobError, match="is there already"):
        DatedParquet(tmp_path / "out")
    (tmp_path / "other.pending" / "mine").mkdir(parents=True)
    with (
        pytest.raises(JobError, match=r"other\.pending/mine is there already"),
        DatedParquet(tmp_path / "other"),
    ):
        pass
    assert (tmp_path / "other.pending" / "mine").exists()


def test_what_a_killed_process_left_is_written_anew(tmp_path: Path) -> None:
    left = tmp_path / "out.pending" / f"date={date_of(19_000)}" / "part-00007.parquet"
    left.parent.mkdir(parents=True)
    left.touch()
    with DatedParquet(tmp_path / "out") as files:
        files.write([record(1, NOON)], "a")
    assert files_of(tmp_path / "out") == {f"date={date_of(20_000)}/part-00000.parquet": [1]}
    assert [*tmp_path.iterdir()] == [tmp_path / "out"]


def test_two_jobs_do_not_write_one_folder(tmp_path: Path) -> None:
    with DatedParquet(tmp_path / "out") as files:
        files.write([record(1, NOON)], "a")
        with pytest.raises(JobError, match="another job writes it"), DatedParquet(tmp_path / "out"):
            pass
    assert len(files_of(tmp_path / "out")) == 1


def test_nothing_to_write_is_an_empty_folder(tmp_path: Path) -> None:
    with DatedParquet(tmp_path / "deep" / "out"):
        pass
    assert [*(tmp_path / "deep").rglob("*")] == [tmp_path / "deep" / "out"]


def test_days_are_of_utc() -> None:
    edge = 20_000 * DAY_MS
    records = [record(1, edge - 1), record(2, edge), record(3, edge)]
    assert [(day, [each.seq for each in some]) for day, some in by_day(records)] == [
        (19_999, [1]),
        (20_000, [2, 3]),
    ]
    assert [*by_day([])] == []
    assert date_of(20_000) == "2024-10-04"
    assert date_of(-1) == "1969-12-31"
