"""Dead letters (§10.6): the stamp in their meta, and the bytes of moved records."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from tests.formats.disk.record_support import RECORDS, Record, request, view_of
from tests.support.limits import LIMITS
from topics.errors import RecordTooLarge
from topics.formats.api.append_body import decode_append
from topics.formats.api.limits import MOVE_LIMITS
from topics.formats.api.queue_answers import (
    RecordParts,
    append_request,
    record_parts,
    source_of,
    stamped,
    unstamped,
)
from topics.formats.json_text import json_string

STAMP = b'"$dead_letter_from":"jobs","$dead_letter_deliveries":3,"$dead_letter_src_seq":7'


@pytest.mark.parametrize(
    ("meta", "with_stamp", "without_stamp"),
    [
        (b"", b"{%b}" % STAMP, b""),
        (b"{ }", b"{%b}" % STAMP, b""),
        (b'{ "a" : 1.10 }', b'{ "a" : 1.10 ,%b}' % STAMP, b'{ "a" : 1.10 }'),
        (b'{"$dead_letter_from":"x"}', b"{%b}" % STAMP, b""),
        (
            rb'{"\u0024dead_letter_src_seq":[1],"b":{"$dead_letter_from":"x"}}',
            rb'{"b":{"$dead_letter_from":"x"},%b}' % STAMP,
            b'{"b":{"$dead_letter_from":"x"}}',
        ),
        (b'{"$dead_letter":1}', b'{"$dead_letter":1,%b}' % STAMP, b'{"$dead_letter":1}'),
    ],
)
def test_a_dead_letter_is_stamped_and_its_stamp_can_be_removed(
    meta: bytes, with_stamp: bytes, without_stamp: bytes
) -> None:
    found = stamped(meta, "jobs", 3, 7)
    assert found == with_stamp
    assert source_of(found) == "jobs"
    assert stamped(found, "jobs", 3, 7) == found
    assert unstamped(found) == without_stamp
    assert json.loads(found)["$dead_letter_deliveries"] == 3


@pytest.mark.parametrize(
    ("meta", "source"),
    [
        (b"", None),
        (b"{}", None),
        (b'{"a":{"$dead_letter_from":"jobs"}}', None),
        (b'{"$dead_letter_from":7}', None),
        (b'{"$dead_letter_from":["jobs"]}', None),
        (b'{"$dead_letter_from":""}', None),
        (b'{"$dead_letter_from":"a b"}', None),
        (b'{"$dead_letter_from":"jobs\\n"}', None),
        (b'{"$dead_letter_from":"old","$dead_letter_from": "jobs" }', "jobs"),
        (rb'{"\u0024dead_letter_from":"j\u006fbs"}', "jobs"),
    ],
)
def test_the_source_of_a_dead_letter_is_a_valid_topic_name_or_none(
    meta: bytes, source: str | None
) -> None:
    assert source_of(meta) == source


@given(RECORDS)
def test_a_record_is_split_and_appended_byte_for_byte(records: list[Record]) -> None:
    view = view_of(request(records, "batch"))
    for index, (_, tag, data, meta) in enumerate(records):
        parts = record_parts(bytes(view.slice(index, index + 1)))
        assert parts == (json_string(tag) if tag is not None else b"", data, meta or b"")
        body = decode_append(append_request(parts, 'k"é', create=True), None, LIMITS)
        (record,) = body.records
        assert (record.tag, bytes(record.data), bytes(record.meta)) == (tag, data, meta or b"")
        assert (record.node, body.node, body.idempotency_key, body.create) == (
            *(None, None),
            'k"é',
            True,
        )


def test_an_append_may_leave_creation_to_the_topic() -> None:
    parts = RecordParts(b"", b"1", b"")
    for create in (None, False, True):
        body = decode_append(append_request(parts, "k", create), None, LIMITS)
        assert body.create is create


def test_a_job_at_the_client_limits_can_be_stamped_and_moved() -> None:
    keys = b",".join(b'"k%d":1' % number for number in range(64))
    parts = RecordParts(b'"t"', b"1", b"{%b}" % keys)
    moved = append_request(parts._replace(meta=stamped(parts.meta, "jobs", 3, 7)), "k", create=None)
    decode_append(append_request(parts, "k", create=None), None, LIMITS)
    with pytest.raises(RecordTooLarge):
        decode_append(moved, None, LIMITS)
    (record,) = decode_append(moved, None, MOVE_LIMITS).records
    assert source_of(bytes(record.meta)) == "jobs"


@pytest.mark.slow
def test_a_record_of_any_depth_is_split() -> None:
    deep = b"[" * 50_000 + b"]" * 50_000
    record = b'{"$seq":7,"$ts":5,"$tag":"t","data":%b,"meta":{"a":1}}' % deep
    assert record_parts(record) == (b'"t"', deep, b'{"a":1}')
    assert record_parts(b'{"$seq":7,"$ts":5,"data":%b}' % deep) == (b"", deep, b"")
