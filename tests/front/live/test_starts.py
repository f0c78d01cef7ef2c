"""Where a reader begins in a topic."""

from __future__ import annotations

import pytest

from topics.formats.api.watch import Start
from topics.front.live.starts import Begun, TopicHead, begin_at

HEAD = TopicHead(head_seq=7, earliest_seq=3, epoch=2)


@pytest.mark.parametrize(
    ("start", "from_seq", "epoch"),
    [
        pytest.param(Start(), 0, 2, id="from the beginning"),
        pytest.param(Start(7), 7, 2, id="at the head"),
        pytest.param(Start(8), 8, 0, id="above the head: another incarnation"),
        pytest.param(Start(1, tail=True), 7, 2, id="tail ignores from_seq"),
        pytest.param(Start(8, epoch=1), 8, 1, id="the epoch of the client counts"),
    ],
)
def test_a_cursor_belongs_to_the_topic_unless_it_cannot(
    start: Start, from_seq: int, epoch: int
) -> None:
    assert begin_at(start, HEAD) == Begun(from_seq, epoch, HEAD)


def test_a_client_is_told_where_it_begins_and_where_the_topic_stands() -> None:
    assert begin_at(Start(5), HEAD).members() == {
        "from_seq": 5,
        "head_seq": 7,
        "earliest_seq": 3,
        "epoch": 2,
    }
