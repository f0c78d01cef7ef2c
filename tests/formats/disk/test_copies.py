"""Copies: the documented bytes, and renderings that are those of an append of the same records."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.formats.disk import segment_support
from tests.formats.disk.record_support import Record, request
from tests.formats.disk.record_support import view_of as view_of_request
from tests.formats.disk.segment_support import Write, build_bytes, extents, source
from tests.support.tables import byte_rows, table
from topics.formats.api.members import with_members, without_members
from topics.formats.disk import copies
from topics.formats.disk.copies import (
    ROW,
    BadCopies,
    Copier,
    CopiesBody,
    CopyRow,
    Drops,
    Stamp,
    copies_frame,
    copy_count,
    decode_copies,
    decode_rows,
    encode_rows,
    payload_frame,
    payload_of,
    render_copies,
    rows_of_frame,
    rows_within,
    stamped,
    view_of,
)
from topics.formats.disk.frames import Frame, FrameHeader, FrameKind, encode_frame, header_at
from topics.formats.disk.records import RecordFlags, RecordsView, View
from topics.formats.disk.rendering import EncodedRecords, encode

DOC = copies.__doc__ or ""
STAMPS = (Stamp("r", "src", 5, 2), Stamp('50%d of "it"', "a:b", 2**63, 1))
ROWS = (
    CopyRow(lsn=0x1000, stamp_seq=7, shard=3, stamp=1, drops=2, start=4, stop=9),
    CopyRow(lsn=2**64 - 1, stamp_seq=0, shard=65535, stamp=0, drops=3, start=0, stop=2**32 - 1),
)
BODY = CopiesBody(9, 80, 40, 2, 700, 0, STAMPS[:1], ROWS[:1])


def frame_of(body: CopiesBody, flags: int = RecordFlags.TAGS) -> Frame:
    return copies_frame(5, 7, 1000, copy_count(body.rows), flags, body)


def body_of(frame: Frame) -> bytes:
    return b"".join(map(bytes, frame.parts))


def header_of(frame: Frame) -> FrameHeader:
    return header_at(b"".join(encode_frame(frame, 0, 0, 0)), 0)


# The documented bytes


def test_the_table_of_a_row_is_its_struct() -> None:
    codes = re.findall(r"[A-Z]|x+", ROW.format)
    rows = byte_rows(DOC, "A row:")
    assert [size for _, size, _ in rows] == [struct.calcsize("<" + code) for code in codes]
    assert [field for _, _, field in rows if field != "zero"] == [*CopyRow._fields]
    assert sum(size for _, size, _ in rows) == ROW.size


def test_the_table_of_the_ext_is_its_keys() -> None:
    rows = table(DOC, "Keys of ext:")
    copied, burnt = frame_of(BODY), frame_of(BODY._replace(rows=(), size=0, trimmed=3))
    held: dict[str, Any] = {}
    for frame in (copied, burnt):
        held |= cbor2.loads(body_of(frame)[: frame.ext_len])
    types = {"int": int, "array": list}
    assert {row["key"]: types[row["value"]] for row in rows} == {
        key: type(value) for key, value in held.items()
    }
    least = frame_of(CopiesBody(1, 2, 3, 1, 0, 0, (), ()))
    missing = {row["key"] for row in rows if row["meaning"].endswith("where missing")}
    assert {row["key"] for row in rows} - missing == {*cbor2.loads(body_of(least))}


def test_the_bytes_of_a_router_frame() -> None:
    frame = frame_of(BODY)
    assert frame[:7] == (FrameKind.ROUTER, 5, 7, 1000, 5, RecordFlags.TAGS, frame.ext_len)
    assert frame.named_bytes == 700
    assert body_of(frame).hex() == (
        "a6617209616318506174182861680261731902bc616d8184617263737263"
        "0502"
        "00100000000000000700000000000000"
        "03000100020000000400000009000000"
    )
    assert decode_copies(header_of(frame), body_of(frame)) == BODY._replace(
        stamps=[*STAMPS[:1]], rows=[*ROWS[:1]]
    )


def test_the_numbers_of_drops_never_change() -> None:
    assert [(drop.name, drop.value) for drop in Drops] == [("NODE", 1), ("TAG", 2)]


@pytest.mark.parametrize("trimmed", [0, 3])
def test_a_frame_without_copies_moves_the_cursor_or_burns_seqs(trimmed: int) -> None:
    body = CopiesBody(9, 80, 40, 1, 0, trimmed, [], [])
    frame = copies_frame(5, 7 if trimmed else 0, 1000, 0, 0, body)
    assert (frame.record_count, frame.named_bytes, len(frame.parts)) == (0, 0, 1)
    assert decode_copies(header_of(frame), memoryview(body_of(frame))) == body


def test_a_payload_frame_holds_records_as_an_append_frame_does() -> None:
    encoded = encode(request([("n", "t", b"1", b"{}")]), 7, 1000, keep_key=False)
    frame = payload_frame(5, 7, 1000, encoded)
    assert frame[:7] == (FrameKind.PAYLOAD, 5, 7, 1000, 1, encoded.flags, len(encoded.ext))
    assert body_of(frame) == b"".join(encoded.parts)


# Any rows, any bytes

U64, U32 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)
ANY_ROWS = st.lists(
    st.builds(
        CopyRow,
        U64,
        U64,
        st.integers(0, 65535),
        st.integers(0, 65535),
        st.integers(0, 255),
        U32,
        U32,
    ),
    max_size=4,
)


@given(ANY_ROWS)
def test_rows_are_read_as_they_were_written(rows: list[CopyRow]) -> None:
    data = encode_rows(rows)
    assert len(data) == 32 * len(rows)
    assert decode_rows(data) == decode_rows(memoryview(b"#" + data)[1:]) == rows


@given(st.binary(max_size=100))
def test_any_bytes_are_rows_or_bad_copies(data: bytes) -> None:
    if len(data) % 32:
        with pytest.raises(BadCopies):
            decode_rows(data)
    else:
        assert len(decode_rows(data)) == len(data) // 32


@given(st.binary(max_size=80), st.integers(0, 90), st.integers(0, 6))
@example(cbor2.dumps({"r": 1, "c": 1, "t": 1}), 10, 0)
@example(cbor2.dumps({"r": 1, "c": 1, "t": 1, "h": -1}), 13, 0)
@example(cbor2.dumps({"r": 1, "c": 1, "t": 1, "h": "1"}), 14, 0)
@example(cbor2.dumps({"r": 1, "c": 1, "t": 1, "h": 1, "m": [["a", 1]]}), 20, 0)
@example(cbor2.dumps([1]), 2, 0)
def test_any_bytes_are_a_body_or_bad_copies(data: bytes, ext_len: int, count: int) -> None:
    header = header_of(frame_of(BODY))._replace(ext_len=ext_len, record_count=count)
    try:
        body = decode_copies(header, data)
    except BadCopies:
        return
    assert copy_count(body.rows) == count


def test_any_cut_of_a_body_is_bad() -> None:
    frame = frame_of(BODY)
    data, header = body_of(frame), header_of(frame)
    for length in range(len(data)):
        with pytest.raises(BadCopies):
            decode_copies(header, data[:length])


@pytest.mark.parametrize(
    "change", [{"start": 9}, {"stop": 8}, {"stop": 10}, {"stamp": 2}, {"drops": 4}]
)
def test_a_row_that_contradicts_its_frame_is_bad(change: dict[str, int]) -> None:
    frame = frame_of(BODY)
    data = body_of(frame)[: frame.ext_len] + encode_rows([ROWS[0]._replace(**change)])
    with pytest.raises(BadCopies):
        decode_copies(header_of(frame), data)


def test_a_frame_with_copies_that_burns_seqs_is_bad() -> None:
    frame = frame_of(BODY)
    ext = cbor2.dumps({"r": 1, "c": 1, "t": 1, "h": 1, "l": 2, "m": [["a", "b", 1, 1]]})
    header = header_of(frame)._replace(ext_len=len(ext))
    with pytest.raises(BadCopies):
        decode_copies(header, ext + encode_rows(BODY.rows))


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5), st.integers(0, 1)), max_size=4),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_rows_within_are_those_of_the_copies_asked_for(
    runs: list[tuple[int, int, int]], start: int, stop: int
) -> None:
    rows = [
        CopyRow(8 * at, 100 * at if stamp else 0, 1, stamp, 1, first, first + length)
        for at, (first, length, stamp) in enumerate(runs, 1)
    ]

    def named(rows: Sequence[CopyRow]) -> list[CopyRow]:
        return [
            row._replace(
                stamp_seq=row.stamp_seq + at if row.stamp else 0,
                start=row.start + at,
                stop=row.start + at + 1,
            )
            for row in rows
            for at in range(row.stop - row.start)
        ]

    found = rows_within(rows, start, stop)
    assert named(found) == named(rows)[start:stop]
    assert len({row.lsn for row in found}) == len(found)


def test_the_rows_of_a_frame_are_read_without_its_map() -> None:
    frame = frame_of(BODY)
    assert rows_of_frame(header_of(frame), body_of(frame)) == [*BODY.rows]
    burnt = frame_of(BODY._replace(rows=(), size=0, trimmed=3))
    assert rows_of_frame(header_of(burnt), body_of(burnt)) == []


# Renderings

METAS = st.sampled_from(
    [
        *(None, None, b"{}", b'{"m": 1}', b'{ "meta":{"a":","} }', b'{"_topics_router":{"a":[1]}}'),
        *(b'{"a":1,"_topics_router" : 2 , "b":3}', b'{"\\u005ftopics_router":0,"a":"\\n"}'),
        *(b'{"a":"_topics_router"}', b'{"a":{"_topics_router":1}}'),
    ]
)
RECORDS = st.lists(
    st.tuples(segment_support.TEXTS, segment_support.TEXTS, segment_support.DATA, METAS),
    min_size=1,
    max_size=5,
)
WRITES = st.lists(
    st.builds(
        Write,
        RECORDS,
        segment_support.TEXTS,
        st.sampled_from([None, "k1"]),
        due=st.sampled_from([None, None, (5, 0, 0, 0, 0)]),
    ),
    min_size=1,
    max_size=4,
)
SEQS = st.sampled_from([1, 8, 98, 10**6, 2**64 - 100])


@st.composite
def views(draw: st.DrawFn) -> list[tuple[View, list[Record]]]:
    """Writes of one topic, or the extents that they are sealed into, each with its records."""
    first_ts, first_seq = draw(st.sampled_from([999_999_999_990, 1_748_450_000_000])), draw(SEQS)
    batch = [
        replace(
            write,
            ts_ms=first_ts + 5 * at,
            due=write.due and write.due[: len(write.records)],
        )
        for at, write in enumerate(draw(WRITES))
    ]
    records: list[list[Record]] = [
        [(node if node is not None else write.node, *rest) for node, *rest in write.records]  # type: ignore[misc]
        for write in batch
    ]
    sealed, writes = source(1, first_seq, batch)
    if draw(st.booleans()):
        return [*zip(writes, records, strict=True)]
    found: list[tuple[View, list[Record]]] = []
    rest = [record for each in records for record in each]
    for extent in extents(build_bytes([sealed], extent_records=draw(st.integers(1, 20)))):
        found.append((extent, rest[: extent.count]))
        rest = rest[extent.count :]
    return found


@st.composite
def pieces(draw: st.DrawFn) -> tuple[list[tuple[View, CopyRow]], list[Record]]:
    """Rows, and the records that their copies are to have."""
    rows: list[tuple[View, CopyRow]] = []
    model: list[Record] = []
    for view, records in draw(views()):
        start = draw(st.integers(0, len(records) - 1))
        stop = draw(st.integers(start + 1, len(records)))
        stamp, drops = draw(st.integers(0, len(STAMPS))), draw(st.integers(0, 3))
        row = CopyRow(8, 97 if stamp else 0, 1, stamp, drops, start, stop)
        rows.append((view, row))
        for at, (node, tag, data, meta) in enumerate(records[start:stop]):
            model.append(
                (
                    None if drops & Drops.NODE else node,
                    None if drops & Drops.TAG else tag,
                    data,
                    stamped_as(STAMPS[stamp - 1], 97 + at, meta) if stamp else meta,
                )
            )
    return rows, model


def stamped_as(stamp: Stamp, seq: int, meta: bytes | None) -> bytes:
    key = f"{stamp.router}:{stamp.source_id}:{stamp.epoch}:{seq}"
    value = json.dumps(
        {
            "router": stamp.router,
            "source": stamp.source,
            "source_topic_id": stamp.source_id,
            "source_epoch": stamp.epoch,
            "source_seq": seq,
            "key": key,
        },
        separators=(",", ":"),
    )
    kept = without_members(meta or b"", lambda name: name == "_topics_router")
    return with_members(kept, b'"_topics_router":' + value.encode())


def same(one: EncodedRecords, other: EncodedRecords) -> bool:
    return one[:3] == other[:3] and [*map(bytes, one.parts)] == [*map(bytes, other.parts)]


@given(pieces(), SEQS, st.sampled_from([0, 1_748_450_000_123]))
def test_copies_are_what_an_append_of_the_same_records_is(
    given_pieces: tuple[list[tuple[View, CopyRow]], list[Record]], first_seq: int, ts_ms: int
) -> None:
    rows, model = given_pieces
    expected = encode(request(model), first_seq, ts_ms, keep_key=False)
    found = render_copies(rows, STAMPS, first_seq, ts_ms)
    assert same(found, expected)
    assert found.blob_bytes == expected.blob_bytes


@given(pieces(), st.lists(st.tuples(SEQS, st.integers(-5, 2**41)), min_size=1, max_size=4))
def test_a_copier_gives_the_same_bytes_each_time(
    given_pieces: tuple[list[tuple[View, CopyRow]], list[Record]], dests: list[tuple[int, int]]
) -> None:
    rows, _ = given_pieces
    copier = Copier(rows, STAMPS)
    for first_seq, ts_ms in [*dests, *dests]:
        once = render_copies(rows, STAMPS, first_seq, ts_ms)
        assert same(copier.render(first_seq, ts_ms), once)
        assert (copier.count, copier.flags) == (once.record_count, once.flags)
        assert copier.size(first_seq, ts_ms) == once.blob_bytes


@given(views(), st.data(), SEQS)
def test_a_payload_is_the_records_verbatim(
    held: list[tuple[View, list[Record]]], data: st.DataObject, first_seq: int
) -> None:
    chosen, model = [], []
    for view, records in held:
        start = data.draw(st.integers(0, len(records) - 1))
        stop = data.draw(st.integers(start + 1, len(records)))
        chosen.append((view, start, stop))
        model += records[start:stop]
    expected = encode(request(model), first_seq, 1000, keep_key=False)
    assert same(payload_of(chosen, first_seq, 1000), expected)


@given(pieces(), SEQS)
def test_a_copy_of_copies_is_the_copy_of_their_payload(
    given_pieces: tuple[list[tuple[View, CopyRow]], list[Record]], first_seq: int
) -> None:
    rows, model = given_pieces
    view = view_of(render_copies(rows, STAMPS, 12345, 1000))
    assert view.count == len(model)
    again = CopyRow(8, 0, 1, 0, 0, 0, view.count)
    once = render_copies(rows, STAMPS, first_seq, 2000)
    assert same(render_copies([(view, again)], (), first_seq, 2000), once)


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("due", [None, [0, 500]])
@pytest.mark.parametrize("tag", [None, "t"])
def test_a_whole_write_is_copied_without_its_key_and_delays(
    key: str | None, due: list[int] | None, tag: str | None
) -> None:
    records: list[Record] = [(None, tag, b"1", None), ("n", None, b"2", b"{}")]
    view = view_of_request(request(records, key=key), keep_key=True, due=due)
    assert ("k" in view.ext(), bool(view.delays())) == (key is not None, due is not None)
    found = render_copies([(view, CopyRow(8, 0, 0, 0, 0, 0, 2))], (), 3, 1000)
    assert same(found, encode(request(records), 3, 1000, keep_key=False))


@given(st.binary(max_size=60), st.integers(0, 9), st.integers(0, 15), st.integers(1, 3), st.data())
def test_any_payload_is_records_or_bad_copies(
    body: bytes, ext_len: int, flags: int, count: int, data: st.DataObject
) -> None:
    view = RecordsView(flags, count, ext_len, memoryview(body))
    stop = data.draw(st.integers(1, count))
    row = CopyRow(8, 0, 0, data.draw(st.integers(0, 1)), data.draw(st.integers(0, 3)), 0, stop)
    try:
        copier = Copier([(view, row)], STAMPS)
    except BadCopies:
        return
    assert copier.count == stop


def test_seqs_that_grow_by_a_digit_within_a_run() -> None:
    records: list[Record] = [(None, None, b"%d" % at, None) for at in range(30)]
    for first_seq in (1, 5, 95, 995):
        view = view_of_request(request(records), first_seq)
        for start, stop in ((0, 30), (2, 20), (5, 6)):
            row = CopyRow(8, 0, 1, 0, 0, start, stop)
            found = render_copies([(view, row)], (), 91, 7)
            expected = encode(request(records[start:stop]), 91, 7, keep_key=False)
            assert same(found, expected)


@pytest.mark.parametrize(
    ("meta", "becomes"),
    [
        (b"", b"{%b}"),
        (b"{ }", b"{%b}"),
        (b'{"a": 1.10}', b'{"a": 1.10,%b}'),
        (b'{"_topics_router":{"key":"other"}}', b"{%b}"),
        (b'{"a":1, "_topics_router":2,"b":3 }', b'{"a":1,"b":3 ,%b}'),
        (b'{"\\u005ftopics\\u005frouter":2,"b":"\\\\"}', b'{"b":"\\\\",%b}'),
        (b'{"a":"_topics_router"}', b'{"a":"_topics_router",%b}'),
    ],
)
def test_a_stamp_replaces_an_earlier_one_and_nothing_else(meta: bytes, becomes: bytes) -> None:
    stamp = b'"_topics_router":{}'
    assert stamped(meta, stamp) == becomes % stamp


def test_the_bytes_of_a_stamped_copy_never_change() -> None:
    view = view_of_request(request([("n", "t", b"[1]", b'{"m": 1}')]))
    row = CopyRow(8, 41, 0, 2, Drops.TAG, 0, 1)
    found = render_copies([(view, row)], STAMPS, 3, 1000)
    assert bytes(found.parts[-1]) == (
        b'{"$seq":3,"$ts":1000,"$node":"n","data":[1],"meta":{"m": 1,"_topics_router":'
        b'{"router":"50%d of \\"it\\"","source":"a:b","source_topic_id":9223372036854775808,'
        b'"source_epoch":1,"source_seq":41,"key":"50%d of \\"it\\":9223372036854775808:1:41"}}},'
    )


@pytest.mark.parametrize(("start", "stop", "stamp"), [(0, 3, 0), (2, 3, 0), (1, 1, 0), (0, 1, 1)])
def test_a_row_of_records_that_are_not_there_is_bad(start: int, stop: int, stamp: int) -> None:
    view = view_of_request(request([(None, None, b"1", None)] * 2))
    with pytest.raises(BadCopies):
        render_copies([(view, CopyRow(8, 0, 0, stamp, 0, start, stop))], (), 1, 1)
