"""GET /v0/ws (§7.3): the handshake."""

from __future__ import annotations

import pytest

from tests.support.api import Api, refused, request
from tests.support.server import Server
from tests.support.ws import (
    KEY,
    Socket,
    accept_of,
    alive,
    handshake,
    shake,
)


def test_a_handshake_is_answered_as_the_rfc_says(server: Server) -> None:
    answer = shake(server, handshake(KEY))
    assert answer.status == 101
    assert answer.headers["upgrade"].lower() == "websocket"
    assert answer.headers["connection"].lower() == "upgrade"
    assert (
        answer.headers["sec-websocket-accept"] == accept_of(KEY) == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    )
    assert not {
        "content-length",
        "transfer-encoding",
        "sec-websocket-extensions",
        "sec-websocket-protocol",
    } & set(answer.headers)


@pytest.mark.parametrize(
    "lines",
    [
        ["Upgrade: WebSocket", "Connection: upgrade"],
        ["upgrade: websocket", "connection: keep-alive, Upgrade"],
        ["UPGRADE: websocket", "CONNECTION: Upgrade", "ORIGIN: HTTP://LOCALHOST:8000"],
        ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Extensions: x-unheard-of"],
    ],
)
def test_header_names_and_tokens_have_no_case(server: Server, lines: list[str]) -> None:
    content = request(
        "GET", "/v0/ws", None, *lines, f"Sec-WebSocket-Key: {KEY}", "Sec-WebSocket-Version: 13"
    )
    answer = shake(server, content)
    assert answer.status == 101
    assert "x-unheard-of" not in answer.headers.get("sec-websocket-extensions", "")


@pytest.mark.parametrize("version", ["8", "12", "14", "abc", None])
def test_another_version_is_refused(server: Server, version: str | None) -> None:
    answer = shake(server, handshake(KEY, version=version))
    assert answer.status in (400, 426)
    if answer.status == 426:
        assert answer.headers["sec-websocket-version"] == "13"


@pytest.mark.parametrize(
    "key",
    [None, "", "short", "dGhlIHNhbXBsZSBub25jZQ", "!" * 24, "dGhlIHNhbXBsZSBub25jZSBsb25nZXI="],
)
def test_a_key_that_is_no_16_bytes_is_refused(server: Server, key: str | None) -> None:
    assert shake(server, handshake(key)).status == 400


def test_a_plain_get_is_refused(api: Api) -> None:
    assert api.call("GET", "/v0/ws").status in (400, 426)


def test_http_1_0_knows_no_upgrade(server: Server) -> None:
    answer = shake(server, handshake().replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n"))
    assert refused(answer, 426, "upgrade_required")


def test_a_websocket_is_opened_with_get_only(api: Api) -> None:
    refused(api.call("POST", "/v0/ws", {}), 405, "method_not_allowed")


def test_a_refused_handshake_leaves_the_server_well(server: Server, api: Api) -> None:
    for _ in range(20):
        shake(server, handshake(None))
    with Socket(server.address) as socket:
        alive(socket)
