"""The rules of a shard, one sentence each; the long runs are in test_shard_machine.py."""

from __future__ import annotations

import pytest

from tests.engine.shard_support import LIMITS, Desk
from topics.engine.changes.append import Append, InFlightDuplicate
from topics.engine.changes.put_topic import PutTopic
from topics.engine.dedupe import DedupeEntry
from topics.engine.now import Now
from topics.engine.topic import RESERVE_MAX, RESERVE_MIN, Topic
from topics.errors import Forbidden, TopicExistsIncompatible, TopicNotEmpty, TopicNotFound
from topics.formats.api.append_body import AppendBody, decode_append
from topics.formats.api.decoding import decode_config
from topics.formats.api.topic_config import TopicConfig
from topics.formats.disk.frames import FrameKind

ONE = b'{"records":[{"data":1}]%b}'


def body(more: bytes = b"") -> AppendBody:
    return decode_append(ONE % more, None, LIMITS)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def kinds(change: object) -> list[FrameKind]:
    assert isinstance(change, Append | PutTopic)
    return [frame.kind for frame in change.frames]


# Making topics


def test_ids_of_shards_never_meet() -> None:
    desks = [Desk(shard, 3) for shard in range(3)]
    for desk in desks:
        for number in range(5):
            desk.put(f"t{number}")
    ids = [{topic.id for topic in desk.engine.topics.values()} for desk in desks]
    assert [{number % 3 for number in each} for each in ids] == [{0}, {1}, {2}]
    assert 0 not in ids[0]


def test_an_append_makes_the_topic_with_its_inline_config(desk: Desk) -> None:
    change = desk.append("a", 1, config={"ttl_ms": 7})
    assert isinstance(change, Append)
    assert change.created
    assert kinds(change) == [FrameKind.TOPIC, FrameKind.APPEND]
    assert desk.engine.topic("a").config == TopicConfig(ttl_ms=7)


def test_an_inline_config_changes_nothing_of_a_topic_that_exists(desk: Desk) -> None:
    desk.put("a", ttl_ms=1)
    desk.append("a", 1, config={"ttl_ms": 7, "type": "queue"})
    assert desk.engine.topic("a").config == TopicConfig(ttl_ms=1)


@pytest.mark.parametrize(
    ("more", "made"),
    [
        (b"", True),
        (b',"create":true', True),
        (b',"create":false', False),
        (b',"config":{"auto_create":false}', False),
        (b',"config":{"auto_create":false},"create":true', True),
        (b',"config":{"auto_create":true},"create":false', False),
        (b',"create":null', True),
    ],
)
def test_create_speaks_before_auto_create(desk: Desk, more: bytes, made: bool) -> None:
    if made:
        desk.engine.append("a", body(more), desk.now)
        assert "a" in desk.engine.topics
    else:
        with pytest.raises(TopicNotFound):
            desk.engine.append("a", body(more), desk.now)
        assert desk.engine.topics == {}


def test_create_false_writes_to_a_topic_that_exists(desk: Desk) -> None:
    desk.put("a")
    assert isinstance(desk.append("a", 1, create=False), Append)


def test_epochs_rise_though_the_clock_goes_back(desk: Desk) -> None:
    epochs = []
    for ts in (100, 50, 50, 7):
        desk.now = Now(ts, desk.now.ms + 1)
        desk.put("a")
        epochs.append(desk.engine.topic("a").epoch)
        desk.delete("a")
    assert epochs == sorted(set(epochs))
    assert epochs[0] == 100


def test_a_dead_letter_outside_the_prefixes_is_forbidden(desk: Desk) -> None:
    patch = decode_config(b'{"dead_letter":"other"}')
    with pytest.raises(Forbidden):
        desk.engine.put("mine.a", patch, desk.now, ["mine."])
    with pytest.raises(Forbidden):
        desk.engine.append(
            "mine.a", body(b',"config":{"dead_letter":"other"}'), desk.now, ["mine."]
        )
    assert desk.engine.topics == {}
    desk.engine.put("mine.a", decode_config(b'{"dead_letter":"mine.b"}'), desk.now, ["mine."])


def test_a_refused_change_of_type_changes_nothing(desk: Desk) -> None:
    desk.put("a", ttl_ms=1)
    with pytest.raises(TopicExistsIncompatible):
        desk.put("a", type="queue", ttl_ms=2)
    assert desk.engine.topic("a").config == TopicConfig(ttl_ms=1)


