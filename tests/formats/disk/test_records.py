"""The records of one write: rendered once, cut to what a reader asks for, byte for byte."""

from __future__ import annotations

from array import array
from itertools import pairwise

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.limits import LIMITS
from topics.formats.api.append_body import AppendBody, PlainAppend, decode_append
from topics.formats.disk.records import RecordFlags, RecordsView, json_nodes
from topics.formats.disk.rendering import encode
from topics.formats.json_text import json_string

# (node, tag, data, meta): data and meta as they are sent.
Record = tuple[str | None, str | None, bytes, bytes | None]

PAYLOADS = [
    b"1",
    b"null",
    b'"x"',
    b'{"a": [1.10, "\\u00e9"]}',
    b'",\\"$tag\\":\\"t\\""',
    '"é😀"'.encode(),
    b'"' + b"y" * 300 + b'"',
]
METAS = [None, b"{}", b'{"m": 1}', b'{"meta":{"a":","}}']
TEXTS = st.sampled_from([None, "", "a", "b", 'q"\\', "é", ',"$ts":1', "n" * 60])
RECORDS = st.lists(
    st.tuples(TEXTS, TEXTS, st.sampled_from(PAYLOADS), st.sampled_from(METAS)),
    min_size=1,
    max_size=6,
)


def request(records: list[Record], node: str | None = None, key: str | None = None) -> AppendBody:
    rendered = []
    for record_node, tag, data, meta in records:
        members = [b'"data":' + data]
        members += [b'"node":' + json_string(record_node)] if record_node is not None else []
        members += [b'"tag":' + json_string(tag)] if tag is not None else []
        members += [b'"meta":' + meta] if meta is not None else []
        rendered.append(b"{%b}" % b",".join(members))
    top = [b'"records":[%b]' % b",".join(rendered)]
    top += [b'"node":' + json_string(node)] if node is not None else []
    return decode_append(b"{%b}" % b",".join(top), key, LIMITS)


def view_of(
    body: AppendBody, first_seq: int = 7, ts_ms: int = 1000, *, keep_key: bool = False
) -> RecordsView:
    encoded = encode(body, first_seq, ts_ms, keep_key)
    assert encoded.record_count == len(body.records)
    assert encoded.blob_bytes == len(encoded.parts[-1])
    # Somewhere inside a larger buffer, at an odd place, as in a mapped file.
    whole = memoryview(b"#" + b"".join(encoded.parts))
    return RecordsView(encoded.flags, encoded.record_count, len(encoded.ext), whole[1:])


def shown(
    record: Record,
    seq: int,
    batch_node: str | None,
    *,
    tags: bool = True,
    meta: bool = True,
    with_data: bool = True,
    ts_ms: int = 1000,
) -> bytes:
    """The object that a reader gets: the obvious way."""
    node, tag, data, sent_meta = record
    node = node if node is not None else batch_node
    members = [b'"$seq":%d' % seq, b'"$ts":%d' % ts_ms]
    members += [b'"$node":' + json_string(node)] if node is not None else []
    members += [b'"$tag":' + json_string(tag)] if tag is not None and tags else []
    members += [b'"data":' + data] if with_data else []
    members += [b'"meta":' + sent_meta] if sent_meta is not None and meta and with_data else []
    return b"{%b}" % b",".join(members)


# Layout


def test_a_plain_record_is_the_documented_bytes() -> None:
    encoded = encode(request([(None, None, b'{"a": 1}', None)]), 7, 1748450000123, keep_key=False)
    blob = b'{"$seq":7,"$ts":1748450000123,"data":{"a": 1}},'
    assert encoded == (0, 1, b"", (b"", len(blob).to_bytes(4, "little"), blob), len(blob))


