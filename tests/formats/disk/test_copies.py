"""Copies: the documented bytes, and renderings that equal an append of the same records."""

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

from tests.formats.disk.record_support import PAYLOADS, TEXTS, Record, request
from tests.formats.disk.record_support import view_of as view_of_request
from tests.formats.disk.segment_support import Write, build_bytes, extents, source
from tests.support.tables import byte_rows, table
from topics.formats.api.json_members import with_members, without_members
from topics.formats.disk import copies
from topics.formats.disk.copies import (
    OWN_STAMP,
    ROW,
    RUN,
    BadCopies,
    Copier,
    Drops,
    ForwardBody,
    OwnStamp,
    Row,
    Run,
    Stamp,
    copy_count,
    decode_forward,
    encode_runs,
    forward_frame,
    is_row,
    payload_of,
    row_index,
    row_lsn,
    row_offset,
    runs_within,
    stamped,
    view_of,
)
from topics.formats.disk.frames import Frame, FrameHeader, FrameKind, encode_frame, header_at
from topics.formats.disk.records import AbstractView, RecordFlags, RecordsView
from topics.formats.disk.rendering import EncodedRecords, encode

DOC = copies.__doc__ or ""
STAMPS = (Stamp("r", "src", 5, 2), Stamp('50%d of "it"', "a:b", 2**63, 1))
OWN = OwnStamp("src", 5, 2, ["r", "r2"])
ROWS = (Row(0, 9, 5, 7), Row(0, 2**32 - 1, 6, 0))
RUNS = (
    Run(lsn=0x1000, stamp_seq=7, start=4, stop=9, stamp=1, drops=2),
    Run(lsn=0, stamp_seq=0, start=0, stop=1),
)
PAYLOAD = view_of_request(request([(None, "t", b"1", None)]))
BODY = ForwardBody(80, 2, ROWS, RUNS[:1], 700, 0, STAMPS[:1])


def frame_of(body: ForwardBody, flags: int = RecordFlags.TAGS) -> Frame:
    return forward_frame(1000, copy_count(body.runs), flags, body)


def body_of(frame: Frame) -> memoryview:
    return memoryview(b"".join(map(bytes, frame.parts)))


def header_of(frame: Frame, lsn: int = 0) -> FrameHeader:
    return header_at(b"".join(encode_frame(frame, lsn, 0, 0)), 0)


def read_back(frame: Frame) -> ForwardBody:
    return decode_forward(header_of(frame), body_of(frame))


def rendered(
    chunks: Sequence[tuple[AbstractView, Run]], stamps: Sequence[Stamp], first_seq: int, ts_ms: int
) -> EncodedRecords:
    return Copier(chunks, stamps).render(first_seq, ts_ms)


# The documented bytes


@pytest.mark.parametrize(
    ("layout", "title", "fields"),
    [(ROW, "A row:", Row._fields), (RUN, "Layout of a run:", Run._fields)],
)
def test_the_tables_of_rows_and_runs_match_their_structs(
    layout: struct.Struct, title: str, fields: tuple[str, ...]
) -> None:
    codes = re.findall(r"[A-Z]|x+", layout.format)
    rows = byte_rows(DOC, title)
    assert [size for _, size, _ in rows] == [struct.calcsize("<" + code) for code in codes]
    assert [field for _, _, field in rows if field != "zero"] == [*fields]
    assert sum(size for _, size, _ in rows) == layout.size


def test_the_table_of_the_ext_lists_its_keys() -> None:
    rows = table(DOC, "Keys of ext:")
    ext: dict[str, Any] = {}
    for body in (
        BODY._replace(payload=PAYLOAD, own_stamp=OWN),
        BODY._replace(runs=(), tail_bytes=0, skipped=3),
    ):
        frame = frame_of(body)
        ext |= cbor2.loads(bytes(body_of(frame)[: frame.ext_len]))
    types = {"int": int, "array": list}
    assert {row["key"]: types[row["value"]] for row in rows} == {
        key: type(value) for key, value in ext.items()
    }
    minimal = frame_of(ForwardBody(2, 0, ()))
    assert [row["key"] for row in rows][:3] == [*cbor2.loads(body_of(minimal)[: minimal.ext_len])]


