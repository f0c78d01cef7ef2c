"""Replies: what the caller is told of an answer and of an error, and what the log is told."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
from structlog.testing import capture_logs

from tests.support.wire import Pair
from topics.actors.rpc.replies import (
    APPLICATION_ERROR,
    CONTRACT_ERROR,
    answer_error,
    map_error,
    reply_json,
)
from topics.actors.rpc.typed_calls import InboundCall, serve
from topics.errors import TopicNotFound
from topics.formats.wire.calls import (
    NO_RESULT,
    TOPIC_GET,
    NoResult,
    TopicGetParams,
)
from topics.storage.disk import Damaged

GET = TopicGetParams("a", touch=False, at=0)


class About:
    subject = "about"


def test_a_failure_of_the_contract_travels_with_its_code_and_is_not_logged() -> None:
    with capture_logs() as logs:
        sent = map_error(TopicNotFound("a"), About())
    assert sent == (
        CONTRACT_ERROR,
        'topic "a" does not exist',
        {"code": "topic_not_found", "detail": {"topic": "a"}},
    )
    assert logs == []


def test_damage_is_told_without_its_path_and_logged_with_it() -> None:
    with capture_logs() as logs:
        sent = map_error(Damaged(Path("/data/x.seg"), 4711, "a bad checksum"), About())
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
        sent = map_error(error, About())
    assert (sent.code, sent.message) == (APPLICATION_ERROR, "ZeroDivisionError: by zero")
    assert [(entry["event"], entry["exc_info"]) for entry in logs] == [("handler failed", error)]


def test_an_answer_ends_with_the_time_that_it_took(pair: Pair) -> None:
    def get(request: InboundCall[TopicGetParams, NoResult]) -> None:
        reply_json(request, NO_RESULT, b'{"topic":"a"', time.monotonic_ns() - 5_000_000)

    serve(pair.shard, TOPIC_GET, get)
    asked = pair.ask(TOPIC_GET, GET)
    pair.deliver()
    answer = msgspec.json.decode(bytes(asked.reply().body))
    assert answer["topic"] == "a"
    assert 5 <= answer["performance"]["server_total_ms"] < 5000


def test_the_caller_hears_the_error_of_its_request(pair: Pair) -> None:
    serve(pair.shard, TOPIC_GET, lambda request: answer_error(request, TopicNotFound("a")))
    pair.ask(TOPIC_GET, GET)
    pair.shard.dispatch(pair.server, pair.to_shard.take()[0])
    (answer,) = pair.to_front.answers()
    assert (answer["code"], answer["data"]["code"]) == (CONTRACT_ERROR, "topic_not_found")
