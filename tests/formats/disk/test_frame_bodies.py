"""Bodies of frames: the code writes and reads what the tables in the docstring specify."""

from __future__ import annotations

from typing import Any

import cbor2
import msgspec
import pytest
from msgspec import Raw

from tests.support.tables import byte_rows, table
from topics.formats.api.append_body import AppendBody, RecordIn
from topics.formats.api.topic_config import TopicConfig
from topics.formats.disk import frame_bodies, rendering
from topics.formats.disk.copies import ForwardBody, Row, Run, Stamp, forward_frame
from topics.formats.disk.frame_bodies import (
    DeleteFrameFlags,
    Floors,
    LeaseOp,
    LeaseRows,
    RouterBody,
    TopicBody,
    append_frame,
    decode_floors,
    decode_idempotency_key,
    decode_lease,
    decode_router,
    decode_router_ids,
    decode_runs,
    decode_start,
    decode_topic,
    delete_below_frame,
    delete_runs_frame,
    encode_router,
    external_append_frame,
    floor_frame,
    lease_frame,
    lost_frame,
    router_set_frame,
    routers_removed_frame,
    seqs_reserved_frame,
    start_frame,
    topic_deleted_frame,
    topic_frame,
    ts_reserved_frame,
)
from topics.formats.disk.frames import (
    Frame,
    FrameHeader,
    FrameKind,
    encode_frame,
    header_at,
)
from topics.formats.disk.records import RecordFlags, RecordsView
from topics.formats.ranges import SeqRange, SeqRun

DOC = frame_bodies.__doc__ or ""
TOPIC = TopicBody(
    name="a",
    epoch=2,
    config=msgspec.structs.asdict(TopicConfig()),
    head_seq=9,
    last_ts=1000,
    start_seq=4,
    floors=Floors(4, 3, 2, 1, 3),
    losses=(SeqRange(5, 6),),
    damaged=(SeqRange(7, 7), SeqRange(8, 9)),
    trimmed=(SeqRange(4, 4),),
    keys_from_seq=3,
)
ROUTER = RouterBody(
    name="a->b",
    id=3,
    config={"source": "a", "dest": "b"},
    source_id=7,
    epoch=9,
    dest_id=8,
    start_seq=2**64 - 1,
    base_total=12,
)
ROUTER_FRAME = router_set_frame(encode_router(ROUTER), 1000)
ROUTERS_REMOVED_FRAME = routers_removed_frame([3, 4], 1000)


def append_of_a_write() -> Frame:
    body = AppendBody([RecordIn(Raw(b"1"), "t")], None, "key")
    encoded = rendering.encode(body, 7, 1000, keep_key=True)
    flags, count, ext, parts, _ = encoded
    return append_frame(5, 7, 1000, count, flags, len(ext), parts)


COPIES = ForwardBody(
    cursor=9,
    hop=1,
    rows=[Row(0, 3, 5, 7)],
    runs=[Run(64, 7, 0, 2, 1), Run(128, 0, 4, 5, 0, 1)],
    tail_bytes=100,
    stamps=[Stamp("r", "src", 2, 1)],
)
CLAIMED = LeaseRows(LeaseOp.CLAIMED, (7, 2**64 - 1), (1, 2**32 - 1), "w1", 31_000, (0x7F3A9C, 5))
RELEASED = LeaseRows(LeaseOp.RELEASED, (7, 9), (1, 2), until_ts=2000)
DYING = LeaseRows(LeaseOp.DYING, (7, 9), (3, 4), "d")
DYING_WITHOUT_EXT = LeaseRows(LeaseOp.DYING, (7, 9, 10), (3, 3, 4))


# A frame of each kind, with all the fields set that the table lists for it.
FRAMES: list[Frame] = [
    append_of_a_write(),
    delete_runs_frame(5, [SeqRun(7, 2), SeqRun(12, 1)], 1000, dead_lettered=True),
    delete_below_frame(5, 7, 1000),
    topic_frame(5, 4096, 1000, TOPIC),
    start_frame("boot", 1000),
    topic_deleted_frame(5, 1000),
    seqs_reserved_frame(5, 4096),
    floor_frame(5, 4, Floors(4, 3, 2, 1, 3)),
    ts_reserved_frame(1000),
    lease_frame(5, 1000, CLAIMED),
    forward_frame(1000, 3, RecordFlags.TAGS, COPIES),
    ROUTER_FRAME,
    ROUTERS_REMOVED_FRAME,
    lost_frame([(5, 7, 3), (6, 1, 2)], 96),
]
HEADER_FIELDS = ("topic_id", "first_seq", "ts_ms", "record_count", "ext_len", "flags")
UNUSED: set[str] = set()