def test_a_full_write_is_the_documented_bytes() -> None:
    body = request(
        [("a", "t", b"1", b"{}"), (None, "t", b"2", None), ("b", None, b"3", b'{"m":1}')], key="k"
    )
    encoded = encode(body, 7, 5, keep_key=True)
    assert encoded.flags == RecordFlags.NODES | RecordFlags.TAGS | RecordFlags.METAS
    records = [
        b'{"$seq":7,"$ts":5,"$node":"a","$tag":"t","data":1,"meta":{}},',
        b'{"$seq":8,"$ts":5,"$tag":"t","data":2},',
        b'{"$seq":9,"$ts":5,"$node":"b","data":3,"meta":{"m":1}},',
    ]
    ends = [sum(map(len, records[:count])) for count in (1, 2, 3)]
    assert cbor2.loads(encoded.ext) == {"k": "k", "n": [b'"a"', b'"b"'], "t": [b'"t"']}
    tables = [ends, [1, 0, 2], [1, 1, 0], [len(b',"meta":{}'), 0, len(b',"meta":{"m":1}')]]
    assert b"".join(encoded.parts) == encoded.ext + b"".join(
        array("I", table).tobytes() for table in tables
    ) + b"".join(records)


@given(
    st.lists(st.sampled_from([b'{"a": 1}', b"1", b'"\xc3\xa9"', b"[]"]), min_size=1, max_size=12),
    st.sampled_from(
        [b',"tag":null', b',"node":null', b',"meta":null', b',"of no meaning":1', b',"data":2']
    ),
    st.sampled_from(
        [b"", b',"node":"n"', b',"idempotency_key":"k"', b',"create":true', b',"more":{}']
    ),
    st.data(),
)
def test_records_with_data_alone_are_the_same_bytes_however_they_were_sent(
    datas: list[bytes], absent: bytes, around: bytes, data: st.DataObject
) -> None:
    """One way decodes and renders such records without a look at each; any field more takes the
    other way.
    """
    at = data.draw(st.integers(0, len(datas) - 1))
    if absent == b',"data":2':
        datas[at] = b"2"
    bodies = [
        b'{"records":[%b]%b}'
        % (
            b",".join(
                [
                    b'{"data":%b%b}' % (each, more if n == at else b"")
                    for n, each in enumerate(datas)
                ]
            ),
            around,
        )
        for more in (b"", absent)
    ]
    plain, other = (decode_append(body, None, LIMITS) for body in bodies)
    assert isinstance(plain, PlainAppend)
    assert isinstance(other, PlainAppend) == (absent == b',"data":2')
    one, two = (encode(request, 5, 1748450000123, keep_key=True) for request in (plain, other))
    assert (one.flags, one.record_count, one.ext, one.blob_bytes) == (
        two.flags,
        two.record_count,
        two.ext,
        two.blob_bytes,
    )
    assert b"".join(one.parts) == b"".join(two.parts)


def test_one_node_for_all_needs_no_table() -> None:
    records: list[Record] = [(None, None, b"1", None), ("n", None, b"2", None)]
    encoded = encode(request(records, node="n"), 1, 1, keep_key=False)
    assert encoded.flags == RecordFlags.ONE_NODE
    assert len(encoded.parts) == 3
    other = encode(request(records), 1, 1, keep_key=False)
    assert other.flags == RecordFlags.NODES


def test_the_key_is_kept_when_it_is_to_be() -> None:
    for records in ([(None, None, b"1", None)], [("n", "t", b"1", b"{}")]):
        body = request(records, key="k")  # type: ignore[arg-type]
        assert view_of(body, keep_key=True).ext()["k"] == "k"
        assert "k" not in view_of(body, keep_key=False).ext()


def test_flags_never_change() -> None:
    assert {flag.name: flag.value for flag in RecordFlags} == {
        "NODES": 1,
        "TAGS": 2,
        "METAS": 4,
        "ONE_NODE": 8,
        "EXTERNAL": 16,
    }


# Against the obvious model


