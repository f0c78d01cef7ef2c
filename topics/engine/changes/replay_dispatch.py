"""Replay of frames: dispatches a frame to the module of its kind."""

from __future__ import annotations

from collections.abc import Callable

from topics.engine.changes import (
    delete_records,
    delete_topic,
    floor,
    put_topic,
    reservation,
    router_changes,
    start,
)
from topics.engine.queue import queue_replay
from topics.engine.replay import Replay, StateMismatch
from topics.formats.buffers import Buffer
from topics.formats.disk.frames import FrameHeader, FrameKind

REPLAYS: dict[int, Callable[[Replay, FrameHeader, Buffer, bool], None]] = {
    FrameKind.TOPIC: put_topic.replay,
    FrameKind.TOPIC_DELETED: delete_topic.replay,
    FrameKind.DELETE: delete_records.replay,
    FrameKind.LEASE: queue_replay.replay,
    FrameKind.FLOOR: floor.replay,
    FrameKind.SEQS_RESERVED: reservation.replay_seqs,
    FrameKind.TS_RESERVED: reservation.replay_ts,
    FrameKind.START: start.replay,
    FrameKind.ROUTER_SET: router_changes.replay_set,
    FrameKind.ROUTERS_GONE: router_changes.replay_removed,
    FrameKind.LOST: start.replay_lost,
}


def replay_frame(replay: Replay, header: FrameHeader, body: Buffer, checkpointed: bool) -> None:
    """Replay a frame of any kind except APPEND. Raise `StateMismatch` if it does not fit the
    current state.

    The caller passes APPEND frames directly to `append.replay`, because this function needs more
    arguments and APPEND frames are by far the most frequent.
    """
    play = REPLAYS.get(header.kind)
    if play is None:
        raise StateMismatch("the kind is unknown to this program")
    play(replay, header, body, checkpointed)
