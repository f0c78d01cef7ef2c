"""Which close codes may be sent, and what the payload of a CLOSE frame holds."""

from __future__ import annotations

import re

import pytest

from tests.support.websocket_streams import UTF8, frame, parse
from topics.formats.api import websocket_messages
from topics.formats.api.websocket_messages import (
    CODE_BYTES,
    REASON_MAX_BYTES,
    Close,
    CloseCode,
    Failure,
    close_frame,
    is_close_code,
)


def test_the_table_in_the_docstring_is_how_a_close_is_written() -> None:
    rows = re.findall(r"^    (\d+) +(\w+) +(\w+) ", websocket_messages.__doc__ or "", re.MULTILINE)
    assert rows == [("0", str(CODE_BYTES), "code"), (str(CODE_BYTES), "rest", "reason")]
    assert f"at most {REASON_MAX_BYTES} bytes" in (websocket_messages.__doc__ or "")
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
