"""An archive is read in the order of topics, partitions, dates and offsets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

import pyarrow as pa

from tests.spark.jobs.archives import Row, write_archive
from topics.spark.errors import JobError, WrongPath
from topics.spark.jobs import archive_parts
from topics.spark.jobs.archive_parts import Archive, Part, string_text

DAYS = ("2026-01-01", "2026-01-02")
ROWS = [
    *(Row(DAYS[offset > 30], "a", offset, f'{{"n":{offset}}}') for offset in range(1, 61)),
    *(Row(DAYS[0], "a", offset, f"{offset}", partition=1) for offset in range(1, 6)),
    *(Row(DAYS[1], "b", offset * 1000, f"[{offset}]") for offset in range(1, 21)),
]
PARTS = [
    Part("a", 0, DAYS[0], 30, 1, 30),
    Part("a", 0, DAYS[1], 30, 31, 60),
    Part("a", 1, DAYS[0], 5, 1, 5),
    Part("b", 0, DAYS[1], 20, 1000, 20_000),
]


def texts(archive: Archive, part: Part) -> list[str]:
    return [
        bytes(data[offsets[index] : offsets[index + 1]]).decode()
        for offsets, data in archive.blocks(part)
        for index in range(len(offsets) - 1)
    ]


def test_parts_are_those_of_the_topics_and_dates(tmp_path: Path) -> None:
    archive = Archive(write_archive(tmp_path, ROWS))
    assert archive.parts([], None, None) == PARTS
    assert archive.parts(["b"], None, None) == PARTS[3:]
    assert archive.parts([], DAYS[1], None) == [PARTS[1], PARTS[3]]
    assert archive.parts([], None, DAYS[1]) == [PARTS[0], PARTS[2]]
    assert archive.parts([], DAYS[1], DAYS[1]) == []


@pytest.mark.parametrize("window", [1, 7, 1000])
def test_the_records_of_a_part_come_in_the_order_of_their_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(archive_parts, "WINDOW_ROWS", window)
    archive = Archive(write_archive(tmp_path, ROWS))
    for part in PARTS:
        values = [
            row.value
            for row in ROWS
            if (row.topic, row.partition, row.date) == (part.topic, part.partition, part.date)
        ]
        assert texts(archive, part) == [f'{{"data":{value}}},' for value in values]


def test_a_record_keeps_its_key_node_and_headers(tmp_path: Path) -> None:
    rows = [
        Row(DAYS[0], "a", 1, '{"z": 1.10}', 'k"\n', 0, "n\\", '{"h":[1]}'),
        Row(DAYS[0], "a", 2, None, None, 0, "n", None),
        Row(DAYS[0], "a", 3, '"é"', "", 0, None, "{}"),
    ]
    archive = Archive(write_archive(tmp_path, rows))
    assert texts(archive, Part("a", 0, DAYS[0], 3, 1, 3)) == [
        '{"data":{"z": 1.10},"tag":"k\\"\\n","node":"n\\\\","meta":{"h":[1]}},',
        '{"data":null,"node":"n"},',
        '{"data":"é","tag":"","meta":{}},',
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (Row(DAYS[0], "a", 7, "1"), 'it has twice topic "a", offset 7'),
        (Row(DAYS[0], "a", 99, '1},{"data":2'), 'value of topic "a", offset 99 is not JSON'),
        (Row(DAYS[0], "a", 99, "1", headers="{"), 'headers of topic "a", offset 99 is not JSON'),
    ],
)
def test_what_cannot_be_replayed_is_told_with_its_place(
    tmp_path: Path, row: Row, reason: str
) -> None:
    archive = Archive(write_archive(tmp_path, [*ROWS[:30], row]))
    [part] = archive.parts([], None, None)
    with pytest.raises(JobError, match=reason):
        texts(archive, part)


def test_a_folder_that_is_no_archive_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(WrongPath, match="no such folder"):
        Archive(tmp_path / "absent")
    with pytest.raises(JobError, match="no folder date="):
        Archive(tmp_path)
    write_archive(tmp_path, ROWS)
    with pytest.raises(JobError, match=r'no record of topic "x" .* there are a, b'):
        Archive(tmp_path).parts(["x"], None, None)
    (tmp_path / f"date={DAYS[0]}" / "half.parquet").write_bytes(b"PAR1")
    with pytest.raises(JobError, match="date=2026-01-01: "):
        Archive(tmp_path).parts([], None, None)
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(JobError, match="Delta"):
        Archive(tmp_path)


def test_files_that_are_not_of_an_archive_and_empty_folders(tmp_path: Path) -> None:
    from pyarrow import parquet, table

    (tmp_path / f"date={DAYS[0]}").mkdir()
    assert Archive(tmp_path).parts([], None, None) == []
    parquet.write_table(table({"x": [1]}), tmp_path / f"date={DAYS[0]}" / "x.parquet")
    with pytest.raises(JobError, match="no column headers"):
        Archive(tmp_path).parts([], None, None)


@given(st.lists(st.none() | st.text()))
def test_a_string_is_what_json_reads(texts: list[str | None]) -> None:
    found = string_text(pa.array(texts, pa.string())).to_pylist()
    assert [None if text is None else json.loads(text) for text in found] == texts


def test_a_string_is_escaped_as_spark_does() -> None:
    (found,) = string_text(pa.array(['é"\\/\x1f\x7f\n'])).to_pylist()
    assert found == '"é\\"\\\\/\\u001F\x7f\\n"'
