"""Transfer: one redrive under way, with what it has chosen, moved and skipped.

selected --> chosen: set aside, on their way --> moved
   |           '--> skipped: put back
   |--> skipped: no target, or one that is forbidden or has refused another record
   '--> passed over: leased, or on their way already
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import trio

from topics.actors.rpc.session import InboundMessage
from topics.actors.shard.deadlines import Deadline
from topics.actors.shard.queues.copies import COPIES_BYTES, Copy
from topics.engine import selection
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
    """One redrive. ``under_way``: seqs of the records that are on their way; ``settled``: there are
    none.
    """

    def __init__(
        self, request: RedriveCall, topic: Topic, asked: Redrive, engine: ShardEngine
    ) -> None:
        self.request, self.topic, self.asked = request, topic, asked
        self.deadline: Deadline | None = None
        self.is_answered = self.is_stopped = False
        self.has_put_back = False  # and nobody was told that they are claimable again
        self.moved = self.skipped = 0
        self.reason: Skip | None = None  # the first record that was skipped
        self.under_way: set[int] = set()
        self.settled = trio.Event()
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
        """How many records still match, without those that were skipped."""
        if self.topic.deleted:
            return 0
        others = sorted((*self._passed_over, *self.under_way))
        return self._selection.count_left() + selection.count_live(
            self.topic, self._engine.store, others
        )

    # Choosing

    def choose(self, now: Now) -> dict[str, list[Copy]]:
        """Set the next window of records aside: copies for each target, in the order of seqs.

        There may be more to choose even if this window has none.
        """
        found: dict[str, list[Copy]] = {}
        scanned, size, room = 0, 0, self.asked.limit - self.moved
        while scanned < WINDOW_RECORDS and size < COPIES_BYTES and len(self.under_way) < room:
            seqs = self._take(min(READ_RECORDS, room - len(self.under_way)))
            if not seqs:
                self.is_stopped = True
                break
            scanned += len(seqs)
            free = claims.set_aside(self.topic, seqs)
            self._passed_over += sorted(set(seqs).difference(free))
            self.under_way.update(free)
            records = dict(claims.records_of(self.topic, self._engine.store, free))
            for seq in free:
                self._choose_one(seq, records.get(seq), found, now)
            size += sum(map(len, records.values()))
        return found

    def _take(self, count: int) -> list[int]:
        if (self.asked.to or "") not in self._refused:
            return self._selection.take(count)
        # The only target takes no more.
        busy = self._selection.left_of(claims.busy(self.topic))
        self._passed_over += busy
        self.skipped += self._selection.drop() - selection.count_live(
            self.topic, self._engine.store, busy
        )
        return []

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

    def finish(self, seqs: Sequence[int]) -> None:
        """These are moved."""
        self.moved += len(seqs)
        self._leave(seqs)

    def put_back_all(self, now: Now) -> None:
        """All that were chosen stay: none of them was sent."""
        claims.put_back(self.topic, self.under_way, now)
        self.has_put_back = True
        self._leave(tuple(self.under_way))

    def _leave(self, seqs: Sequence[int]) -> None:
        self.under_way.difference_update(seqs)
        if not self.under_way:
            self.settled.set()
