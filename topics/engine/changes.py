"""What a decision comes to: a change of one topic, and the frames that tell the log of it."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import cbor2
import msgspec

from topics.engine.topic import Topic
from topics.formats.api.requests import TagMatch
from topics.formats.api.topic_config import TopicConfig
from topics.formats.buffers import Buffer
from topics.formats.disk.records import EncodedRecords
from topics.formats.disk.wal import Frame, FrameKind
from topics.formats.ranges import SeqRun


class Now(NamedTuple):
    """Both clocks in milliseconds: ``ts`` is what people read, ``ms`` never steps and measures
    durations.
    """

    ts: int
    ms: int


class Change:
    """A decided change of one topic. ``sync``: it may be answered only after a sync of its frames."""

    __slots__ = ("frames", "sync", "topic")

    def __init__(self, topic: Topic, frames: list[Frame], sync: bool) -> None:
        self.topic, self.frames, self.sync = topic, frames, sync


class Append(Change):
    """Records on their way. ``resident`` holds them when the class keeps them in memory only.

    ``ceiling``: up to which seq the frames reserve, 0 when they do not; ``ts_ceiling`` the same for
    `$ts`. ``tags``: ``(index, tag)`` of the records that have one.
    """

    __slots__ = (
        "ceiling",
        "count",
        "created",
        "first_seq",
        "followers",
        "key",
        "resident",
        "size",
        "tags",
        "ts",
        "ts_ceiling",
    )

    def __init__(
        self, topic: Topic, first_seq: int, count: int, size: int, ts: int, key: str | None
    ) -> None:
        super().__init__(topic, [], False)
        self.first_seq, self.count, self.size, self.ts, self.key = first_seq, count, size, ts, key
        self.created = False
        self.ceiling = self.ts_ceiling = 0
        self.resident: EncodedRecords | None = None
        self.tags: Sequence[tuple[int, bytes]] = ()
        self.followers: list[
            Any
        ] = []  # retries of the same key that came meanwhile; the caller answers them

    @property
    def last_seq(self) -> int:
        """Seq of the last record."""
        return self.first_seq + self.count - 1


class InFlightDuplicate(NamedTuple):
    """A retry whose first attempt, ``leader``, is still on its way: it gets that one's answer."""

    leader: Append


class Put(Change):
    """A topic made or configured; ``before`` is the config to return to."""

    __slots__ = ("before", "config", "created", "ts_ceiling")

    def __init__(self, topic: Topic, frames: list[Frame], before: TopicConfig | None) -> None:
        super().__init__(topic, frames, True)
        self.before, self.created, self.config = before, before is None, topic.config
        self.ts_ceiling = 0


class Delete(Change):
    """A topic that is going."""

    __slots__ = ()


class DeleteRecords(Change):
    """Records that are going: those in ``runs``, or all below ``bound`` when that is None.
    ``deleted`` says how many, at last.
    """

    __slots__ = ("bound", "deleted", "match", "runs")

    def __init__(
        self, topic: Topic, bound: int, runs: Sequence[SeqRun] | None, match: TagMatch | None
    ) -> None:
        super().__init__(topic, [], False)
        self.bound, self.runs, self.match = bound, runs, match
        self.deleted = 0


class FloorMoved(Change):
    """Records have gone of themselves, and the log is told of it. Nobody waits for that."""

    __slots__ = ()


class Reservation(Change):
    """Seqs promised to the disk ahead of use."""

    __slots__ = ("ceiling",)

    def __init__(self, topic: Topic, ceiling: int) -> None:
        super().__init__(topic, [reserving_frame(topic, ceiling)], True)
        self.ceiling = ceiling


# Frames


def reserving_frame(topic: Topic, ceiling: int) -> Frame:
    """No seq up to ``ceiling`` is given twice."""
    return Frame(FrameKind.SEQS_RESERVED, topic.id, ceiling)


def ts_reserving_frame(now: Now) -> Frame:
    """No `$ts` above a time that is a little ahead of now has been used."""
    return Frame(FrameKind.TS_RESERVED, ts_ms=now.ts)


def topic_frame(topic: Topic, now: Now) -> Frame:
    """All that the log must know of a topic besides its records."""
    body = cbor2.dumps(
        {
            "name": topic.name, "epoch": topic.epoch, "config": msgspec.structs.asdict(topic.config), "head": topic.next_seq - 1,
            "last_ts": topic.last_ts, "start": topic.start_seq, "floors": floors(topic),
            "losses": topic.losses_at_restart(topic.next_seq - 1), "damaged": topic.damaged,
            "keys_from": topic.keys_from_seq,
        }
    )  # fmt: skip
    return Frame(
        FrameKind.TOPIC, topic.id, topic.reserved_seq, now.ts, ext_len=len(body), parts=(body,)
    )


def floor_frame(topic: Topic) -> Frame:
    """Where the topic begins now, and why."""
    body = cbor2.dumps(floors(topic))
    return Frame(FrameKind.FLOOR, topic.id, topic.start_seq, ext_len=len(body), parts=(body,))


def delete_frame(change: DeleteRecords, now: Now) -> Frame:
    """Which records go."""
    if change.runs is None:
        return Frame(FrameKind.DELETE, change.topic.id, change.bound, now.ts)
    body = struct.pack(f"<{2 * len(change.runs)}Q", *chain.from_iterable(change.runs))
    return Frame(FrameKind.DELETE, change.topic.id, 0, now.ts, len(change.runs), parts=(body,))


def runs_of_frame(body: Buffer) -> Iterable[SeqRun]:
    """The runs in the body of a DELETE frame."""
    return map(SeqRun._make, struct.iter_unpack("<QQ", body))


def floors(topic: Topic) -> tuple[int, int, int, int]:
    """Of cap, TTL, loss and damage."""
    return topic.cap_floor, topic.ttl_floor, topic.loss_floor, topic.damage_floor
