"""Event ids of watch streams: encoding, decoding, and malformed ids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topics.formats.api.watch import (
    ID_MAX_BYTES,
    MAP_MAX_TOPICS,
    decode_id,
    encode_checkpoint,
    encode_id,
)
from topics.formats.json_text import json_bytes


@given(st.dictionaries(st.text(max_size=20), st.integers(0, 2**63), max_size=5))
def test_a_map_of_cursors_is_decoded_as_it_was_encoded(cursors: dict[str, int]) -> None:
    assert decode_id(encode_id(cursors) or b"") == cursors


@given(st.integers(0, 10**18))
def test_a_checkpoint_number_is_decoded_as_it_was_encoded(number: int) -> None:
    assert decode_id(encode_checkpoint(number)) == number


@given(
    st.dictionaries(
        st.text(alphabet="abc.:-", min_size=1, max_size=255), st.integers(0, 2**64 - 1), max_size=66
    )
)
def test_an_event_id_never_exceeds_its_maximum_length(cursors: dict[str, int]) -> None:
    id_ = encode_id(cursors)
    if len(cursors) > MAP_MAX_TOPICS or len(json_bytes(cursors)) > ID_MAX_BYTES * 3 // 4:
        assert id_ is None
    else:
        assert id_ is not None
        assert len(id_) <= ID_MAX_BYTES
        assert decode_id(id_) == cursors


@given(st.binary(max_size=40))
def test_any_bytes_are_decoded_to_cursors_or_a_number(text: bytes) -> None:
    assert isinstance(decode_id(text), dict | int)
    assert decode_id(encode_checkpoint(10**19)) == {}, "no checkpoint has 20 digits"