@given(RECORDS, TEXTS, st.integers(1, 2**63), st.integers(0, 2**50))
def test_a_reader_of_everything_gets_what_was_sent(
    records: list[Record], node: str | None, first_seq: int, ts_ms: int
) -> None:
    view = view_of(request(records, node), first_seq, ts_ms)
    expected = [
        shown(record, seq, node, ts_ms=ts_ms) for seq, record in enumerate(records, first_seq)
    ]
    assert view.cuts_nothing(frozenset(), include_tags=True, include_meta=True)
    for start in range(len(records)):
        for stop in range(start + 1, len(records) + 1):
            assert view.slice(start, stop) == b",".join(expected[start:stop])
    assert view.blob == b"".join(record + b"," for record in expected)
    assert [end - begin for begin, end in pairwise([0, *view.ends])] == [
        len(record) + 1 for record in expected
    ]


@given(
    RECORDS,
    TEXTS,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sets(st.sampled_from(["", "a", "b", "é", 'q"\\', "c"])),
    st.data(),
)
def test_a_reader_of_less_gets_exactly_less(
    records: list[Record],
    batch_node: str | None,
    tags: bool,
    meta: bool,
    with_data: bool,
    nodes: set[str],
    data: st.DataObject,
) -> None:
    view = view_of(request(records, batch_node))
    start = data.draw(st.integers(0, len(records) - 1))
    stop = data.draw(st.integers(start + 1, len(records)))
    expected = [
        (index, shown(record, 7 + index, batch_node, tags=tags, meta=meta, with_data=with_data))
        for index, record in enumerate(records)
        if start <= index < stop
        and (record[0] if record[0] is not None else batch_node) not in nodes
    ]
    assert view.select(start, stop, json_nodes(nodes), tags, meta, None, with_data) == expected
    if view.cuts_nothing(json_nodes(nodes), tags, meta, with_data):
        assert view.slice(start, stop) == b",".join(record for _, record in expected)


@given(RECORDS, st.data())
def test_a_budget_is_filled_and_not_passed(records: list[Record], data: st.DataObject) -> None:
    view = view_of(request(records))
    start = data.draw(st.integers(0, len(records) - 1))
    stop = data.draw(st.integers(start, len(records)))
    budget = data.draw(st.integers(0, 2000))
    sizes = [len(shown(record, 7 + index, None)) + 1 for index, record in enumerate(records)]
    expected = start
    while expected < stop and sum(sizes[start : expected + 1]) <= budget:
        expected += 1
    assert view.fit(start, stop, budget) == expected


@pytest.mark.parametrize("has_nodes", ["none", "one", "some"])
@pytest.mark.parametrize("has_tags", [True, False])
@pytest.mark.parametrize("has_meta", [True, False])
def test_records_are_cut_only_for_a_reader_who_asks_for_it(
    has_nodes: str, has_tags: bool, has_meta: bool
) -> None:
    node = None if has_nodes == "none" else "n"
    tag, meta = "t" if has_tags else None, b"{}" if has_meta else None
    view = view_of(
        request([(node, tag, b"1", meta), (None if has_nodes == "some" else node, tag, b"2", meta)])
    )
    for tags in (True, False):
        for metas in (True, False):
            for nodes in (frozenset[str](), frozenset({"other"})):
                whole = (
                    (tags or not has_tags)
                    and (metas or not has_meta)
                    and (not nodes or has_nodes == "none")
                )
                assert view.cuts_nothing(json_nodes(nodes), tags, metas) == whole


def test_node_ids_are_compared_byte_by_byte() -> None:
    view = view_of(request([("é", None, b"1", None)]))
    assert view.select(0, 1, json_nodes(["e\u0301", "É", "é "]), True, True)
    assert not view.select(0, 1, json_nodes(["é"]), True, True)


def test_a_write_of_ten_thousand_records() -> None:
    records: list[Record] = [
        (f"n{number % 7}", f"t{number}", b"%d" % number, None) for number in range(10_000)
    ]
    view = view_of(request(records), first_seq=1)
    assert view.slice(9_999, 10_000) == shown(records[9_999], 10_000, None)
    assert len(view.select(0, 10_000, json_nodes(["n3"]), False, True)) == 10_000 - 1429