def test_the_bytes_of_a_forward_frame_never_change() -> None:
    frame = frame_of(BODY)
    assert frame[:7] == (FrameKind.FORWARD, 0, 0, 1000, 5, RecordFlags.TAGS, frame.ext_len)
    assert frame.named_bytes == 700, "of the one dest that has copies in the log"
    assert bytes(body_of(frame)).hex() == (
        "a6616402616e016163185061680261621902bc616d81846172637372630502"
        "000000"
        "62000000090000000500000007000000"
        "00000000"
        "76000000ffffffff0600000000000000"
        "00000000"
        "00100000000000000700000000000000"
        "0400000009000000"
        "01000200"
    )
    assert read_back(frame) == BODY._replace(
        rows=[row._replace(back=98 + 20 * at) for at, row in enumerate(ROWS)],
        runs=[*RUNS[:1]],
        stamps=[*STAMPS[:1]],
    )


def test_the_numbers_of_drops_never_change() -> None:
    assert [(drop.name, drop.value) for drop in Drops] == [("NODE", 1), ("TAG", 2)]


@given(st.integers(0, 40), st.integers(1, 9), st.integers(0, 2**40))
def test_the_lsn_of_a_row_identifies_its_frame_and_is_never_that_of_a_frame(
    padding: int, rows: int, number: int
) -> None:
    stamps = [Stamp("r" * padding, "s", 1, 1)]  # An ext of any length
    body = BODY._replace(rows=ROWS[:1] * rows, stamps=stamps)
    frame, lsn = frame_of(body), 8 * number
    data = b"".join(map(bytes, encode_frame(frame, lsn, 0, 0)))
    header = header_at(data, 0)
    for index in range(rows):
        at = row_lsn(lsn, frame.ext_len, index)
        assert is_row(at)
        assert not is_row(lsn)
        assert at - row_offset(data, at - lsn) == lsn
        assert row_index(header, at) == index
        assert ROW.unpack_from(data, at - lsn) == (at - lsn, *ROWS[0][1:])


@pytest.mark.parametrize("skipped", [0, 3])
def test_a_frame_without_copies_moves_cursors_or_skips_seqs(skipped: int) -> None:
    frame = frame_of(ForwardBody(80, 1, ROWS, skipped=skipped), 0)
    assert (frame.record_count, frame.named_bytes) == (0, 0)
    found = read_back(frame)
    assert (found.cursor, found.hop, found.skipped, found.runs) == (80, 1, skipped, [])


def test_a_payload_has_the_layout_of_an_append_frame() -> None:
    frame = frame_of(ForwardBody(80, 1, ROWS, RUNS[1:], 9, payload=PAYLOAD))
    assert bytes(frame.parts[-1]) == bytes(PAYLOAD.body)
    found = read_back(frame).payload
    assert found is not None
    assert (found.flags, found.count, found.ext_len) == (PAYLOAD.flags, 1, PAYLOAD.ext_len)
    assert bytes(found.body) == bytes(PAYLOAD.body)


def test_an_own_stamp_differs_for_each_dest() -> None:
    run = RUNS[0]._replace(stamp=OWN_STAMP)
    found = read_back(frame_of(BODY._replace(runs=[run], own_stamp=OWN)))
    assert [each.stamp for each in found.runs] == [2]
    assert [found.stamps_of(index)[1] for index in (0, 1)] == [
        Stamp("r", "src", 5, 2),
        Stamp("r2", "src", 5, 2),
    ]
    with pytest.raises(BadCopies):
        read_back(frame_of(BODY._replace(runs=[run], own_stamp=OWN._replace(routers=["r"]))))


# Any runs and any bytes


@given(st.binary(max_size=80), st.integers(0, 90), st.integers(0, 6))
@example(cbor2.dumps({"d": 1, "n": 1}), 7, 0)
@example(cbor2.dumps({"d": 0, "n": 0, "c": -1}), 10, 0)
@example(cbor2.dumps({"d": 0, "n": 0, "c": "1"}), 11, 0)
@example(cbor2.dumps({"d": 0, "n": 0, "c": 1, "m": [["a", 1]]}), 17, 0)
@example(cbor2.dumps([1]), 2, 0)
def test_any_bytes_are_a_body_or_bad_copies(data: bytes, ext_len: int, count: int) -> None:
    header = header_of(frame_of(BODY))._replace(ext_len=ext_len, record_count=count)
    try:
        body = decode_forward(header, memoryview(data))
    except BadCopies:
        return
    assert copy_count(body.runs) == count


