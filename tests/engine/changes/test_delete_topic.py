"""Deletes of topics."""

from __future__ import annotations

import pytest

from tests.engine.shard_support import Desk, fill
from topics.errors import TopicNotEmpty


def test_if_empty_means_no_live_record(desk: Desk) -> None:
    fill(desk, 2)
    with pytest.raises(TopicNotEmpty):
        desk.delete("a", if_empty=True)
    desk.delete_records("a", before_seq=3)
    desk.commit()
    assert desk.delete("a", if_empty=True) is not None


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
