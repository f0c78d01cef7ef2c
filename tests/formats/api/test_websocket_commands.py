"""WebSocket commands: how one is dispatched, and where its subscription begins."""

from __future__ import annotations

import pytest

from tests.support.limits import LIMITS
from topics.errors import InvalidRequest
from topics.formats.api.watch import HEARTBEAT_MS, Start, decode_watch
from topics.formats.api.websocket_commands import (
    decode_command,
    decode_subscribe,
    request_id_of,
)


def test_a_head_has_what_a_command_is_dispatched_by() -> None:
    head = decode_command(b'{"op":"publish","topic":"a","records":[{}],"request_id":[1]}')
    assert (head.op, head.topic, head.return_seqs) == ("publish", "a", True)
    assert bytes(head.request_id) == b"[1]"
    ping = decode_command(b'{"op":"ping"}')
    assert bytes(ping.request_id) == b"null"
    with pytest.raises(InvalidRequest):
        decode_command(b'{"topic":"a"}')


@pytest.mark.parametrize(
    ("message", "request_id"),
    [
        (b'{"request_id": "x\\u00e9" }', b'"x\\u00e9"'),
        (b'{"op":7,"request_id":{"n":1.10}}', b'{"n":1.10}'),
        (b'{"op":"ping"}', b"null"),
        (b"no JSON", b"null"),
        (b"[1]", b"null"),
        (b'{"x":' + b"[" * 100_000, b"null"),
    ],
)
def test_a_request_id_is_told_as_it_came_whatever_else_is_wrong(
    message: bytes, request_id: bytes
) -> None:
    assert request_id_of(message) == request_id


def test_a_subscription_begins_in_one_topic_or_in_each_of_several() -> None:
    one = decode_subscribe(
        b'{"op":"subscribe","topic":"a","from_seq":3,"epoch":9,"limit":5}', LIMITS, 2
    )
    assert (one.starts, one.view.limit) == ({"a": Start(3, False, 9)}, 5)
    assert one.heartbeat_ms == HEARTBEAT_MS
    tail = decode_subscribe(b'{"op":"subscribe","topic":"a","tail":true}', LIMITS, 2)
    assert tail.starts == {"a": Start(tail=True)}
    body = b'{"op":"subscribe","topics":{"a":{"from_seq":1},"b":{}},"node":["n"]}'
    assert decode_subscribe(body, LIMITS, 2) == decode_watch(body, LIMITS, 2)


@pytest.mark.parametrize(
    "body",
    [
        b'{"op":"subscribe"}',
        b'{"op":"subscribe","topic":"a","topics":{"b":{}}}',
        b'{"op":"subscribe","topics":{}}',
        b'{"op":"subscribe","topics":{"a":{},"b":{},"c":{}}}',
        b'{"op":"subscribe","topic":"-a"}',
        b'{"op":"subscribe","topic":"a","from_seq":-1}',
        b'{"op":"subscribe","topic":"a","consistency":"total"}',
    ],
)
def test_any_other_subscription_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_subscribe(body, LIMITS, 2)
