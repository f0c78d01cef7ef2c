"""Failures of a shard become the failures of the tree again."""

from __future__ import annotations

import pytest

from topics import errors
from topics.actors.rpc.replies import (
    APPLICATION_ERROR,
    CONTRACT_ERROR,
    failure_of,
    failures_of,
    map_error,
)
from topics.actors.rpc.session import RemoteError
from topics.errors import Internal, NotReady, TopicFull, TopicNotFound, TopicsError
from topics.formats.wire.calls import AppendOutcome, AppendResult
from topics.formats.wire.envelope import ErrorCode

CLASSES = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "code")
]


class About:
    subject = "about"


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_failure_survives_the_way_to_the_caller(kind: type[TopicsError]) -> None:
    raised = TopicsError.restore(kind, "why", {"topic": "a", "max": 7})
    found = failure_of(RemoteError(*map_error(raised, About())))
    assert (type(found), found.message, found.detail) == (kind, "why", {"topic": "a", "max": 7})


def test_a_failure_without_a_code_is_an_unexpected_error() -> None:
    sent = map_error(ZeroDivisionError("division by zero"), About())
    assert sent.code == APPLICATION_ERROR
    found = failure_of(RemoteError(*sent))
    assert (type(found), found.message) == (Internal, "ZeroDivisionError: division by zero")
    assert type(failure_of(RemoteError(CONTRACT_ERROR, "no data"))) is Internal


def test_a_time_out_says_that_nothing_was_done() -> None:
    found = failure_of(RemoteError(ErrorCode.TIMEOUT, "Handler timeout"))
    assert (type(found), found.detail) == (NotReady, {"reason": "timeout"})


def test_failures_of_a_batch_are_those_of_its_requests() -> None:
    result = AppendResult(
        bytes((AppendOutcome.FAILED, AppendOutcome.APPENDED, AppendOutcome.FAILED)),
        [0, 9, 0],
        [
            ("topic_full", "no room", {"cap_records": 2}),
            ("topic_not_found", "gone", {"topic": "a"}),
        ],
    )
    full, gone = failures_of(result)
    assert (type(full), full.message, full.detail) == (TopicFull, "no room", {"cap_records": 2})
    assert (type(gone), gone.message, gone.detail) == (TopicNotFound, "gone", {"topic": "a"})
    assert failures_of(AppendResult(bytes((AppendOutcome.CREATED,)))) == []
