"""Forwarding: the copies in a dest and the router's cursor are committed as one change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.shard_support import EngineHarness, body_of, header_of, seqs_of, view_of
from tests.support.limits import LIMITS
from tests.support.quota import Caps
from topics.engine.changes import append, forward
from topics.engine.changes.forward import (
    Advance,
    Forward,
    ForwardDest,
    Forwarded,
    copy_ts,
    count_fitting,
)
from topics.engine.replay import Replay, StateMismatch
from topics.engine.routing.derivations import Derivation, derivation_of
from topics.engine.snapshot import restore_topic, snapshot_topic
from topics.engine.store import Unreadable
from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.formats.api.append_body import decode_append
from topics.formats.disk.copies import (
    Copier,
    ForwardBody,
    Run,
    Stamp,
    decode_forward,
)
from topics.formats.disk.frames import FrameKind
from topics.formats.disk.rendering import EncodedRecords, encode
from topics.formats.json_text import json_bytes
from topics.formats.ranges import SeqRange

ROUTER = 7
STAMP = Stamp("r", "source", 3, 1)


def payload(*datas: Any, **fields: Any) -> EncodedRecords:
    """Return encoded records of a source."""
    records = [{"data": data, **fields} for data in datas]
    return encode(decode_append(json_bytes({"records": records}), None, LIMITS), 1, 5, False)


def copier_of(source: EncodedRecords) -> Copier:
    return Copier([(view_of(source), Run(0, 0, 0, source.record_count))], ())


def forward_dest(harness: EngineHarness, name: str) -> ForwardDest:
    topic = harness.engine.topic(name)
    return ForwardDest(topic, ROUTER, derivation_of(topic, ROUTER, 0).total, "r")


def forward_to(
    harness: EngineHarness, names: str, *datas: Any, cursor: int, hop: int = 1, **fields: Any
) -> Forwarded:
    """Forward copies of these records to the topics whose names are the letters of `names`."""
    source = payload(*datas, **fields)
    copier = copier_of(source)
    runs = [Run(0, 0, 0, len(datas))]
    body = ForwardBody(cursor, hop, (), runs, copier.tail_bytes, payload=view_of(source))
    forward_dests = [forward_dest(harness, name) for name in names]
    ts = copy_ts(forward_dests[0].topic, harness.now)
    found = forward.forward(harness.engine.table, forward_dests, copier, body, ts, harness.now)
    for change in found.changes:
        assert isinstance(change, Forward)
        harness.copies[change] = view_of(copier.render(change.first_seq, ts))
        change.frames.append(found.frame)
        harness.pending.append(change)
    return found


def send(harness: EngineHarness, *datas: Any, cursor: int, hop: int = 1, **fields: Any) -> Forward:
    """Forward copies to the dest `a`."""
    (change,) = forward_to(harness, "a", *datas, cursor=cursor, hop=hop, **fields).changes
    assert isinstance(change, Forward)
    return change


def skip(harness: EngineHarness, cursor: int, trimmed: int = 0) -> Advance:
    found = forward.advance([forward_dest(harness, "a")], cursor, trimmed, 1, harness.now)
    (change,) = found.changes
    assert isinstance(change, Advance)
    change.frames.append(found.frame)
    harness.pending.append(change)
    return change


def fits_of(harness: EngineHarness, topic: Topic, source: EncodedRecords) -> int:
    return count_fitting(
        harness.engine.table, topic, copier_of(source), copy_ts(topic, harness.now)
    )


def progress(harness: EngineHarness) -> Derivation:
    return derivation_of(harness.engine.topic("a"), ROUTER, 0)


def replay(table: TopicTable, change: Forward | Advance, lsn: int = 10, **checked: Any) -> None:
    """Replay the change's FORWARD frame."""
    (frame,) = (frame for frame in change.frames if frame.kind is FrameKind.FORWARD)
    checkpointed = checked.get("checkpointed", False)
    running = checked.get("replay") or Replay(table)
    header = header_of(frame, lsn)
    forward.replay(running, header, decode_forward(header, body_of(frame)), checkpointed)


def another(harness: EngineHarness) -> TopicTable:
    """Return a table that contains the dest topic, but none of the records forwarded to it."""
    table = TopicTable(0, 1)
    table.store = harness
    topic = harness.engine.topic("a")
    table.add(Topic(topic.id, "a", topic.epoch, topic.config))
    return table


@pytest.fixture
def dest(harness: EngineHarness) -> EngineHarness:
    harness.put("a")
    harness.commit()
    return harness