def test_any_cut_of_a_body_without_payload_is_rejected() -> None:
    frame = frame_of(BODY)
    data, header = body_of(frame), header_of(frame)
    for length in range(len(data)):
        with pytest.raises(BadCopies):
            decode_forward(header, data[:length])


@pytest.mark.parametrize(
    "change", [{"start": 9}, {"stop": 8}, {"stop": 10}, {"stamp": 2}, {"drops": 4}]
)
def test_a_run_that_contradicts_its_frame_is_rejected(change: dict[str, int]) -> None:
    frame = frame_of(BODY)
    data = bytes(body_of(frame)[: -RUN.size]) + encode_runs([RUNS[0]._replace(**change)])
    with pytest.raises(BadCopies):
        decode_forward(header_of(frame), memoryview(data))


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5), st.integers(0, 1)), max_size=4),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_runs_within_a_range_are_those_of_the_requested_copies(
    found_at: list[tuple[int, int, int]], start: int, stop: int
) -> None:
    runs = [
        Run(8 * at, 100 * at if stamp else 0, first, first + length, stamp, 1)
        for at, (first, length, stamp) in enumerate(found_at, 1)
    ]

    def single(runs: Sequence[Run]) -> list[Run]:
        return [
            run._replace(
                stamp_seq=run.stamp_seq + at if run.stamp else 0,
                start=run.start + at,
                stop=run.start + at + 1,
            )
            for run in runs
            for at in range(run.stop - run.start)
        ]

    found = runs_within(runs, start, stop)
    assert single(found) == single(runs)[start:stop]
    assert len({run.lsn for run in found}) == len(found)


# Renderings

METAS = st.sampled_from(
    [
        *(None, None, b"{}", b'{"m": 1}', b'{ "meta":{"a":","} }', b'{"_topics_router":{"a":[1]}}'),
        *(b'{"a":1,"_topics_router" : 2 , "b":3}', b'{"\\u005ftopics_router":0,"a":"\\n"}'),
        *(b'{"a":"_topics_router"}', b'{"a":{"_topics_router":1}}'),
    ]
)
RECORDS = st.lists(
    st.tuples(TEXTS, TEXTS, PAYLOADS, METAS),
    min_size=1,
    max_size=5,
)
WRITES = st.lists(
    st.builds(
        Write,
        RECORDS,
        TEXTS,
        st.sampled_from([None, "k1"]),
        due=st.sampled_from([None, None, (5, 0, 0, 0, 0)]),
    ),
    min_size=1,
    max_size=4,
)
SEQS = st.sampled_from([1, 8, 98, 10**6, 2**64 - 100])


@st.composite
def views(draw: st.DrawFn) -> list[tuple[AbstractView, list[Record]]]:
    """Draw writes of one topic, or the extents that they are sealed into, each with its records."""
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
    found: list[tuple[AbstractView, list[Record]]] = []
    rest = [record for each in records for record in each]
    for extent in extents(build_bytes([sealed], extent_records=draw(st.integers(1, 20)))):
        found.append((extent, rest[: extent.count]))
        rest = rest[extent.count :]
    return found


@st.composite
def chunks(draw: st.DrawFn) -> tuple[list[tuple[AbstractView, Run]], list[Record]]:
    """Draw runs, and the records that their copies must contain."""
    rows: list[tuple[AbstractView, Run]] = []
    model: list[Record] = []
    for view, records in draw(views()):
        start = draw(st.integers(0, len(records) - 1))
        stop = draw(st.integers(start + 1, len(records)))
        stamp, drops = draw(st.integers(0, len(STAMPS))), draw(st.integers(0, 3))
        row = Run(8, 97 if stamp else 0, start, stop, stamp, drops)
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


@given(chunks(), SEQS, st.sampled_from([0, 1_748_450_000_123]))
def test_copies_equal_an_append_of_the_same_records(
    drawn: tuple[list[tuple[AbstractView, Run]], list[Record]], first_seq: int, ts_ms: int
) -> None:
    rows, model = drawn
    copier = Copier(rows, STAMPS)
    for seq in (first_seq, 7, first_seq):  # The result is the same for repeated calls
        expected = encode(request(model), seq, ts_ms, keep_key=False)
        found = copier.render(seq, ts_ms)
        assert same(found, expected)
        assert found.blob_bytes == expected.blob_bytes == copier.size(seq, ts_ms)
        assert (copier.count, copier.flags) == (expected.record_count, expected.flags)


