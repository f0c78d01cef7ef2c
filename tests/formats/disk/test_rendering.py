"""Rendering: the records of a write have the documented bytes in every way of rendering."""

from __future__ import annotations

from array import array

import cbor2
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.disk.record_support import RECORDS, TEXTS, Record, request, view_of
from tests.support.limits import LIMITS
from topics.formats.api.append_body import PlainAppend, decode_append
from topics.formats.disk.records import RecordFlags
from topics.formats.disk.rendering import Rendering, encode


def test_a_plain_record_has_the_documented_bytes() -> None:
    encoded = encode(request([(None, None, b'{"a": 1}', None)]), 7, 1748450000123, keep_key=False)
    blob = b'{"$seq":7,"$ts":1748450000123,"data":{"a": 1}},'
    assert encoded == (0, 1, b"", (b"", len(blob).to_bytes(4, "little"), blob), len(blob))


def test_a_write_with_all_fields_has_the_documented_bytes() -> None:
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
def test_records_with_data_alone_have_the_same_bytes_in_both_ways_of_rendering(
    payloads: list[bytes], absent: bytes, around: bytes, data: st.DataObject
) -> None:
    """Records with only data are decoded and rendered in bulk. Any further field selects the
    general code path.
    """
    at = data.draw(st.integers(0, len(payloads) - 1))
    if absent == b',"data":2':
        payloads[at] = b"2"
    bodies = [
        b'{"records":[%b]%b}'
        % (
            b",".join(
                [
                    b'{"data":%b%b}' % (each, more if n == at else b"")
                    for n, each in enumerate(payloads)
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


def test_delays_are_stored_only_in_the_ext() -> None:
    body = decode_append(b'{"records":[{"data":1},{"data":2}]}', None, LIMITS)
    assert isinstance(body, PlainAppend)
    plain, delayed = (encode(body, 7, 5, keep_key=False, due=due) for due in (None, [0, 500]))
    assert delayed.flags == RecordFlags.DELAYS
    assert delayed.ext.hex() == "a1616450" + "0000000000000000" + "f401000000000000"
    assert delayed.parts[1:] == plain.parts[1:]
    assert b"".join(delayed.parts).startswith(delayed.ext)
    without_delays = encode(body, 7, 5, keep_key=False, due=[0, 0])
    assert b"".join(without_delays.parts) == b"".join(plain.parts)
    assert without_delays.flags == 0


def test_one_node_for_all_records_needs_no_table() -> None:
    records: list[Record] = [(None, None, b"1", None), ("n", None, b"2", None)]
    encoded = encode(request(records, node="n"), 1, 1, keep_key=False)
    assert encoded.flags == RecordFlags.ONE_NODE
    assert len(encoded.parts) == 3
    other = encode(request(records), 1, 1, keep_key=False)
    assert other.flags == RecordFlags.NODES


def test_the_key_is_stored_only_on_request() -> None:
    for records in ([(None, None, b"1", None)], [("n", "t", b"1", b"{}")]):
        body = request(records, key="k")  # type: ignore[arg-type]
        assert view_of(body, keep_key=True).ext()["k"] == "k"
        assert "k" not in view_of(body, keep_key=False).ext()


@given(RECORDS, TEXTS, st.integers(1, 2**40), st.integers(0, 6), st.booleans())
def test_joined_runs_equal_the_write_that_is_rendered_in_one_call(
    records: list[Record], node: str | None, first_seq: int, cut: int, delayed: bool
) -> None:
    cut = min(cut, len(records))
    body = request(records, node, key="k")
    due = [*range(len(records))] if delayed else None
    complete = encode(body, first_seq, 9, keep_key=True, due=due)
    rendering = Rendering(body, keep_key=True, due=due)
    runs = rendering.render(0, cut, first_seq, 9) + rendering.render(
        cut, len(records), first_seq, 9
    )
    assert (rendering.flags, rendering.ext) == (complete.flags, complete.ext)
    ends = rendering.ends(first_seq, 9).tobytes()
    assert b"".join([rendering.ext, ends, *rendering.tables, *runs]) == b"".join(complete.parts)