def test_dests_with_the_same_copies_share_one_frame_and_one_payload(dest: EngineHarness) -> None:
    dest.append("a", "direct")
    dest.put("b", durability="ephemeral")
    dest.put("c", durability="fsync")
    dest.commit()
    found = forward_to(dest, "abc", "x" * 5000, cursor=12, hop=3)
    assert found.frame.length < 5000 + 300
    body = decode_forward(header_of(found.frame), body_of(found.frame))
    assert (body.cursor, body.hop, len(body.runs)) == (12, 3, 1)
    topics = [dest.engine.topic(name) for name in "abc"]
    assert [(row.router, row.topic_id, row.first_seq) for row in body.rows] == [
        (ROUTER, topics[0].id, 2),
        (ROUTER, topics[1].id, 0),
        (ROUTER, topics[2].id, 1),
    ], "the log has nothing of copies that stay in memory"
    assert [change.sync for change in found.changes] == [False, False, True]
    dest.commit()
    for name, seqs in (("a", [1, 2]), ("b", [1]), ("c", [1])):
        assert seqs_of(dest.read(name)) == seqs
        assert derivation_of(dest.engine.topic(name), ROUTER, 0) == (12, 1)


def test_an_undo_restores_the_seqs_and_the_cursor(dest: EngineHarness) -> None:
    send(dest, "x", cursor=1)
    dest.commit()
    send(dest, "y", cursor=2)
    skip(dest, 9, trimmed=7)
    dest.undo()
    topic = dest.engine.topic("a")
    assert (topic.next_seq, topic.head_seq, topic.pending, topic.pending_bytes) == (2, 1, 0, 0)
    assert progress(dest) == (1, 1)


