"""The keys of a WebSocket handshake."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.utilities import generate_accept_token

from topics.formats.api.websocket_handshake import accept_key, is_key


def test_the_handshake_answers_the_key_of_the_rfc() -> None:
    assert accept_key(b"dGhlIHNhbXBsZSBub25jZQ==") == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


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
