"""The bytes of single WebSocket frames: the table, the examples of RFC 6455, lengths."""

from __future__ import annotations

import base64
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.utilities import generate_accept_token

from tests.support.websocket_streams import KEY, frame, parse
from topics.formats.api import websocket_frames
from topics.formats.api.websocket_frames import (
    ping_frame,
    pong_frame,
    text_frame,
)
from topics.formats.api.websocket_messages import Binary, CloseCode, accept_key, close_frame, is_key


def test_the_table_in_the_docstring_is_how_a_frame_is_read() -> None:
    rows = re.findall(
        r"^    (\d(?: \+ x)?) {2,}(\w.*?) {2,}(\w+) {2,}",
        websocket_frames.__doc__ or "",
        re.MULTILINE,
    )
    assert [name for _, _, name in rows] == ["first", "second", "extended", "key", "payload"]
    sizes = {name: size for _, size, name in rows}
    for length, x in ((125, 0), (126, 2), (65_536, 8)):
        stream = frame(0x82, b"p" * length)
        offsets = {name: eval(at, {"x": x}) for at, _, name in rows}
        assert str(x) in sizes["extended"]
        assert stream[offsets["first"]] == 0x82
        assert stream[offsets["key"] : offsets["payload"]] == KEY
        assert len(stream) == offsets["payload"] + length
        assert parse(stream) == [Binary(b"p" * length)]


def test_encoded_frames_are_those_of_the_rfc() -> None:
    assert text_frame(b"Hello").hex() == "810548656c6c6f"
    assert ping_frame(b"Hello").hex() == "890548656c6c6f"
    assert pong_frame(b"Hello").hex() == "8a0548656c6c6f"
    assert close_frame(1000, "bye").hex() == "880503e8627965"
    assert close_frame(CloseCode.NO_STATUS, "never sent").hex() == "8800"


# The keys of a WebSocket handshake


@given(st.binary(min_size=16, max_size=16))
def test_the_handshake_answers_as_another_implementation_does(nonce: bytes) -> None:
    key = base64.b64encode(nonce)
    assert is_key(key)
    assert accept_key(key) == generate_accept_token(key)


@pytest.mark.parametrize(
    "key",
    [
        *(b"", b"dGhlIHNhbXBsZSBub25jZQ=", b"dGhlIHNhbXBsZSBub25jZQ==\n", b"dGhlIHNhbXBsZSBub25j"),
        *(b"dGhl*HNhbXBsZSBub25jZQ==", b"A" * 24),
    ],
)
def test_a_key_that_is_not_16_bytes_of_base64_is_invalid(key: bytes) -> None:
    assert not is_key(key)
