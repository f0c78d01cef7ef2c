"""Decoding: bodies that are no UTF-8, no JSON or without end are refused with what is wrong."""

from __future__ import annotations

import msgspec
import pytest

from topics.errors import InvalidRequest
from topics.formats.api.decoding import decode, decode_config, refusing_bad_bodies


class Body(msgspec.Struct):
    data: msgspec.Raw
    limit: int = 0


parse = msgspec.json.Decoder(Body).decode


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_payload_is_kept_as_it_came_whatever_memory_it_lies_in(kind: type) -> None:
    body = '{"data": {"é" : 1.10}, "unknown": []}'.encode()
    assert bytes(decode(parse, kind(body)).data) == '{"é" : 1.10}'.encode()


@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_bytes_within_a_payload_that_are_no_utf_8_are_refused_with_their_place(
    kind: type,
) -> None:
    with pytest.raises(InvalidRequest, match="not valid UTF-8: byte 9") as refused:
        decode(parse, kind(b'{"data":"\xff"}'))
    assert refused.value.detail == {"offset": 9}


def test_a_field_of_another_type_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode(parse, b'{"data":1,"limit":"x"}')
    assert refused.value.detail["field"] == "limit"


def test_a_body_that_is_nested_without_end_is_refused() -> None:
    body = b'{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        decode(parse, body)


def test_what_a_decoder_raises_is_a_refusal_and_nothing_else_is() -> None:
    with pytest.raises(InvalidRequest), refusing_bad_bodies():
        msgspec.json.decode(b"{")
    with pytest.raises(ZeroDivisionError), refusing_bad_bodies():
        raise ZeroDivisionError


def test_an_empty_body_of_a_put_names_no_field() -> None:
    assert decode_config(b"") == decode_config(b"{}")
