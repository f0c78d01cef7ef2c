"""Lag: computed from the progress of a query."""

from __future__ import annotations

import json
from typing import Any

from topics.spark.source.lag import TopicLag, lags


def progress(end: Any, latest: Any) -> dict[str, Any]:
    return {"sources": [{"description": "x", "endOffset": end, "latestOffset": latest}]}


def at(seq: int, epoch: int = 7, lost: int = 0) -> list[int]:
    return [seq, epoch, lost, 0, 0]


END = {"one": {"a": at(5), "b": at(9, lost=3)}, "two": {"a": at(4)}}
LATEST = {"one": {"a": at(12), "b": at(9)}, "two": {"a": at(2, epoch=8)}}


def test_the_lag_is_the_number_of_unread_seqs_of_each_topic() -> None:
    found = [
        TopicLag("one", "a", 5, 7, 0),
        TopicLag("one", "b", 9, 0, 3),
        TopicLag("two", "a", 4, 0, 0),  # recreated: the old incarnation has no unread records
    ]
    assert lags(progress(END, LATEST)) == found
    assert lags(progress(json.dumps(END), json.dumps(LATEST))) == found


def test_there_is_no_lag_before_the_first_batch_or_for_other_sources() -> None:
    assert lags(None) == []
    assert lags({"sources": []}) == []
    assert lags(progress(None, None)) == []
    assert lags(progress({"logOffset": 3}, {"logOffset": 4})) == []
    assert lags(progress("3", "4")) == []
    assert lags(progress("{", "")) == []
