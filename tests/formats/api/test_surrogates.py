"""Lone surrogates in JSON text: their position, and text that only resembles them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.formats.api.surrogates import SEARCH_MAX_BYTES, has_surrogate, lone_surrogate


@given(
    st.lists(
        st.sampled_from(["a", "\\", '"', "é", "\ud83d", "\ude00", "\U0001f600", "u", "d800"]),
        max_size=8,
    ).map("".join)
)
def test_the_position_of_a_lone_surrogate_is_found(text: str) -> None:
    decoded = json.loads(json.dumps(text))  # Two adjacent halves become one character
    encoded = json.dumps(text).encode()
    found = lone_surrogate(encoded)
    assert (found is not None) is has_surrogate(decoded)
    if found is not None:
        assert encoded[found : found + 3].lower() == b"\\ud"
        assert lone_surrogate(encoded[:found]) is None


@pytest.mark.parametrize(
    "text", [b'"\\\\ud800"', b'"\\ud83d\\ude00"', b'"\\u00e9"', b"", b'"\\', b'"\\u"', b'"\\ud8"']
)
def test_text_that_only_resembles_a_lone_surrogate_is_valid(text: bytes) -> None:
    assert lone_surrogate(text) is None


def test_a_long_text_is_not_searched() -> None:
    assert lone_surrogate(b'"\\ud800"') == 1
    assert lone_surrogate(b'"\\ud800"'.ljust(SEARCH_MAX_BYTES + 1)) is None
