"""Caps and age, one sentence each; the long runs are in test_topic_machine.py."""

from __future__ import annotations

import pytest

from tests.engine.shard_support import Desk, advance, expire, fill
from topics.engine.changes.append import Append
from topics.errors import TopicFull


def test_bytes_are_capped_to_the_byte(desk: Desk) -> None:
    fill(desk, 1, 1, 1)
    size = desk.engine.topic("a").bytes // 3
    for cap, left in ((3 * size, 3), (3 * size - 1, 2), (size, 1), (size - 1, 0)):
        desk.put("a", cap_bytes=cap)
        desk.commit()
        assert (desk.engine.topic("a").count, desk.engine.topic("a").bytes) == (left, left * size)


@pytest.mark.parametrize(
    ("before", "count", "fits"),
    [(0, 3, True), (0, 4, False), (2, 1, True), (2, 2, False), (3, 1, False)],
)
def test_a_topic_that_rejects_takes_a_write_whole_or_not_at_all(
    desk: Desk, before: int, count: int, fits: bool
) -> None:
    desk.put("a", cap_records=3, discard="reject")
    if before:
        desk.append("a", *range(before))  # on its way counts too
    if fits:
        assert isinstance(desk.append("a", *range(count)), Append)
    else:
        with pytest.raises(TopicFull) as refused:
            desk.append("a", *range(count))
        assert refused.value.detail["topic"] == "a"
        assert desk.engine.topic("a").next_seq == before + 1
    desk.commit()
    assert desk.engine.topic("a").earliest_seq == 1


def test_seqs_that_are_to_burn_take_no_room(desk: Desk) -> None:
    desk.put("a", cap_records=2, discard="reject")
    desk.commit()
    desk.pending.append(advance(desk.engine.topic("a"), 5, desk.now))
    assert isinstance(desk.append("a", 1, 2), Append)


def test_the_log_is_told_of_a_cut_for_records_that_it_does_not_hold(desk: Desk) -> None:
    fill(desk, 1, 1, cap_records=2)
    desk.put("a", durability="ephemeral")
    desk.commit()
    for told in (True, True, False):  # the third cut takes what the log has not held
        desk.append("a", 1)
        desk.commit()
        assert (expire(desk) is not None) is told
