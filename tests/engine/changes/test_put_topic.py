"""Topics made and configured."""

from __future__ import annotations

import pytest

from tests.engine.shard_support import Desk, body
from topics.engine.changes import append, put_topic
from topics.errors import (
    Forbidden,
    TopicNotFound,
)
from topics.formats.api.decoding import decode_config


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


def test_a_put_without_a_difference_has_no_frame_and_waits_for_nothing(desk: Desk) -> None:
    desk.put("a", ttl_ms=1)
    desk.commit()
    again = desk.put("a", ttl_ms=1)
    assert (again.frames, again.sync) == ([], False)
