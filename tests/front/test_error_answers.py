"""The table from error classes to statuses, and the error envelope."""

from __future__ import annotations

import json

import pytest

from topics import errors
from topics.actors.rpc.replies import failure_of
from topics.actors.rpc.session import RemoteError
from topics.formats.wire.envelope import ErrorCode
from topics.front.error_answers import STATUS, error_answer, retry_after_s


def leaves(cls: type[errors.TopicsError]) -> set[type[errors.TopicsError]]:
    ours = [child for child in cls.__subclasses__() if child.__module__ == errors.__name__]
    return {leaf for child in ours for leaf in leaves(child)} or {cls}


def test_the_table_contains_exactly_the_leaves_of_the_error_tree() -> None:
    assert set(STATUS) == leaves(errors.TopicsError)


def test_an_empty_detail_is_omitted() -> None:
    assert json.loads(bytes(error_answer(errors.NotFound("gone")).body)) == {
        "error": {"code": "not_found", "message": "gone"}
    }
    answer = error_answer(errors.TopicNotFound("jobs"), at=1)
    document = json.loads(bytes(answer.body))
    assert document["error"]["detail"] == {"topic": "jobs"}
    assert document["performance"]["server_total_ms"] > 0


@pytest.mark.parametrize(("ms", "seconds"), [(0, 1), (1, 1), (1000, 1), (1001, 2), (59_999.5, 60)])
def test_retry_after_is_rounded_up_to_seconds(ms: float, seconds: int) -> None:
    assert retry_after_s(ms) == seconds


def test_a_call_that_a_shard_did_not_start_in_time_can_be_retried() -> None:
    failure = failure_of(RemoteError(ErrorCode.TIMEOUT, "Handler timeout"))
    answer = error_answer(failure)
    assert (answer.status, json.loads(bytes(answer.body))["error"]["code"]) == (503, "not_ready")
    assert dict(answer.headers)[b"retry-after"] == b"1"