@given(views(), st.data(), SEQS)
def test_a_payload_contains_the_records_unchanged(
    sources: list[tuple[AbstractView, list[Record]]], data: st.DataObject, first_seq: int
) -> None:
    chosen, model = [], []
    for view, records in sources:
        start = data.draw(st.integers(0, len(records) - 1))
        stop = data.draw(st.integers(start + 1, len(records)))
        chosen.append((view, start, stop))
        model += records[start:stop]
    expected = encode(request(model), first_seq, 1000, keep_key=False)
    assert same(payload_of(chosen, first_seq, 1000), expected)


@given(chunks(), SEQS)
def test_a_copy_of_copies_equals_the_copy_of_their_payload(
    drawn: tuple[list[tuple[AbstractView, Run]], list[Record]], first_seq: int
) -> None:
    rows, model = drawn
    view = view_of(rendered(rows, STAMPS, 12345, 1000))
    assert view.count == len(model)
    all_records = Run(8, 0, 0, view.count, 0, 0)
    once = rendered(rows, STAMPS, first_seq, 2000)
    assert same(rendered([(view, all_records)], (), first_seq, 2000), once)


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("due", [None, [0, 500]])
@pytest.mark.parametrize("tag", [None, "t"])
def test_a_complete_write_is_copied_without_its_key_and_delays(
    key: str | None, due: list[int] | None, tag: str | None
) -> None:
    records: list[Record] = [(None, tag, b"1", None), ("n", None, b"2", b"{}")]
    view = view_of_request(request(records, key=key), keep_key=True, due=due)
    assert ("k" in view.ext(), bool(view.delays())) == (key is not None, due is not None)
    found = rendered([(view, Run(8, 0, 0, 2, 0, 0))], (), 3, 1000)
    assert same(found, encode(request(records), 3, 1000, keep_key=False))


@given(st.binary(max_size=60), st.integers(0, 9), st.integers(0, 15), st.integers(1, 3), st.data())
def test_any_payload_is_records_or_bad_copies(
    body: bytes, ext_len: int, flags: int, count: int, data: st.DataObject
) -> None:
    view = RecordsView(flags, count, ext_len, memoryview(body))
    stop = data.draw(st.integers(1, count))
    row = Run(8, 0, 0, stop, data.draw(st.integers(0, 1)), data.draw(st.integers(0, 3)))
    try:
        copier = Copier([(view, row)], STAMPS)
    except BadCopies:
        return
    assert copier.count == stop


def test_copies_are_exact_when_seqs_grow_by_a_digit_within_a_run() -> None:
    records: list[Record] = [(None, None, b"%d" % at, None) for at in range(30)]
    for first_seq in (1, 5, 95, 995):
        view = view_of_request(request(records), first_seq)
        for start, stop in ((0, 30), (2, 20), (5, 6)):
            row = Run(8, 0, start, stop, 0, 0)
            found = rendered([(view, row)], (), 91, 7)
            expected = encode(request(records[start:stop]), 91, 7, keep_key=False)
            assert same(found, expected)


@pytest.mark.parametrize(
    ("meta", "template"),
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
def test_a_stamp_replaces_only_an_earlier_stamp(meta: bytes, template: bytes) -> None:
    stamp = b'"_topics_router":{}'
    assert stamped(meta, stamp) == template % stamp


def test_the_bytes_of_a_stamped_copy_never_change() -> None:
    view = view_of_request(request([("n", "t", b"[1]", b'{"m": 1}')]))
    row = Run(8, 41, 0, 1, 2, Drops.TAG)
    found = rendered([(view, row)], STAMPS, 3, 1000)
    assert bytes(found.parts[-1]) == (
        b'{"$seq":3,"$ts":1000,"$node":"n","data":[1],"meta":{"m": 1,"_topics_router":'
        b'{"router":"50%d of \\"it\\"","source":"a:b","source_topic_id":9223372036854775808,'
        b'"source_epoch":1,"source_seq":41,"key":"50%d of \\"it\\":9223372036854775808:1:41"}}},'
    )


@pytest.mark.parametrize(("start", "stop", "stamp"), [(0, 3, 0), (2, 3, 0), (1, 1, 0), (0, 1, 1)])
def test_a_run_of_missing_records_is_rejected(start: int, stop: int, stamp: int) -> None:
    view = view_of_request(request([(None, None, b"1", None)] * 2))
    with pytest.raises(BadCopies):
        rendered([(view, Run(8, 0, start, stop, stamp, 0))], (), 1, 1)