def test_a_put_without_a_difference_has_no_frame_and_waits_for_nothing(desk: Desk) -> None:
    desk.put("a", ttl_ms=1)
    desk.commit()
    again = desk.put("a", ttl_ms=1)
    assert (again.frames, again.sync) == ([], False)


def test_a_put_without_a_difference_waits_for_the_one_before_it(desk: Desk) -> None:
    desk.put("a", ttl_ms=1)
    assert desk.put("a", ttl_ms=1).sync


# What must be synced


@pytest.mark.parametrize(
    ("durability", "sync"),
    [("ephemeral", False), ("memory", False), ("disk", False), ("fsync", True)],
)
def test_only_the_class_fsync_waits_for_the_disk(desk: Desk, durability: str, sync: bool) -> None:
    desk.put("a", durability=durability)
    desk.commit()
    change = desk.append("a", 1)
    assert isinstance(change, Append)
    assert change.sync is sync
    assert bool(change.frames) is (durability != "ephemeral")


def test_a_write_behind_one_that_waits_for_the_disk_waits_too(desk: Desk) -> None:
    desk.put("a")
    change = desk.append("a", 1)
    assert isinstance(change, Append)
    assert change.sync, "the topic itself is not on the disk yet"


def test_a_write_does_not_wait_for_a_reservation_that_leaves_room(desk: Desk) -> None:
    desk.put("a")
    desk.commit()
    desk.append("a", *range(RESERVE_MIN // 2))
    desk.append("a", 1)
    assert len(desk.pending) == 3, "two writes and a reservation"
    change = desk.append("a", 2)
    assert isinstance(change, Append)
    assert not change.sync


def test_a_write_beyond_the_reserved_seqs_waits_for_the_disk(desk: Desk) -> None:
    desk.put("a")
    desk.commit()
    change = desk.append("a", *range(RESERVE_MIN + 1))
    assert isinstance(change, Append)
    assert change.sync
    desk.commit()
    assert desk.engine.topic("a").reserved_seq > RESERVE_MIN


def test_records_in_memory_only_carry_the_reservation_that_they_need(desk: Desk) -> None:
    desk.put("a", durability="ephemeral")
    desk.commit()
    change = desk.append("a", *range(RESERVE_MIN + 1))
    assert isinstance(change, Append)
    assert kinds(change) == [FrameKind.SEQS_RESERVED]
    assert change.sync
    assert change.frames[0].first_seq == change.ceiling > change.last_seq
    assert len(desk.pending) == 1, "no second reservation"
    desk.commit()
    assert desk.engine.topic("a").reserved_seq == change.ceiling


def test_a_reservation_is_undone_with_the_records_that_carried_it(desk: Desk) -> None:
    desk.put("a", durability="ephemeral")
    desk.commit()
    desk.append("a", *range(RESERVE_MIN + 1))
    desk.undo()
    topic = desk.engine.topic("a")
    assert (topic.reserved_seq, topic.reserving_seq, topic.next_seq) == (
        RESERVE_MIN,
        RESERVE_MIN,
        1,
    )
    assert kinds(desk.append("a", *range(RESERVE_MIN + 1))) == [FrameKind.SEQS_RESERVED]


def test_reservations_grow_with_the_topic_and_are_few() -> None:
    topic = Topic(1, "a", 1, TopicConfig())
    steps = []
    last = 0
    while last < 10_000_000:
        last += 1000
        ceiling = topic.reservation_after(last)
        if ceiling is not None:
            steps.append(ceiling - last)
            topic.reserving_seq = topic.reserved_seq = ceiling
        assert topic.reserved_seq > last
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (RESERVE_MIN, RESERVE_MAX)
    assert len(steps) < 40


# Deletes


def test_only_records_keep_a_topic_from_being_deleted_when_empty(desk: Desk) -> None:
    desk.put("a")
    assert desk.delete("a", if_empty=True) is not None, "a config on its way is no record"
    desk.put("a")
    desk.commit()
    desk.append("a", 1)
    with pytest.raises(TopicNotEmpty):
        desk.delete("a", if_empty=True)
    desk.undo()
    assert desk.delete("a", if_empty=True) is not None


def test_deleting_what_is_not_there_is_none(desk: Desk) -> None:
    assert desk.delete("a") is None
    assert desk.delete("a", if_empty=True) is None


# Undo


def test_undo_takes_back_everything_that_is_pending(desk: Desk) -> None:
    desk.put("a", ttl_ms=1)
    desk.append("a", 1, key="kept")
    desk.commit()
    topic = desk.engine.topic("a")
    desk.append("a", 2, key="lost")
    desk.put("a", ttl_ms=2)
    desk.put("a", ttl_ms=3)
    desk.delete("a")
    desk.append("a", "another a")
    desk.append("new", 1)
    desk.undo()
    assert desk.engine.topics == {"a": topic}
    assert desk.engine.by_id == {topic.id: topic}
    assert (topic.config.ttl_ms, topic.head_seq, topic.next_seq, topic.deleted) == (1, 1, 2, False)
    again = desk.append("a", 2, key="lost")
    assert isinstance(again, Append)
    assert again.first_seq == 2
    assert isinstance(desk.append("a", 2, key="kept"), DedupeEntry)


# Idempotency keys


def test_a_retry_of_a_write_on_its_way_follows_it(desk: Desk) -> None:
    first = desk.append("a", 1, key="k")
    assert desk.append("a", 2, key="k") == InFlightDuplicate(first)  # type: ignore[arg-type]
    desk.commit()
    assert desk.append("a", 2, key="k") == DedupeEntry(1, 1, desk.now.ms)


def test_a_window_of_zero_keeps_nothing(desk: Desk) -> None:
    desk.put("a", idempotency_window_ms=0)
    for expected in (1, 2, 3):
        change = desk.append("a", 1, key="k")
        assert isinstance(change, Append)
        assert (change.first_seq, change.key) == (expected, None)
        if expected == 2:
            desk.commit()


def test_keys_stand_for_themselves_in_each_topic(desk: Desk) -> None:
    desk.append("a", 1, key="k")
    assert isinstance(desk.append("b", 1, key="k"), Append)


def test_a_topic_made_again_knows_no_key(desk: Desk) -> None:
    desk.append("a", 1, key="k")
    desk.delete("a")
    change = desk.append("a", 1, key="k")
    assert isinstance(change, Append)
    assert change.created


def test_a_key_whose_time_is_over_does_not_come_back_with_a_longer_window(desk: Desk) -> None:
    desk.put("a", idempotency_window_ms=100)
    desk.append("a", 1, key="old")
    desk.commit()
    desk.later(60)
    desk.append("a", 2, key="young")
    desk.commit()
    desk.later(40)
    desk.put("a", idempotency_window_ms=1000)
    desk.commit()
    assert desk.append("a", 3, key="young") == DedupeEntry(2, 1, desk.now.ms - 40)
    assert isinstance(desk.append("a", 3, key="old"), Append)


def test_a_shorter_window_holds_for_the_keys_that_are_there(desk: Desk) -> None:
    desk.append("a", 1, key="k")
    desk.commit()
    desk.later(100)
    desk.put("a", idempotency_window_ms=100)
    assert isinstance(desk.append("a", 2, key="k"), Append)


# Time


def test_ts_never_goes_back_in_a_topic(desk: Desk) -> None:
    stamps = []
    for ts in (100, 50, 120, 119):
        desk.now = Now(ts, desk.now.ms)
        change = desk.append("a", 1)
        assert isinstance(change, Append)
        stamps.append(change.ts)
    assert stamps == [100, 100, 120, 120]


def test_priority_falls_by_one_each_second_after_a_read(desk: Desk) -> None:
    desk.put("a")
    topic = desk.engine.topic("a")
    assert topic.effective_priority(desk.now.ms) == 0
    topic.touch(*desk.now)
    assert [
        topic.effective_priority(desk.now.ms + ms) for ms in (0, 999, 1000, 499_000, 500_000, 10**9)
    ] == [
        500,
        500,
        499,
        1,
        0,
        0,
    ]
    desk.put("a", auto_priority=False)
    assert topic.effective_priority(desk.now.ms) == 0
    desk.put("a", priority=-7)
    assert topic.effective_priority(desk.now.ms) == -7


# Lists


def test_names_are_sorted_and_stay_inside_prefix_cursor_and_allowlist(desk: Desk) -> None:
    for name in ("b", "a", "a.2", "a.1", "c"):
        desk.put(name)
    names = desk.engine.names
    assert list(names("", None, None)) == ["a", "a.1", "a.2", "b", "c"]
    assert list(names("a", None, None)) == ["a", "a.1", "a.2"]
    assert list(names("a", "a.1", None)) == ["a.2"]
    assert list(names("", None, ["b", "a."])) == ["a.1", "a.2", "b"]
    assert list(names("", None, [])) == []
