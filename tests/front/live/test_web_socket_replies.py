"""WebSocket replies: each is one text frame of JSON, and repeats the ``request_id`` as it came."""

from __future__ import annotations

import json
from typing import Any

import pytest

from topics.errors import Internal, InvalidRequest, TopicNotFound
from topics.front.live.web_socket_replies import pong, refusal, subscribed, unsubscribed

IDS = pytest.mark.parametrize("request_id", [b"null", b'"\\u00e9"', b"12345678901234567890.50"])


def payload(frame: bytes) -> bytes:
    """The payload of a short or middling text frame."""
    assert frame[0] == 0x81
    start = 2 if frame[1] < 126 else 4
    length = frame[1] if frame[1] < 126 else int.from_bytes(frame[2:4], "big")
    assert len(frame) == start + length
    return frame[start:]


@IDS
def test_every_reply_repeats_the_bytes_of_its_request_id(request_id: bytes) -> None:
    for frame in (
        pong(request_id),
        subscribed(request_id, {"t": {"from_seq": 1}}),
        unsubscribed(request_id, "t"),
        refusal(request_id, TopicNotFound("t")),
    ):
        assert b'"request_id":%b' % request_id in payload(frame)
        json.loads(payload(frame))


def test_replies_say_what_was_done() -> None:
    topics = {"a": {"from_seq": 1}, "b": {"from_seq": 2}}
    assert json.loads(payload(subscribed(b"7", topics))) == {
        "op": "subscribed",
        "request_id": 7,
        "topics": topics,
    }
    assert json.loads(payload(unsubscribed(b"7", 'q"é'))) == {
        "op": "unsubscribed",
        "request_id": 7,
        "topic": 'q"é',
    }


@pytest.mark.parametrize("detail", [{}, {"field": "topics", "max": 3}])
def test_a_refusal_has_code_message_and_detail_if_there_is_one(detail: dict[str, Any]) -> None:
    failure = InvalidRequest("no", **detail)
    assert json.loads(payload(refusal(b"1", failure))) == {
        "op": "error",
        "request_id": 1,
        "code": failure.code,
        "message": "no",
        **({"detail": detail} if detail else {}),
    }


def test_an_unexpected_error_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    told = payload(refusal(b"1", Internal("a secret of the shard")))
    assert json.loads(told)["message"] == "internal error"
    assert b"secret" not in told
    assert "a secret of the shard" in caplog.text
