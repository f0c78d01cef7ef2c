"""Transfer: one redrive in progress, with the records that it has chosen, moved and skipped.

selected --> chosen: hidden from clients, in flight --> moved
   |           '--> skipped: put back
   |--> skipped: no target, or one that is forbidden or has refused another record
   |--> passed over: leased, or already being moved
   '--> counted for the result: not reached in time

Records are searched and counted slice by slice. The caller lets other work run between two slices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import trio

from topics.actors.rpc.session import InboundMessage
from topics.actors.shard.deadlines import Deadline
from topics.actors.shard.queues.copies import COPIES_BYTES, Copy
from topics.engine import selection
from topics.engine.changes.delete_records import SLICE_RECORDS
from topics.engine.moved_keys import WINDOW_RECORDS, copy_key
from topics.engine.now import Now
from topics.engine.queue import claims
from topics.engine.shard import ShardEngine
from topics.engine.topic import Topic
from topics.errors import Forbidden, Internal, TopicsError
from topics.formats.api.queue_answers import append_request, record_parts, source_of, unstamped
from topics.formats.api.queue_bodies import Redrive
from topics.formats.names import covered
from topics.formats.wire.calls import NoResult, RedriveParams

RedriveCall: TypeAlias = InboundMessage[RedriveParams, NoResult]

READ_RECORDS: Final = 16  # read at once, before their bytes are counted
# A redrive ends when it has come by so many records that cannot be moved.
SKIPPED_MIN: Final = 10_000
SKIPPED_PER_RECORD: Final = 1_000  # of its limit
NO_SOURCE: Final = "no_source"


class Skip(NamedTuple):
    """A record that is not moved, and the code that says why."""

    seq: int
    code: str


class Transfer:
    """One redrive. ``in_flight``: the seqs of chosen records that are not yet moved or put back."""

    def __init__(
        self, request: RedriveCall, topic: Topic, asked: Redrive, engine: ShardEngine
    ) -> None:
        self.request, self.topic, self.asked = request, topic, asked
        self.deadline: Deadline | None = None
        self.is_answered = self.is_stopped = False
        self.has_put_back = False  # and nobody was told that they are claimable again
        self.moved = self.skipped = 0
        self.reason: Skip | None = None  # the first record that was skipped
        self.in_flight: set[int] = set()
        self._settled = trio.Event()  # set when no record is in flight any longer
        self._counted = 0  # remaining records among the counted ones
        self._engine = engine
        self._selection = selection.select(topic, engine.store, asked.before_seq, asked.match)
        self._passed_over: list[int] = []
        self._refused: dict[str, str] = {}  # targets that take no more, each with the code

    @property
    def is_over(self) -> bool:
        """No more is to be chosen."""
        return (
            self.is_answered
            or self.is_stopped
            or self.topic.deleted
            or self.request.session.closed
            or self.moved >= self.asked.limit
            or self.skipped + len(self._passed_over)
            >= max(SKIPPED_MIN, SKIPPED_PER_RECORD * self.asked.limit)
        )

    @property
    def remaining(self) -> int:
        """The number of records that still match, without skipped ones.

        The number is complete when all records are counted.
        """
        if self.topic.deleted:
            return 0
        in_flight = sorted(self.in_flight)
        return self._counted + selection.count_live(self.topic, self._engine.store, in_flight)

    async def wait_settled(self) -> None:
        """Wait until no record is in flight."""
        while self.in_flight:
            self._settled = trio.Event()
            await self._settled.wait()

    # Choosing

    def search(self) -> None:
        """Find the next slice of records, for `choose`."""
        if not self.topic.deleted:
            self._selection.search()

    def choose(self, now: Now) -> dict[str, list[Copy]]:
        """Choose the next window of records, and return copies for each target in order of seqs.

        The records are in flight afterwards, and hidden from clients. No other records may be in
        flight. An empty window does not mean that all records are chosen.
        """
        assert not self.in_flight, "one window is in flight at a time"
        found: dict[str, list[Copy]] = {}
        scanned, size, room = 0, 0, self.asked.limit - self.moved
        while scanned < WINDOW_RECORDS and size < COPIES_BYTES and len(self.in_flight) < room:
            seqs = self._selection.take(min(READ_RECORDS, room - len(self.in_flight)))
            if not seqs:
                break
            scanned += len(seqs)
            free = claims.set_aside(self.topic, seqs, now)
            self._passed_over += sorted(set(seqs).difference(free))
            self.in_flight.update(free)
            records = dict(claims.records_of(self.topic, self._engine.store, free))
            for seq in free:
                self._choose_one(seq, records.get(seq), found, now)
            size += sum(map(len, records.values()))
        self.is_stopped = self.is_stopped or self._selection.is_exhausted
        return found

    # Counting, when no further records are chosen

    def count_slice(self, now: Now) -> bool:
        """Count a slice of the remaining records. Return False when all are counted."""
        topic, store = self.topic, self._engine.store
        if topic.deleted:
            return False
        if self._passed_over:
            seqs, self._passed_over = (
                self._passed_over[:SLICE_RECORDS],
                self._passed_over[SLICE_RECORDS:],
            )
            self._counted += selection.count_live(topic, store, seqs)
        elif self._selection.is_exhausted:
            return False
        elif self.asked.to not in self._refused:
            self._counted += self._selection.count_slice()
        elif topic.jobs is None:  # the only target refuses further records
            self.skipped += self._selection.count_slice()
        else:
            self._selection.search()
            seqs = self._selection.take()
            busy = claims.count_busy(topic, seqs, now)
            self._counted += busy
            self.skipped += len(seqs) - busy
        return True

    def _choose_one(
        self, seq: int, record: bytes | None, found: dict[str, list[Copy]], now: Now
    ) -> None:
        parts = None if record is None else record_parts(record)
        if parts is None:
            self.skip(seq, Internal.code, now)  # it cannot be read
            return
        target = source_of(parts.meta) if self.asked.to is None else self.asked.to
        code = self._objection(target)
        if code is not None or target is None:
            self.skip(seq, code or NO_SOURCE, now)
            return
        parts = parts._replace(meta=unstamped(parts.meta))
        key = copy_key("redrive", self.topic.name, self.topic.epoch, seq)
        copy = Copy(seq, append_request(parts, key, create=False))
        found.setdefault(target, []).append(copy)

    def _objection(self, target: str | None) -> str | None:
        """The code that says why nothing is moved to ``target``."""
        if target is None or target == self.topic.name:
            return NO_SOURCE
        if not covered(target, self.request.params.prefixes):
            return Forbidden.code
        return self._refused.get(target)

    # What becomes of a record that was chosen

    def skip(self, seq: int, code: str, now: Now) -> None:
        """Put it back: it stays, for the reason that ``code`` gives."""
        claims.put_back(self.topic, (seq,), now)
        self.has_put_back = True
        self.skipped += 1
        skip = Skip(seq, code)
        self.reason = skip if self.reason is None else min(self.reason, skip)
        self._leave((seq,))

    def refuse(self, target: str, refused: Mapping[int, TopicsError], now: Now) -> None:
        """The target has refused these, and is not asked again."""
        for seq, failure in refused.items():
            self._refused.setdefault(target, failure.code)
            self.skip(seq, failure.code, now)
        if self.asked.to in self._refused:
            self.is_stopped = True

    def finish(self, seqs: Sequence[int]) -> None:
        """These are moved."""
        self.moved += len(seqs)
        self._leave(seqs)

    def put_back_all(self, now: Now) -> None:
        """All that were chosen stay: none of them was sent."""
        claims.put_back(self.topic, self.in_flight, now)
        self.has_put_back = True
        self._leave(tuple(self.in_flight))

    def _leave(self, seqs: Sequence[int]) -> None:
        self.in_flight.difference_update(seqs)
        if not self.in_flight:
            self._settled.set()
