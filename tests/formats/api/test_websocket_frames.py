"""The bytes of single WebSocket frames: the table, the examples of RFC 6455, lengths."""

from __future__ import annotations

import base64
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.utilities import generate_accept_token

from tests.support.websocket_streams import KEY, UTF8, frame, parse
from topics.formats.api import websocket_frames
from topics.formats.api.websocket_frames import (
    CODE_BYTES,
    REASON_MAX_BYTES,
    Binary,
    Close,
    CloseCode,
    Failure,
    accept_key,
    close_frame,
    is_close_code,
    is_key,
    ping_frame,
    pong_frame,
    text_frame,
)


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


# Closes


def test_the_table_in_the_docstring_is_how_a_close_is_written() -> None:
    rows = re.findall(
        r"^    (\d+) +(\w+) +(\w+) ", websocket_frames.decode_close.__doc__ or "", re.MULTILINE
    )
    assert rows == [("0", str(CODE_BYTES), "code"), (str(CODE_BYTES), "rest", "reason")]
    assert f"at most {REASON_MAX_BYTES} bytes" in (websocket_frames.decode_close.__doc__ or "")
    payload = close_frame(1001, "bye")[2:]
    assert (payload[:CODE_BYTES], payload[CODE_BYTES:]) == ((1001).to_bytes(2, "big"), b"bye")


def test_a_reason_is_cut_between_characters() -> None:
    assert close_frame(1008, "x" * 200) == b"\x88\x7d\x03\xf0" + b"x" * 123
    assert close_frame(1008, "x" * 122 + "é") == b"\x88\x7c\x03\xf0" + b"x" * 122


@pytest.mark.parametrize("code", [0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65_535])
def test_a_close_code_that_must_not_be_sent_is_refused(code: int) -> None:
    assert parse(frame(0x88, code.to_bytes(2))) == [
        Failure(1002, f"close code {code} must not be sent")
    ]
    assert not is_close_code(code)
    if code != CloseCode.NO_STATUS:
        with pytest.raises(ValueError, match=str(code)):
            close_frame(code)


@pytest.mark.parametrize(
    "code",
    [
        *(1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999),
        *(4000, 4999),
    ],
)
def test_every_other_close_code_passes(code: int) -> None:
    assert parse(frame(0x88, code.to_bytes(2) + UTF8.encode())) == [Close(code, UTF8)]
    assert close_frame(code, UTF8) == bytes((0x88, 12)) + code.to_bytes(2) + UTF8.encode()
