"""Topics made and configured."""

from __future__ import annotations

import pytest

from tests.engine.shard_support import Desk, body, kinds
from topics.engine.changes import append, put_topic
from topics.engine.changes.append import Append
from topics.errors import (
    Forbidden,
    TopicExistsIncompatible,
    TopicNotFound,
)
from topics.formats.api.decoding import decode_config
from topics.formats.api.topic_config import TopicConfig
from topics.formats.disk.frames import FrameKind


def test_an_append_makes_the_topic_with_its_inline_config(desk: Desk) -> None:
    change = desk.append("a", 1, config={"ttl_ms": 7})
    assert isinstance(change, Append)
    assert change.created
    assert kinds(change) == [FrameKind.TOPIC, FrameKind.APPEND]
    assert desk.engine.topic("a").config == TopicConfig(ttl_ms=7)


@pytest.mark.parametrize(
    ("more", "made"),
    [
        *((b"", True), (b',"create":true', True), (b',"create":false', False)),
        (b',"config":{"auto_create":false}', False),
        (b',"config":{"auto_create":false},"create":true', True),
        *((b',"config":{"auto_create":true},"create":false', False), (b',"create":null', True)),
    ],
)
def test_create_speaks_before_auto_create(desk: Desk, more: bytes, made: bool) -> None:
    if made:
        append.decide(desk.engine.table, "a", body(more), desk.now)
        assert "a" in desk.engine.topics
    else:
        with pytest.raises(TopicNotFound):
            append.decide(desk.engine.table, "a", body(more), desk.now)
        assert desk.engine.topics == {}


def test_a_dead_letter_outside_the_prefixes_is_forbidden(desk: Desk) -> None:
    patch = decode_config(b'{"dead_letter":"other"}')
    with pytest.raises(Forbidden):
        put_topic.decide(desk.engine.table, "mine.a", patch, desk.now, ["mine."])
    with pytest.raises(Forbidden):
        append.decide(
            desk.engine.table,
            "mine.a",
            body(b',"config":{"dead_letter":"other"}'),
            desk.now,
            ["mine."],
        )
    assert desk.engine.topics == {}
    put_topic.decide(
        desk.engine.table, "mine.a", decode_config(b'{"dead_letter":"mine.b"}'), desk.now, ["mine."]
    )


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