def body_of(frame: Frame) -> bytes:
    return b"".join(map(bytes, frame.parts))


def kinds() -> dict[str, dict[str, str]]:
    return {row["kind"]: row for row in table(DOC, "Frame bodies:")}


def test_the_table_of_kinds_matches_the_enum() -> None:
    numbers = {name: int(row["number"]) for name, row in kinds().items()}
    assert numbers == {kind.name: kind.value for kind in FrameKind}


@pytest.mark.parametrize("kind", sorted({frame.kind for frame in FRAMES}))
def test_the_table_lists_the_header_fields_that_a_kind_sets(kind: FrameKind) -> None:
    set_fields = {
        field
        for frame in FRAMES
        for field in HEADER_FIELDS
        if frame.kind is kind and getattr(frame, field)
    }
    assert set_fields == {*kinds()[kind.name]["header fields that are set"].split()}


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: str(frame.kind.name))
def test_the_table_specifies_the_kind_of_body_of_a_frame(frame: Frame) -> None:
    body, body_kind = body_of(frame), kinds()[frame.kind.name]["body"]
    assert {
        "records": lambda: len(body) > frame.ext_len > 0,
        "runs": lambda: frame.ext_len == 0 and len(body) == 16 * frame.record_count,
        "rows": lambda: (
            len(body) - frame.ext_len
            == (20 if frame.flags == LeaseOp.CLAIMED else 12) * frame.record_count
        ),
        "rows, runs, records": lambda: len(body) - frame.ext_len >= 20 + 2 * 28,
        "map": lambda: isinstance(cbor2.loads(body), dict) and frame.ext_len == len(body),
        "array": lambda: isinstance(cbor2.loads(body), list) and frame.ext_len == len(body),
        "none": lambda: body == b"" and frame.ext_len == 0,
        "rows, zeros": lambda: (len(body), frame.ext_len) == (32, 20) and not any(body[20:]),
    }[body_kind]()


def test_the_table_of_a_run_matches_its_struct() -> None:
    rows = byte_rows(DOC, "DELETE: records deleted")
    assert [(size, field) for _, size, field in rows] == [(8, "first"), (8, "length")]
    assert frame_bodies.RUN.size == 16


@pytest.mark.parametrize(
    ("after", "frame"),
    [
        ("TOPIC: a topic was created", FRAMES[3]),
        ("START: a process has started", FRAMES[4]),
        ("ROUTER_SET: a router was created", ROUTER_FRAME),
    ],
    ids=["TOPIC", "START", "ROUTER_SET"],
)
def test_the_table_of_a_map_lists_its_keys(after: str, frame: Frame) -> None:
    members: dict[str, Any] = cbor2.loads(body_of(frame))
    rows = table(DOC, after)
    assert [row["key"] for row in rows] == [*members]
    types = {"text": str, "int": int, "map": dict, "array": list}
    assert [types[row["value"]] for row in rows] == [type(value) for value in members.values()]


def test_the_table_of_the_floors_matches_their_tuple() -> None:
    rows = table(DOC, "FLOOR: records removed")
    assert [(int(row["index"]), row["floor"]) for row in rows] == [*enumerate(Floors._fields)]


def test_the_tables_of_a_lease_list_its_operations_and_their_keys() -> None:
    rows = table(DOC, "LEASE: a change of the state")
    assert {row["name"]: int(row["op"]) for row in rows} == {op.name: op.value for op in LeaseOp}
    for row, lease in zip(rows, (CLAIMED, RELEASED._replace(error="why"), DYING), strict=True):
        frame = lease_frame(5, 1000, lease)
        ext = cbor2.loads(body_of(frame)[: frame.ext_len]) if frame.ext_len else {}
        assert [*ext] == row["keys of ext"].replace("-", "").split()
    parts = table(DOC, "Body of a LEASE frame")
    assert [row["part"] for row in parts] == ["ext", "seqs", "numbers", "deliveries"]


# Written and read bodies


