"""The lines at the end of a write."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from topics.spark.sink.report import left_behind, summary_line, warnings_of
from topics.spark.sink.sending import Sent, TaskFigures


def task(topic: str, records: int, **more: int) -> TaskFigures:
    return TaskFigures({topic: Sent(records, requests=1, **more)}, retries=1)


def test_the_tasks_of_a_topic_are_added_up() -> None:
    told = summary_line([task("t", 1000), task("t", 500)], seconds=1.25)
    assert told == '1,500 records to topic "t" in 1.2 s, 2 requests, 2 retries'


def test_what_earlier_attempts_had_appended_is_told() -> None:
    told = summary_line([task("t", 10, repeated=7)], seconds=1)
    assert told.endswith(", 7 of the records were there from an earlier attempt or run")


def test_many_topics_are_counted_and_some_are_named() -> None:
    told = summary_line([task(name, 1) for name in "edcba"], seconds=1)
    assert told.startswith('5 records to 5 topics ("a", "b", "c" and others) in ')
    assert summary_line([task("b", 1), task("a", 1)], seconds=1).startswith(
        '2 records to topics "a", "b" in '
    )
    assert summary_line([], seconds=1).startswith("0 records to no topic in ")


@pytest.mark.parametrize(
    ("moved", "told"),
    [
        (0, ""),
        (1200, "about 1,200 records that it appended stay"),
        (None, "the 10 records of its finished tasks stay, and what the others appended"),
    ],
)
def test_what_stays_of_a_failed_write_is_told(moved: int | None, told: str) -> None:
    assert left_behind([task("t", 10)], moved) == told


def test_a_warning_is_told_once() -> None:
    tasks = [TaskFigures(warnings=["a", "b"]), TaskFigures(warnings=["b", "c"])]
    assert warnings_of(["a"], tasks) == ["a", "b", "c"]
