"""All spellings of ``disable_backpressure`` in a body, and what only looks like one."""

from __future__ import annotations

import pytest

from topics.front.pressure.pressure import opts_out

RECORDS = b'"records":[{"data":1}]'
ESCAPED = "".join(f"\\u{ord(letter):04x}" for letter in "disable_backpressure").encode()


@pytest.mark.parametrize(
    "body",
    [
        b'{%b,"disable_backpressure":true}' % RECORDS,
        b'{"disable_backpressure" \t:\n true , %b}' % RECORDS,
        b'{"disable_\\u0062ackpressure":true,%b}' % RECORDS,
        b'{"%b":true,%b}' % (ESCAPED, RECORDS),
        b'{"%b":true,%b}' % (ESCAPED.replace(b"f", b"F"), RECORDS),
        b'{"disable_backpressure":false,%b,"disable_backpressure":true}' % RECORDS,
        bytearray(b'{"disable_backpressure":true}'),
        memoryview(b'{"disable_backpressure":true}'),
    ],
)
def test_a_body_opts_out_however_it_is_spelled(body: bytes) -> None:
    assert opts_out(body)


@pytest.mark.parametrize(
    "body",
    [
        b"{%b}" % RECORDS,
        b"",
        b'{"disable_backpressure":false,%b}' % RECORDS,
        b'{"disable_backpressure":true,%b,"disable_backpressure":false}' % RECORDS,
        b'{"records":[{"data":{"disable_backpressure":true}}]}',
        b'{"records":[{"data":"\\"disable_backpressure\\":true"}]}',
        b'{"config":{"disable_backpressure":true}}',
        b'{"Disable_Backpressure":true}',
        b'{"disable_backpressure":"true"}',
        b'{"disable_backpressure":1}',
        b'{"disable_backpressure":null}',
        b'{"disable_backpressure":true',
        b'["disable_backpressure",true]',
        b'{"records":"\\ud800","disable_backpressure"',
        b'{"backpressure\xff":true}',
        b'{"x":%b"backpressure"%b}' % (b"[" * 100_000, b"]" * 100_000),
    ],
)
def test_anything_else_does_not(body: bytes) -> None:
    assert not opts_out(body)
