"""Replay: which frames are about a topic, and which of them the checkpoint holds."""

from __future__ import annotations

import msgspec
import pytest

from tests.engine.shard_support import Desk
from topics.engine.changes import append
from topics.engine.replay import Misfit, Replay
from topics.formats.api.topic_config import TopicConfig
from topics.formats.disk.frames import FrameHeader, FrameKind


def header(topic_id: int) -> FrameHeader:
    return FrameHeader(b"", 0, 0, 0, topic_id, 1, 0, 0, 0, 0, FrameKind.FLOOR, 0, 0)


def test_topics_of_one_config_share_it(desk: Desk) -> None:
    replay = Replay(desk.engine.table)
    fields = msgspec.structs.asdict(TopicConfig(ttl_ms=5))
    assert replay.config(fields) is replay.config({**fields})
    assert replay.config(fields) == TopicConfig(ttl_ms=5)
    assert replay.config({**fields, "ttl_ms": 6}) == TopicConfig(ttl_ms=6)


def test_each_topic_of_the_checkpoint_has_the_lsn_that_was_noted(desk: Desk) -> None:
    for name in "abc":
        desk.put(name)
    replay = Replay(desk.engine.table)
    topics = [desk.engine.topic(name) for name in "abc"]
    for topic, lsn in zip(topics, (7, 9, 7), strict=True):
        assert replay.news_from(topic) == 0
        replay.note_restored(topic, 5, lsn)
    assert [*map(replay.news_from, topics)] == [7, 9, 7]
    heads = [header(topic.id)._replace(lsn=8) for topic in topics]
    assert [*map(replay.is_ahead, heads)] == [True, False, True]
    assert not replay.is_ahead(header(99)._replace(lsn=8))


def test_a_write_is_replayed_once_and_caps_take_nothing_before_the_checkpoint(desk: Desk) -> None:
    """What it held was within its caps, also where a record that was deleted made room."""
    desk.put("a", cap_records=2)
    desk.commit()
    replay, topic = Replay(desk.engine.table), desk.engine.topic("a")
    replay.note_restored(topic, 0, 4096)
    frame = header(topic.id)._replace(kind=FrameKind.APPEND, record_count=1, body_len=50)
    for seq in (1, 2, 3):
        append.replay(replay, frame._replace(lsn=seq * 100, first_seq=seq), checkpointed=True)
        assert (topic.start_seq, topic.count) == (1, seq)
    assert append.replay(replay, frame._replace(first_seq=3), checkpointed=True) is None
    with pytest.raises(Misfit, match="seq 3 is there already"):
        append.replay(replay, frame._replace(first_seq=3))
    append.replay(replay, frame._replace(lsn=4096, first_seq=4))
    assert (topic.start_seq, topic.count) == (3, 2)
