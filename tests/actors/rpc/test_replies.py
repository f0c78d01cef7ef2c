"""Replies: the contents of results and errors for the caller and for the log. Failures of a shard
are raised as exceptions of the same class.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from tests.support.wire import Pair
from topics import errors
from topics.actors.rpc.replies import (
    APPLICATION_ERROR,
    CONTRACT_ERROR,
    answer_error,
    failure_of,
    failures_of,
    map_error,
    reply_json,
)
from topics.actors.rpc.session import InboundMessage, RemoteError
from topics.errors import Internal, NotReady, TopicFull, TopicNotFound, TopicsError
from topics.formats.wire.calls import (
    NO_RESULT,
    TOPIC_GET,
    AppendOutcome,
    AppendResult,
    NoResult,
    TopicGetParams,
)
from topics.formats.wire.envelope import ErrorCode
from topics.storage.disk import Damaged

GET = TopicGetParams("a", touch=False, at=0)
CLASSES = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "code")
]


ABOUT: Any = SimpleNamespace(subject="about")


def test_damage_is_reported_without_its_path_and_logged_with_it() -> None:
    with capture_logs() as logs:
        sent = map_error(Damaged(Path("/data/x.seg"), 4711, "a bad checksum"), ABOUT)
    assert sent.code == CONTRACT_ERROR
    assert sent.data == {"code": "internal", "detail": {}}
    assert "x.seg" not in sent.message
    assert logs == [
        {
            "event": "data damaged",
            "log_level": "error",
            "subject": "about",
            "path": "/data/x.seg",
            "offset": 4711,
            "reason": "a bad checksum",
        }
    ]


def test_an_unexpected_error_is_logged_with_its_traceback() -> None:
    error = ZeroDivisionError("by zero")
    with capture_logs() as logs:
        sent = map_error(error, ABOUT)
    assert sent.code == APPLICATION_ERROR
    found = failure_of(RemoteError(*sent))
    assert (type(found), found.message) == (Internal, "ZeroDivisionError: by zero")
    assert type(failure_of(RemoteError(CONTRACT_ERROR, "no data"))) is Internal
    assert [(entry["event"], entry["exc_info"]) for entry in logs] == [("handler failed", error)]


def test_a_reply_ends_with_its_duration(pair: Pair) -> None:
    def get(request: InboundMessage[TopicGetParams, NoResult]) -> None:
        reply_json(request, NO_RESULT, b'{"topic":"a"', time.monotonic_ns() - 5_000_000)

    pair.shard.serve(TOPIC_GET, get)
    call = pair.call(TOPIC_GET, GET)
    pair.deliver()
    answer = msgspec.json.decode(bytes(call.reply().body))
    assert answer["topic"] == "a"
    assert 5 <= answer["performance"]["server_total_ms"] < 5000


def test_the_caller_receives_the_error_of_its_request(pair: Pair) -> None:
    pair.shard.serve(TOPIC_GET, lambda request: answer_error(request, TopicNotFound("a")))
    pair.call(TOPIC_GET, GET)
    pair.shard.dispatch(pair.server, pair.to_shard.take()[0])
    (answer,) = pair.to_front.answers()
    assert (answer["code"], answer["data"]["code"]) == (CONTRACT_ERROR, "topic_not_found")


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_failure_reaches_the_caller_unchanged(kind: type[TopicsError]) -> None:
    raised = TopicsError.restore(kind, "why", {"topic": "a", "max": 7})
    with capture_logs() as logs:
        found = failure_of(RemoteError(*map_error(raised, ABOUT)))
    assert (type(found), found.message, found.detail) == (kind, "why", {"topic": "a", "max": 7})
    assert logs == []


def test_a_timeout_is_reported_as_not_ready() -> None:
    found = failure_of(RemoteError(ErrorCode.TIMEOUT, "Handler timeout"))
    assert (type(found), found.detail) == (NotReady, {"reason": "timeout"})


def test_failures_of_a_batch_belong_to_its_requests() -> None:
    result = AppendResult(
        bytes((AppendOutcome.FAILED, AppendOutcome.APPENDED, AppendOutcome.FAILED)),
        [0, 9, 0],
        [
            ("topic_full", "no space", {"cap_records": 2}),
            ("topic_not_found", "not found", {"topic": "a"}),
        ],
    )
    full, missing = failures_of(result)
    assert (type(full), full.message, full.detail) == (TopicFull, "no space", {"cap_records": 2})
    assert (type(missing), missing.message, missing.detail) == (
        TopicNotFound,
        "not found",
        {"topic": "a"},
    )
    assert failures_of(AppendResult(bytes((AppendOutcome.CREATED,)))) == []
