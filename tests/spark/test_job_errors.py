"""The one line that a failed job shows."""

from __future__ import annotations

import pytest

from topics.spark.job_errors import JobError, last_line, spark_errors

MALFORMED_CSV = """[MALFORMED_RECORD_IN_PARSING] while reading file file:///d/a.csv.
Malformed CSV record: 3,4 SQLSTATE: 22023"""


def test_the_last_line_is_the_servers_refusal_where_there_is_one() -> None:
    refusal = 'topics.spark.client.request_error.RequestError: topic "t": 422 topic_full: full'
    spark_text = f"Job aborted\nTraceback:\n{refusal}\n\tat java.Thread"
    assert last_line(Exception(spark_text)) == 'topic "t": 422 topic_full: full'
    assert (
        last_line(Exception("[PATH_NOT_FOUND] no such path\nplan"))
        == "[PATH_NOT_FOUND] no such path"
    )
    assert last_line(ValueError()) == "ValueError"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            MALFORMED_CSV,
            "/d/a.csv holds a broken record: '3,4'",
        ),
        ("[MALFORMED_RECORD_IN_PARSING]", "the source holds a broken record"),
        (
            "Job aborted while reading file s3://b/x.parquet.\nCaused by: not a Parquet file",
            "s3://b/x.parquet: not a Parquet file",
        ),
        ("An error occurred while calling o1.load.\n: no such bucket\n\tat x", "no such bucket"),
    ],
)
def test_what_spark_reports_becomes_one_line_with_file_and_record(text: str, line: str) -> None:
    assert last_line(Exception(text)) == line


def test_what_spark_raises_is_a_job_error_and_other_errors_are_not() -> None:
    py4j = pytest.importorskip("py4j.protocol")
    pytest.importorskip("pyspark")
    with pytest.raises(JobError, match=r"^gone$"), spark_errors():
        raise py4j.Py4JError("gone\n\tat java.Thread")
    with pytest.raises(ZeroDivisionError), spark_errors():
        raise ZeroDivisionError
