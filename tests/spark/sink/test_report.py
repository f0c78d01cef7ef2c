"""Summaries of a write."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from topics.spark.sink.sending import Sent, TaskFigures
from topics.spark.sink.writer import _warn, remaining_records, summary_line


def task(topic: str, records: int, **more: int) -> TaskFigures:
    return TaskFigures({topic: Sent(records, requests=1, **more)}, retries=1)


def test_the_summary_adds_the_tasks_of_a_topic() -> None:
    message = summary_line([task("t", 1000), task("t", 500)], seconds=1.25)
    assert message == '1,500 records to topic "t" in 1.2 s, 2 requests, 2 retries'


def test_the_summary_counts_records_of_earlier_attempts() -> None:
    message = summary_line([task("t", 10, repeated=7)], seconds=1)
    assert message.endswith(", 7 of the records were there from an earlier attempt or run")


def test_the_summary_counts_topics_and_names_some() -> None:
    message = summary_line([task(name, 1) for name in "edcba"], seconds=1)
    assert message.startswith('5 records to 5 topics ("a", "b", "c" and others) in ')
    assert summary_line([task("b", 1), task("a", 1)], seconds=1).startswith(
        '2 records to topics "a", "b" in '
    )
    assert summary_line([], seconds=1).startswith("0 records to no topic in ")


@pytest.mark.parametrize(
    ("moved", "message"),
    [
        (0, ""),
        (1200, "about 1,200 records that it appended remain"),
        (None, "the 10 records of its finished tasks remain, and those of its other tasks"),
    ],
)
def test_the_remaining_records_of_a_failed_write_are_reported(
    moved: int | None, message: str
) -> None:
    assert remaining_records([task("t", 10)], moved) == message


def test_each_warning_is_written_once(capsys: pytest.CaptureFixture[str]) -> None:
    tasks = [TaskFigures(warnings=["a", "b"]), TaskFigures(warnings=["b", "c"])]
    _warn(["a"], tasks)
    assert capsys.readouterr().err == "".join(f"topics: warning: {text}\n" for text in "abc")