def test_the_cursor_advances_with_the_copies_even_if_a_cap_finds_a_damaged_record(
    dest: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apply_caps(*_: object) -> None:
        raise Unreadable

    dest.put("a", cap_records=2)
    dest.commit()
    send(dest, 1, 2, 3, cursor=3)
    monkeypatch.setattr(append, "apply_caps", apply_caps)
    with pytest.raises(Unreadable):
        dest.commit()
    assert dest.engine.topic("a").head_seq == 3
    assert progress(dest) == (3, 3)


def test_an_ephemeral_dest_keeps_copies_in_memory_and_logs_the_cursor(dest: EngineHarness) -> None:
    dest.put("a", durability="ephemeral")
    dest.commit()
    change = send(dest, "x", cursor=4)
    (frame,) = (frame for frame in change.frames if frame.kind is FrameKind.FORWARD)
    assert frame.named_bytes == 0
    dest.commit()
    assert seqs_of(dest.read("a")) == [1]
    table = another(dest)
    replay(table, change)
    assert derivation_of(table.topic("a"), ROUTER, 0) == (4, 1)
    assert table.topic("a").head_seq == 0


@pytest.mark.parametrize(
    ("config", "fits"),
    [
        ({"cap_records": 3}, 3),
        ({"cap_records": 3, "discard": "reject"}, 2),
        ({"cap_records": 1, "discard": "reject"}, 0),
        ({"cap_records": 9, "discard": "reject"}, 3),
        ({"discard": "reject"}, 3),
        ({"cap_bytes": 10, "discard": "reject"}, 0),
        ({"cap_bytes": 100, "discard": "reject"}, 1),
        ({"cap_bytes": 10_000, "discard": "reject"}, 3),
    ],
)
def test_a_dest_that_rejects_takes_only_as_many_copies_as_its_caps_allow(
    dest: EngineHarness, config: dict[str, Any], fits: int
) -> None:
    dest.append("a", "direct")
    dest.put("a", **config)
    dest.commit()
    topic = dest.engine.topic("a")
    assert fits_of(dest, topic, payload(1, 2, 3)) == fits


def test_the_capacity_of_a_dest_accounts_for_pending_copies(dest: EngineHarness) -> None:
    dest.put("a", cap_records=2, discard="reject")
    dest.commit()
    send(dest, 1, cursor=1)
    topic = dest.engine.topic("a")
    assert fits_of(dest, topic, payload(2, 3)) == 1


@pytest.mark.parametrize(
    ("free_bytes", "config", "fits"),
    [
        *((0, {}, 0), (10, {}, 0), (100, {}, 2), (10_000, {}, 3), (100, {"cap_bytes": 10_000}, 2)),
        (100, {"cap_records": 3, "discard": "reject"}, 1),
        (60, {"cap_records": 9, "discard": "reject"}, 1),
    ],
)
def test_a_dest_takes_only_as_many_copies_as_the_server_byte_limit_allows(
    dest: EngineHarness, free_bytes: int, config: dict[str, Any], fits: int
) -> None:
    dest.append("a", "direct")
    dest.append("a", "x" * 60)
    dest.put("a", **config)
    dest.commit()
    topic = dest.engine.topic("a")
    caps = Caps(dest.engine, max_bytes=10_000)
    caps.bytes.others = 10_000 - free_bytes - caps.bytes.own
    assert fits_of(dest, topic, payload(1, 2, 3)) == fits


def test_a_dest_that_evicts_by_its_own_cap_needs_no_free_capacity(dest: EngineHarness) -> None:
    dest.append("a", "direct")
    dest.commit()
    topic = dest.engine.topic("a")
    dest.put("a", cap_bytes=topic.bytes)
    dest.commit()
    caps = Caps(dest.engine, max_bytes=topic.bytes)
    assert fits_of(dest, topic, payload(1, 2, 3)) == 3
    send(dest, 1, 2, 3, cursor=1)
    dest.commit()
    assert topic.head_seq == 4
    assert topic.bytes <= caps.bytes.own


def test_refused_copies_change_nothing(dest: EngineHarness) -> None:
    dest.put("a")
    dest.commit()
    caps = Caps(dest.engine, max_bytes=100)
    found = forward_to(dest, "a", "x" * 100, cursor=1)
    assert (len(found.refused), found.changes) == (1, [])
    topic = dest.engine.topic("a")
    assert (caps.bytes.own, topic.next_seq, topic.pending) == (0, 1, 0)
    send(dest, "x", cursor=1)
    assert caps.bytes.own == topic.pending_bytes
    dest.undo()
    assert caps.bytes.own == 0


def test_an_advance_beyond_the_reserved_seqs_waits_for_a_sync(dest: EngineHarness) -> None:
    assert not skip(dest, 6, trimmed=5).sync
    assert skip(dest, 10_000, trimmed=9_000).sync
    dest.undo()
    dest.put("a", durability="fsync")
    dest.commit()
    assert skip(dest, 6, trimmed=1).sync
    dest.commit()
    assert not skip(dest, 7).sync, "no request waits for a cursor"


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_memory_records_below_skipped_seqs_are_reported_as_lost(
    dest: EngineHarness, is_checkpointed: bool
) -> None:
    change = send(dest, "x", "y", cursor=2)
    dest.commit()
    dest.put("a", durability="ephemeral")
    dest.commit()
    send(dest, "in", "memory", cursor=4)
    dest.commit()
    table = another(dest)
    running = Replay(table)
    if is_checkpointed:
        table = TopicTable(0, 1)
        table.store = dest
        running = Replay(table)
        restore_topic(running, snapshot_topic(dest.engine.topic("a"), 5))
    replay(table, change, lsn=1, replay=running, checkpointed=True)
    replay(table, skip(dest, 9, trimmed=5), replay=running)
    again = table.topic("a")
    assert (again.losses, again.trimmed) == ((SeqRange(3, 4),), (SeqRange(5, 9),))


def test_forward_frames_that_the_checkpoint_covers_are_ignored(dest: EngineHarness) -> None:
    changes: list[Forward | Advance] = [
        send(dest, "x", cursor=1),
        skip(dest, 7, trimmed=5),
        send(dest, "y", cursor=8),
    ]
    dest.commit()
    table = TopicTable(0, 1)
    table.store = dest
    running = Replay(table)
    restored = restore_topic(running, snapshot_topic(dest.engine.topic("a"), 100))
    restored.head_seq = dest.engine.topic("a").head_seq
    for change in changes:
        replay(table, change, lsn=10, replay=running, checkpointed=True)
    assert derivation_of(restored, ROUTER, 0) == (8, 1)
    assert restored.trimmed == dest.engine.topic("a").trimmed
    with pytest.raises(StateMismatch):
        replay(table, changes[0], replay=running)
    with pytest.raises(StateMismatch):
        replay(table, changes[1], replay=running)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), max_size=6))
def test_a_replay_of_fan_outs_restores_the_same_topics(steps: list[tuple[int, int]]) -> None:
    harness, cursor = EngineHarness(), 0
    for name in "abc":
        harness.put(name)
    harness.commit()
    table = TopicTable(0, 1)
    table.store = harness
    for name in "abc":
        topic = harness.engine.topic(name)
        table.add(Topic(topic.id, name, topic.epoch, topic.config))
    for at, (count, lost) in enumerate(steps):
        cursor += count
        names = "abc"[at % 3 :] if at % 2 else "abc"
        found = (
            forward.advance(
                [forward_dest(harness, name) for name in names], cursor, lost, 1, harness.now
            )
            if lost
            else forward_to(harness, names, *range(count), cursor=cursor)
        )
        if lost:
            harness.pending += found.changes
        harness.commit()
        header = header_of(found.frame, 64 * at)
        forward.replay(Replay(table), header, decode_forward(header, body_of(found.frame)), False)
    for name in "abc":
        topic, again = harness.engine.topic(name), table.topic(name)
        for field in ("head_seq", "start_seq", "count", "bytes", "trimmed", "derivations"):
            assert getattr(again, field) == getattr(topic, field), field
