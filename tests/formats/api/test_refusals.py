"""Errors for malformed bodies: they name the field and the allowed values, and never contain text
of the decoder.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.config import Settings
from topics.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from topics.formats.api.append_body import decode_append
from topics.formats.api.decoding import CHOICES, decode_config
from topics.formats.api.diff_body import decode_delete, decode_diff
from topics.formats.api.limits import limits_of
from topics.formats.api.queue_bodies import (
    decode_ack,
    decode_claim,
    decode_extend,
    decode_nack,
    decode_redrive,
)
from topics.formats.api.router_json import decode_router
from topics.formats.api.surrogates import SEARCH_MAX_BYTES
from topics.formats.api.watch import decode_watch

LIMITS = limits_of(Settings())
DECODERS: dict[str, Callable[[bytes], object]] = {
    "PUT": decode_config,
    "append": lambda body: decode_append(body, None, LIMITS),
    "diff": lambda body: decode_diff(body, LIMITS),
    "delete": decode_delete,
    "watch": lambda body: decode_watch(body, LIMITS, 10),
    "claim": lambda body: decode_claim(body, LIMITS),
    "ack": lambda body: decode_ack(body, LIMITS),
    "nack": lambda body: decode_nack(body, LIMITS),
    "extend": lambda body: decode_extend(body, LIMITS),
    "redrive": decode_redrive,
    "router": lambda body: decode_router(body, LIMITS),
}


# Route, body, and message. The message begins with the field, if the error concerns one.
WRONG = r"""
PUT {"durability":"fast"} durability must be one of ephemeral, memory, disk, fsync, not 'fast'
PUT {"durability":5} durability must be one of ephemeral, memory, disk, fsync, not an integer
PUT {"type":"box"} type must be one of log, queue, not 'box'
PUT {"discard":null} discard must be one of old, reject, not null
PUT {"ttl_ms":"5"} ttl_ms must be an integer, not a string
PUT {"ttl_ms":1.5} ttl_ms must be an integer, not a number with a fraction or exponent
PUT {"priority":[]} priority must be an integer or null, not an array
PUT [] the body must be an object, not an array
PUT { the body ends within its JSON
PUT {"a":} the body is not JSON: invalid character (byte 5)
PUT {"dead_letter":"\ud800"} an unpaired surrogate at byte 16 of the body
append {} records is required
append {"records":[{}]} records[0].data is required
append {"records":[{"data":1,"tag":5}]} records[0].tag must be a string or null, not an integer
append {"records":[{"data":1}],"config":{"type":"x"}} config.type must be one of log, queue, not 'x'
append {"records":[{"data":"\ud800"}]} an unpaired surrogate at byte 21 of the body
diff {"node":5} node must be a string or an array or null, not an integer
diff {"from_seq":1e400} from_seq: number out of range
diff {"include_tags":"y"} include_tags must be true or false, not a string
delete {"before_seq":true} before_seq must be an integer or null, not true or false
watch {"topics":{"t":5}} topics[...] must be an object, not an integer
watch {"topics":{"\udfff":{}}} an unpaired surrogate at byte 12 of the body
claim {} node is required
claim {"node":null} node must be a string, not null
ack {"node":"w"} seqs is required
ack {"node":"w","seqs":7} seqs must be an array, not an integer
nack {"node":"w","seqs":[7,"8"]} seqs[1] must be an integer, not a string
nack {"node":"w","seqs":[7],"lease_ids":[7]} lease_ids[0] must be a string, not an integer
extend {"node":"w","seqs":[7]} lease_ms is required
redrive {"to":5} to must be a string or null, not an integer
router {"source":"a"} dest is required
router {"source":"a","dest":"b","guarantee":""} guarantee must be one of at_least_once, exactly_once
"""


@pytest.mark.parametrize("row", WRONG.strip().splitlines())
def test_a_rejected_body_names_the_field_and_the_allowed_values(row: str) -> None:
    route, body, message = row.split(" ", 2)
    with pytest.raises(InvalidRequest) as refused:
        DECODERS[route](body.encode())
    assert refused.value.message.removesuffix(", which is not a character") == message
    field = None if message.startswith(("the body", "an ")) else re.split("[ :]", message)[0]
    assert refused.value.detail.get("field") == field


def test_invalid_utf8_and_surrogates_in_long_bodies_are_reported_as_precisely_as_possible() -> None:
    with pytest.raises(InvalidRequest, match="not valid UTF-8: byte 6"):
        decode_config(b'{"a":"\xff"}')
    with pytest.raises(InvalidRequest, match="or contains an unpaired surrogate"):
        decode_append(
            b'{"records":[{"data":"' + b"x" * SEARCH_MAX_BYTES + b'\\ud800"}]}', None, LIMITS
        )


def test_every_enumerated_field_has_its_choices() -> None:
    assert CHOICES == {
        "type": ("log", "queue"),
        "discard": ("old", "reject"),
        "durability": ("ephemeral", "memory", "disk", "fsync"),
    }


WORDS = st.sampled_from(
    [
        *("type", "ttl_ms", "records", "data", "tag", "config", "topics", "node", "match"),
        *("from_seq", "seqs", "lease_ids", "lease_ms", "limit", "x"),
    ]
)
JSONISH = st.recursive(
    st.sampled_from(["1", "1.5", "-1", '"s"', "null", "true", '"\\ud800"', "1e999", "nul", ""]),
    lambda inner: (
        st.lists(inner, max_size=2).map(lambda items: f"[{','.join(items)}]")
        | st.dictionaries(WORDS, inner, max_size=3).map(
            lambda fields: "{" + ",".join(f'"{k}":{v}' for k, v in fields.items()) + "}"
        )
    ),
    max_leaves=5,
)


@given(st.sampled_from(sorted(DECODERS)), JSONISH)
def test_no_error_message_contains_text_of_the_decoder(route: str, body: str) -> None:
    with suppress(BatchTooLarge, RecordTooLarge):
        message = refusal_of(route, body)
        assert not any(
            fragment in message
            for fragment in ("`", "Expected", "enum", "$.", "Input data", "Object")
        )


def refusal_of(route: str, body: str) -> str:
    """Return the error message, or an empty string for a valid body."""
    try:
        DECODERS[route](body.encode())
    except InvalidRequest as refused:
        return refused.message
    return ""


@pytest.mark.parametrize("value", ["x" * 1_000_000, "' - at `$.ttl_ms`" * 10_000])
def test_an_error_message_repeats_only_the_beginning_of_a_long_value(value: str) -> None:
    for body, field in ((f'{{"type":"{value}"}}', "type"), (f'{{"discard":"{value}"}}', "discard")):
        with pytest.raises(InvalidRequest) as refused:
            decode_config(body.encode())
        assert refused.value.message.startswith(f"{field} must be one of ")
        assert refused.value.detail["field"] == field
        assert len(refused.value.message) < 200
