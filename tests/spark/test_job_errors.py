"""The one line that a failed job writes."""

from __future__ import annotations

import pytest

from topics.spark.job_errors import LOSS_ADVICE, JobError, UsageError, last_line, spark_errors

MALFORMED_CSV = """[MALFORMED_RECORD_IN_PARSING] while reading file file:///d/a.csv.
Malformed CSV record: 3,4 SQLSTATE: 22023"""
NO_JAR = """An error occurred while calling o47.text.
: java.lang.RuntimeException: java.lang.ClassNotFoundException: Class \
org.apache.hadoop.fs.s3a.S3AFileSystem not found
\tat x"""
ADD_JAR = """Spark has no class org.apache.hadoop.fs.s3a.S3AFileSystem: add the jar \
org.apache.hadoop:hadoop-aws, for example by \
PYSPARK_SUBMIT_ARGS='--packages org.apache.hadoop:hadoop-aws:VERSION pyspark-shell'"""
NO_SCHEME = """An error occurred while calling o67.getFileSystem.
: org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3"
\tat x"""
NO_FOLDER = """An error occurred while calling o202.create.
: java.io.IOException: Mkdirs failed to create file:/proc/nope/x (exists=false, cwd=file:/work)
\tat x"""
NO_PATH = "[PATH_NOT_FOUND] Path does not exist: file:/nowhere/*.csv. SQLSTATE: 42K03"


def test_the_line_is_the_error_of_the_server_if_there_is_one() -> None:
    refusal = 'topics.spark.client.http.RequestError: topic "t": 422 topic_full: full'
    spark_text = f"Job aborted\nTraceback:\n{refusal}\n\tat java.Thread"
    assert last_line(Exception(spark_text)) == 'topic "t": 422 topic_full: full'
    assert last_line(Exception("[NO_TABLE] no such table\nplan")) == "[NO_TABLE] no such table"
    assert last_line(ValueError()) == "ValueError"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (MALFORMED_CSV, "/d/a.csv: broken record: '3,4'"),
        ("[MALFORMED_RECORD_IN_PARSING]", "the source: broken record"),
        (
            "Job aborted while reading file s3://b/x.parquet.\nCaused by: not a Parquet file",
            "s3://b/x.parquet: not a Parquet file",
        ),
        ("An error occurred while calling o1.load.\n: no such bucket\n\tat x", "no such bucket"),
        (NO_JAR, ADD_JAR),
        (NO_SCHEME, "Spark has no file system for s3://: use s3a://"),
        (NO_FOLDER, "/proc/nope/x: the folder cannot be created"),
        (NO_PATH, "/nowhere/*.csv: no such file or directory"),
    ],
)
def test_an_error_of_spark_becomes_one_line_with_the_file_and_the_record(
    text: str, line: str
) -> None:
    assert last_line(Exception(text)) == line


def test_an_error_of_spark_is_a_job_error_and_other_errors_are_not() -> None:
    py4j = pytest.importorskip("py4j.protocol")
    pytest.importorskip("pyspark")
    with pytest.raises(JobError, match=r"^gone$"), spark_errors():
        raise py4j.Py4JError("gone\n\tat java.Thread")
    for text in (NO_SCHEME, NO_FOLDER, NO_PATH, "x.BadOption: option columns names 'x'"):
        with pytest.raises(UsageError), spark_errors():
            raise py4j.Py4JError(text)
    advice = r"^lost \(add --allow-loss to continue without them\)$"
    with pytest.raises(JobError, match=advice), spark_errors():
        raise py4j.Py4JError(f"x.DataLost: lost ({LOSS_ADVICE})")
    with pytest.raises(ZeroDivisionError), spark_errors():
        raise ZeroDivisionError
