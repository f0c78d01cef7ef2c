"""The check of a local CSV file in this process: it accepts what the executors accept."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topics.spark import local_csv
from topics.spark.local_csv import checked_names, is_small
from topics.spark.reading import check_csv

LINES = st.lists(st.text('ab"",\t \x85é', max_size=6), max_size=5)


@given(LINES, st.sampled_from(["\n", "\r\n", "\r"]), st.sampled_from([",", "|"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_accepts_a_file_when_the_executors_accept_each_line(
    tmp_path: Path, lines: list[str], end: str, separator: str
) -> None:
    source = tmp_path / "rows.csv"
    written = ["a,b", *lines]
    text = end.join(written).replace(",", separator)
    source.write_bytes(text.encode())
    check = check_csv(2, separator)
    whole = all(check(line.encode()) is None for line in text.split(end))
    assert checked_names(str(source), separator) == (["a", "b"] if whole else None)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"a\n1\n",  # a row of spaces looks like a field
        b"a,A\n1,2\n",
        b"a,\n1,2\n",
        b"a,b c\n1,2\n",
        b"\xef\xbb\xbfa,b\n1,2\n",
        b"a,b\n1,\xff\n",
        b"\na,b\n1,2\n",
    ],
)
def test_it_leaves_names_and_bytes_that_readers_may_differ_on_to_spark(
    tmp_path: Path, content: bytes
) -> None:
    source = tmp_path / "rows.csv"
    source.write_bytes(content)
    assert checked_names(str(source), ",") is None


@pytest.mark.parametrize("name", ["rows.csv.gz", "_rows.csv", ".rows.csv", "rows", "row[s].csv"])
def test_it_leaves_files_that_spark_unpacks_skips_or_expands_to_spark(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_bytes(b"a,b\n1,2\n")
    assert checked_names(str(tmp_path / name), ",") is None


def test_a_directory_a_large_file_and_a_file_elsewhere_are_not_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "rows.csv"
    source.write_bytes(b"a,b\n1,2\n")
    assert is_small(str(source))
    assert checked_names(str(source), ",") == ["a", "b"]
    assert not is_small(str(tmp_path))
    assert not is_small(f"hdfs://host{source}")
    monkeypatch.setattr(local_csv, "SMALL_BYTES", 7)
    assert not is_small(str(source))
    assert checked_names(str(source), ",") is None
