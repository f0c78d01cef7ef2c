"""The package without a JVM: its imports, names of columns, and the check for Java."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from topics.spark import data_source
from topics.spark.discovery.pyspark_topics import DefaultSource
from topics.spark.job_errors import JobError
from topics.spark.rows import quoted
from topics.spark.session import check_spark


def test_a_source_has_the_name_of_its_format() -> None:
    assert data_source().name() == "topics"
    assert DefaultSource is data_source()


def test_the_package_imports_neither_pyspark_nor_pyarrow() -> None:
    program = (
        "import sys, topics.spark; print({'pyspark', 'pyarrow', 'httpcore2'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("name", "literal"), [("id", "`id`"), ("a.b", "`a.b`"), ("a`b", "`a``b`"), ("", "``")]
)
def test_a_name_of_a_column_is_quoted_with_its_dots_and_backticks(name: str, literal: str) -> None:
    assert quoted(name) == literal


def fake_java(path: Path, says: str, status: int = 0) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {status}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("says", "message"),
    [
        (None, "does not run"),
        ("no runtime here", "does not run"),
        ('openjdk version "11.0.2" 2019', "is of version 11"),
        ('java version "1.8.0_392"', "is of version 8"),
        ('openjdk version "17.0.15" 2025', ""),
        ('openjdk version "25" 2025', ""),
    ],
)
def test_a_missing_or_old_java_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str | None, message: str
) -> None:
    pytest.importorskip("pyspark")
    if says is not None:
        fake_java(tmp_path / "bin" / "java", says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if message:
        with pytest.raises(
            JobError,
            match=f"Java 17 or newer, and {tmp_path}/bin/java \\(from JAVA_HOME\\) {message}",
        ):
            check_spark()
    else:
        check_spark()


def test_an_absent_java_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JobError, match="there is no java on PATH"):
        check_spark()
