"""Replay of frames by their kind."""

from __future__ import annotations

import pytest

from topics.engine.changes.by_kind import REPLAYS, replay_frame
from topics.engine.replay import Misfit, Replay
from topics.engine.topic_table import TopicTable
from topics.formats.disk.frames import FrameHeader, FrameKind


def header_of(kind: int) -> FrameHeader:
    return FrameHeader(b"", 0, 0, 0, 1, 1, 0, 0, 0, 0, kind, 0, 0)


def test_every_kind_that_is_written_is_replayed() -> None:
    """Those with records are replayed by `LogReplay`, which knows their log file."""
    with_records = {FrameKind.APPEND, FrameKind.FORWARD, FrameKind.ROUTER, FrameKind.PAYLOAD}
    assert {*REPLAYS} == {*FrameKind} - with_records


def test_a_frame_of_another_kind_does_not_fit() -> None:
    with pytest.raises(Misfit, match="does not know the kind"):
        replay_frame(Replay(TopicTable()), header_of(250), b"", False)


@pytest.mark.parametrize(
    "kind",
    [
        FrameKind.TOPIC_DELETED,
        FrameKind.DELETE,
        FrameKind.LEASE,
        FrameKind.FLOOR,
        FrameKind.SEQS_RESERVED,
    ],
)
def test_a_frame_about_no_topic_fits_only_below_a_checkpoint(kind: FrameKind) -> None:
    replay = Replay(TopicTable())
    replay_frame(replay, header_of(kind), b"", True)
    with pytest.raises(Misfit, match="the topic is not known"):
        replay_frame(replay, header_of(kind), b"", False)
