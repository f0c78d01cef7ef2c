"""LOST frames: seqs that a repair has found lost, and topics that may have lost some."""

from __future__ import annotations

from tests.engine.shard_support import Desk, fill, seqs_of, told
from topics.engine.changes import start
from topics.engine.changes.by_kind import replay_frame
from topics.engine.replay import Replay
from topics.formats.disk.frame_bodies import lost_frame
from topics.formats.disk.frames import FRAME_HEADER_BYTES, FrameKind, encode_frame, header_at


def lose(replay: Replay, topic_id: int, first_seq: int, seqs: int, *, lsn: int = 1 << 20) -> None:
    data = b"".join(
        map(bytes, encode_frame(lost_frame([(topic_id, first_seq, seqs)], 64), lsn, 0, 0))
    )
    replay_frame(replay, header_at(data, 0), b"", False)


def started(desk: Desk, replay: Replay) -> list[FrameKind]:
    frames = start.decide(replay, desk.now, clean=False, tail_may_be_lost=False)
    return [frame.kind for frame in frames]


def test_lost_seqs_are_told_and_not_given_again(desk: Desk) -> None:
    fill(desk, 3)
    topic, replay = desk.engine.topic("a"), Replay(desk.engine.table)
    for _ in range(2):  # twice does no harm
        lose(replay, topic.id, 4, 2)
        assert started(desk, replay) == []
        assert (topic.head_seq, topic.next_seq) == (5, 6)
        assert seqs_of(desk.read("a")) == [1, 2, 3]
        assert told(desk.read("a", 3)) == (4, 5, "damaged")


def test_a_topic_that_is_not_known_keeps_its_id(desk: Desk) -> None:
    replay = Replay(desk.engine.table)
    lose(replay, 77, 1, 5)
    fill(desk, 1)
    assert desk.engine.topic("a").id > 77


def test_seqs_that_were_gone_before_are_no_loss(desk: Desk) -> None:
    fill(desk, 3)
    topic, replay = desk.engine.topic("a"), Replay(desk.engine.table)
    desk.delete_records("a", before_seq=3)
    desk.commit()
    lose(replay, topic.id, 1, 2)
    assert told(desk.read("a")) is None
    assert seqs_of(desk.read("a")) == [3]


def test_only_a_topic_without_a_later_write_goes_on_above_what_it_may_have_lost(desk: Desk) -> None:
    fill(desk, 3)
    topic, replay = desk.engine.topic("a"), Replay(desk.engine.table)
    lose(replay, 0, 0, 100)
    lose(replay, 0, 0, 10)
    desk.append("a", 4)
    desk.commit()
    assert started(desk, replay) == []
    assert topic.next_seq == 5
    lose(replay, 0, 0, 100)
    lose(replay, 0, 0, 10)
    assert started(desk, replay) == [FrameKind.TOPIC]
    assert topic.next_seq == 115
    assert told(desk.read("a", 4)) == (5, 114, "damaged")
    assert started(desk, replay) == [], "the frame of the first start says so"


def test_a_frame_tells_what_several_topics_have_lost(desk: Desk) -> None:
    fill(desk, 3)
    desk.put("b")
    desk.commit()
    replay, a, b = Replay(desk.engine.table), *map(desk.engine.topic, "ab")
    frame = lost_frame([(a.id, 4, 2), (b.id, 1, 7), (0, 0, 5)], 112)
    data = b"".join(map(bytes, encode_frame(frame, 1 << 20, 0, 0)))
    replay_frame(replay, header_at(data, 0), data[FRAME_HEADER_BYTES:], False)
    assert (told(desk.read("a", 3)), told(desk.read("b"))) == ((4, 5, "damaged"), (1, 7, "damaged"))
    assert {*replay.doubts} == {a.id, b.id}