def test_the_bytes_of_a_topic_frame_never_change() -> None:
    small = TOPIC._replace(config={"cap": 1})
    frame = topic_frame(5, 4096, 1000, small)
    assert body_of(frame).hex() == (
        "ab646e616d6561616565706f63680266636f6e666967a1636361700164686561640967"
        "6c6173745f74731903e86573746172740466666c6f6f7273850403020103666c6f7373"
        "6573818205066764616d6167656482820707820809677472696d6d65648182040469"
        "6b6579735f66726f6d03"
    )
    assert decode_topic(body_of(frame)) == small


def test_the_bytes_of_router_frames_never_change() -> None:
    assert body_of(ROUTER_FRAME).hex() == (
        "a8646e616d6564612d3e6262696403"
        "66636f6e666967a266736f757263656161646465737461"
        "6269736f757263655f6964076565706f63680967646573745f696408"
        "6573746172741bffffffffffffffff65746f74616c0c"
    )
    assert decode_router(memoryview(body_of(ROUTER_FRAME))) == ROUTER
    assert body_of(ROUTERS_REMOVED_FRAME).hex() == "820304"
    assert decode_router_ids(memoryview(body_of(ROUTERS_REMOVED_FRAME))) == [3, 4]


@pytest.mark.parametrize(
    ("lease", "body"),
    [
        (
            CLAIMED,
            (
                "a2616e6277316175197918"
                "0700000000000000ffffffffffffffff"
                "9c3a7f00000000000500000000000000"
                "01000000ffffffff"
            ),
        ),
        (RELEASED, "a161751907d0070000000000000009000000000000000100000002000000"),
        (DYING, "a1616e6164070000000000000009000000000000000300000004000000"),
        (
            DYING_WITHOUT_EXT,
            "070000000000000009000000000000000a00000000000000030000000300000004000000",
        ),
    ],
    ids=lambda value: value.op.name if isinstance(value, LeaseRows) else "",
)
def test_the_bytes_of_a_lease_frame_never_change(lease: LeaseRows, body: str) -> None:
    frame = lease_frame(5, 1000, lease)
    assert body_of(frame).hex() == body
    assert (frame.flags, frame.record_count) == (lease.op, len(lease.seqs))
    assert decode_lease(header_of(frame), body_of(frame)) == lease
    assert decode_lease(header_of(frame), memoryview(b"#" + body_of(frame))[1:]) == lease


def header_of(frame: Frame) -> FrameHeader:
    return header_at(b"".join(encode_frame(frame, 0, 0, 0)), 0)


def test_the_numbers_of_operations_and_flags_never_change() -> None:
    assert [(op.name, op.value) for op in LeaseOp] == [
        ("CLAIMED", 1),
        ("RELEASED", 2),
        ("DYING", 3),
    ]
    assert [(flag.name, flag.value) for flag in DeleteFrameFlags] == [("DEAD_LETTERED", 1)]
    assert not any(number & RecordFlags.EXTERNAL for number in (*LeaseOp, *DeleteFrameFlags))


def test_a_body_is_read_as_it_was_written() -> None:
    assert [*decode_runs(body_of(FRAMES[1]))] == [(7, 2), (12, 1)]
    assert decode_topic(body_of(FRAMES[3])) == TOPIC
    assert decode_start(body_of(FRAMES[4])) == "boot"
    assert decode_floors(body_of(FRAMES[7])) == Floors(4, 3, 2, 1, 3)


def test_the_records_of_an_append_frame_follow_its_ext() -> None:
    frame = FRAMES[0]
    body = body_of(frame)
    view = RecordsView(frame.flags, frame.record_count, frame.ext_len, memoryview(body))
    assert bytes(view.slice(0, 1)) == b'{"$seq":7,"$ts":1000,"$tag":"t","data":1}'
    assert decode_idempotency_key(body[: frame.ext_len]) == view.ext()["k"] == "key"
    assert decode_idempotency_key(cbor2.dumps({"n": [b'"a"']})) is None


def test_an_external_append_frame_contains_only_the_ext() -> None:
    ext = cbor2.dumps({"k": "key"})
    frame = external_append_frame(5, 7, 1000, 3, RecordFlags.TAGS, ext)
    assert (frame.flags, frame.ext_len, body_of(frame)) == (2 | 16, len(ext), ext)
    assert frame.record_count == 3
