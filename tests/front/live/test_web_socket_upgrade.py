"""WebSocket upgrade: which handshakes are accepted, and what is wrong with the others."""

from __future__ import annotations

import pytest

from tests.support.ws import KEY, accept_of
from topics.errors import InvalidRequest, TopicsError, UpgradeRequired
from topics.formats.api.request_heads import HeadFields
from topics.front.routes.web_socket import upgrade

GOOD = {
    b"upgrade": b"websocket",
    b"connection": b"Upgrade",
    b"sec-websocket-version": b"13",
    b"sec-websocket-key": KEY.encode(),
}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {b"upgrade": b"h2c, WebSocket"},
        {b"connection": b"keep-alive, upgrade"},
        {b"sec-websocket-extensions": b"permessage-deflate"},
    ],
)
def test_a_handshake_is_answered_with_the_digest_of_its_key(changed: dict[bytes, bytes]) -> None:
    headers = dict(upgrade(HeadFields([*(GOOD | changed).items()])))
    assert headers == {
        b"upgrade": b"websocket",
        b"connection": b"Upgrade",
        b"sec-websocket-accept": accept_of(KEY).encode(),
    }, "and no extension is agreed on"


@pytest.mark.parametrize(
    ("name", "value", "failure"),
    [
        (b"upgrade", b"", UpgradeRequired),
        (b"upgrade", b"websockets", UpgradeRequired),
        (b"connection", b"close", UpgradeRequired),
        (b"sec-websocket-version", b"8", UpgradeRequired),
        (b"sec-websocket-version", b"13, 8", UpgradeRequired),
        (b"sec-websocket-key", b"", InvalidRequest),
        (b"sec-websocket-key", b"c2hvcnQ=", InvalidRequest),
        (b"sec-websocket-key", b"*" * 24, InvalidRequest),
    ],
)
def test_a_handshake_that_is_none_is_refused(
    name: bytes, value: bytes, failure: type[TopicsError]
) -> None:
    with pytest.raises(failure):
        upgrade(HeadFields([*(GOOD | {name: value}).items()]))


@pytest.mark.parametrize("name", [b"sec-websocket-key", b"sec-websocket-version"])
def test_a_field_that_may_come_once_is_refused_when_it_comes_twice(name: bytes) -> None:
    with pytest.raises((UpgradeRequired, InvalidRequest)):
        upgrade(HeadFields([*GOOD.items(), (name, GOOD[name])]))
