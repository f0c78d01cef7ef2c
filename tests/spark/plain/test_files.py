"""Which files are loaded without a JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.plain.both import by_python
from topics.spark.plain.files import dialect_of, read_plain
from topics.spark.plain.rows import NotPlain
from topics.spark.plain.table import Dialect


def written(tmp_path: Path, name: str = "rows.csv", content: bytes = b"a,b\n1,x\n") -> str:
    (tmp_path / name).write_bytes(content)
    return str(tmp_path / name)


@pytest.mark.parametrize(
    "name", ["rows.csv.gz", "rows.json.zst", "_rows.csv", ".rows.csv", "[1].csv"]
)
def test_packed_hidden_and_globbed_files_are_left_to_spark(tmp_path: Path, name: str) -> None:
    with pytest.raises(NotPlain):
        read_plain(written(tmp_path, name), None, {}, None)


def test_folders_and_addresses_are_left_to_spark(tmp_path: Path) -> None:
    for source in (str(tmp_path), "s3://bucket/rows.csv", "file:///rows.csv"):
        with pytest.raises(NotPlain, match="one local file"):
            read_plain(source, "csv", {}, None)


@pytest.mark.parametrize(
    ("options", "dialect"),
    [
        ({}, Dialect()),
        ({"SEP": ";", "delimiter": "|"}, Dialect(";")),
        ({"nullValue": "NA", "Header": "FALSE"}, Dialect(",", "NA", False)),
    ],
)
def test_the_options_of_sparks_reader_say_how_a_file_is_written(
    options: dict[str, str], dialect: Dialect
) -> None:
    assert dialect_of("a.csv", options) == dialect


def test_a_tsv_file_has_tabs() -> None:
    assert dialect_of("a.tsv", {}).separator == "\t"


@pytest.mark.parametrize(
    "options",
    [
        {"quote": "'"},
        {"inferSchema": "true"},
        {"sep": "||"},
        {"sep": '"'},
        {"sep": "é"},
        {"header": "1"},
    ],
)
def test_other_options_are_left_to_spark(options: dict[str, str]) -> None:
    with pytest.raises(NotPlain):
        dialect_of("a.csv", options)


def test_options_for_other_formats_are_left_to_spark(tmp_path: Path) -> None:
    with pytest.raises(NotPlain, match="options"):
        read_plain(written(tmp_path, "a.json", b"{}"), None, {"multiLine": "true"}, None)


def test_content_and_options_make_the_digest(tmp_path: Path) -> None:
    source = written(tmp_path)
    digests = [
        read_plain(source, None, {}, None).digest,
        read_plain(source, None, {"nullValue": "x"}, None).digest,
        read_plain(written(tmp_path, content=b"a,b\n2,x\n"), None, {}, None).digest,
    ]
    assert len({*digests}) == 3
    assert read_plain(written(tmp_path), "csv", {}, "b").digest == digests[0]


def test_the_format_may_be_named(tmp_path: Path) -> None:
    path = Path(written(tmp_path, "rows.txt"))
    assert by_python(path, "csv") == [b'{"data":{"a":1,"b":"x"}},']
