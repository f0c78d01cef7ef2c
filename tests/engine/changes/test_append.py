"""Appends, and the creation and configuration of topics: which changes wait for a sync, and what
an undo restores.
"""

from __future__ import annotations

import pytest

from tests.engine.shard_support import EngineHarness, body, kinds
from topics.engine.changes import append, put_topic, reservation
from topics.engine.changes.append import Append
from topics.engine.topic import RESERVE_MAX, RESERVE_MIN, Topic
from topics.engine.topic_table import TopicTable
from topics.errors import (
    Forbidden,
    TopicNotFound,
)
from topics.formats.api.decoding import decode_config
from topics.formats.api.topic_config import TopicConfig
from topics.formats.disk.frames import FrameKind


@pytest.mark.parametrize(
    ("durability", "sync"),
    [("ephemeral", False), ("memory", False), ("disk", False), ("fsync", True)],
)
def test_only_the_class_fsync_waits_for_the_disk(
    harness: EngineHarness, durability: str, sync: bool
) -> None:
    harness.put("a", durability=durability)
    harness.commit()
    change = harness.append("a", 1)
    assert isinstance(change, Append)
    assert change.sync is sync
    assert bool(change.frames) is (durability != "ephemeral")


# Reservations of seqs


def test_a_write_within_the_reserved_seqs_does_not_wait_for_the_next_reservation(
    harness: EngineHarness,
) -> None:
    harness.put("a")
    harness.commit()
    harness.append("a", *range(RESERVE_MIN // 2))
    harness.append("a", 1)
    assert len(harness.pending) == 3, "two writes and a reservation"
    change = harness.append("a", 2)
    assert isinstance(change, Append)
    assert not change.sync


def test_an_ephemeral_append_includes_the_seq_reservation_that_it_needs(
    harness: EngineHarness,
) -> None:
    harness.put("a", durability="ephemeral")
    harness.commit()
    change = harness.append("a", *range(RESERVE_MIN + 1))
    assert isinstance(change, Append)
    assert kinds(change) == [FrameKind.SEQS_RESERVED]
    assert change.sync
    assert change.frames[0].first_seq == change.ceiling > change.last_seq
    assert len(harness.pending) == 1, "no second reservation"
    harness.commit()
    assert harness.engine.topic("a").reserved_seq == change.ceiling


def test_an_undo_of_an_append_also_undoes_its_seq_reservation(harness: EngineHarness) -> None:
    harness.put("a", durability="ephemeral")
    harness.commit()
    harness.append("a", *range(RESERVE_MIN + 1))
    harness.undo()
    topic = harness.engine.topic("a")
    assert (topic.reserved_seq, topic.reserving_seq, topic.next_seq) == (
        RESERVE_MIN,
        RESERVE_MIN,
        1,
    )
    assert kinds(harness.append("a", *range(RESERVE_MIN + 1))) == [FrameKind.SEQS_RESERVED]


def test_seq_reservations_grow_with_the_topic_and_stay_few() -> None:
    topic = Topic(1, "a", 1, TopicConfig())
    steps = []
    for last in range(1000, 10_000_000, 1000):
        topic.next_seq = last + 1
        due = reservation.decide(topic)
        if due is not None:
            steps.append(due.ceiling - last)
            due.commit(TopicTable())
        assert topic.reserved_seq > last
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (RESERVE_MIN, RESERVE_MAX)
    assert len(steps) < 40


# Creation and configuration of topics


@pytest.mark.parametrize(
    ("more", "made"),
    [
        *((b"", True), (b',"create":true', True), (b',"create":false', False)),
        (b',"config":{"auto_create":false}', False),
        (b',"config":{"auto_create":false},"create":true', True),
        *((b',"config":{"auto_create":true},"create":false', False), (b',"create":null', True)),
    ],
)
def test_the_create_member_takes_precedence_over_auto_create(
    harness: EngineHarness, more: bytes, made: bool
) -> None:
    if made:
        append.decide(harness.engine.table, "a", body(more), harness.now)
        assert "a" in harness.engine.topics
    else:
        with pytest.raises(TopicNotFound):
            append.decide(harness.engine.table, "a", body(more), harness.now)
        assert harness.engine.topics == {}


def test_a_dead_letter_topic_outside_the_allowed_prefixes_is_forbidden(
    harness: EngineHarness,
) -> None:
    patch = decode_config(b'{"dead_letter":"other"}')
    with pytest.raises(Forbidden):
        put_topic.decide(harness.engine.table, "mine.a", patch, harness.now, ["mine."])
    with pytest.raises(Forbidden):
        append.decide(
            harness.engine.table,
            "mine.a",
            body(b',"config":{"dead_letter":"other"}'),
            harness.now,
            ["mine."],
        )
    assert harness.engine.topics == {}
    put_topic.decide(
        harness.engine.table,
        "mine.a",
        decode_config(b'{"dead_letter":"mine.b"}'),
        harness.now,
        ["mine."],
    )


def test_a_put_that_changes_nothing_writes_no_frame_and_waits_for_nothing(
    harness: EngineHarness,
) -> None:
    harness.put("a", ttl_ms=1)
    harness.commit()
    again = harness.put("a", ttl_ms=1)
    assert (again.frames, again.sync) == ([], False)
