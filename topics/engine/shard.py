"""Shard engine: the rules of one shard. It is pure: time comes in, and what must happen comes out.

    decide  ->  Change  ->  (the caller makes its frames durable)  ->  commit
                                                                  '->  undo, when that failed

Each kind of change has a module in ``changes/``; this class is how the shard's services reach them.
Changes of a topic are committed in the order of their decisions. When the log fails, every change
that is not committed is undone, the last one first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from topics.engine import retention
from topics.engine.changes import (
    append,
    delete_records,
    delete_topic,
    finish_jobs,
    floor,
    forward,
    lease_jobs,
    put_topic,
    reservation,
    routers,
)
from topics.engine.changes.append import Append, InFlightDuplicate
from topics.engine.changes.change import Change
from topics.engine.changes.delete_records import DeleteRecords, Rest
from topics.engine.changes.delete_topic import DeleteTopic
from topics.engine.changes.finish_jobs import FinishJobs
from topics.engine.changes.floor import FloorMoved
from topics.engine.changes.forward import Forwarded, Taker
from topics.engine.changes.lease_jobs import LeaseChange
from topics.engine.changes.put_topic import PutTopic
from topics.engine.changes.reservation import Reservation
from topics.engine.changes.routers import PutRouter, RemoveRouters
from topics.engine.dedupe import DedupeEntry
from topics.engine.locators import Locator
from topics.engine.now import Now
from topics.engine.queue import dead, lease_list
from topics.engine.queue.claims import Ask, Taken, jobs_of, records_of
from topics.engine.queue.lease_list import LeaseView
from topics.engine.queue.leases import Holder
from topics.engine.quota import ByteQuota, SharedCap
from topics.engine.routing.graph import Router, RouterGraph
from topics.engine.selection import Selection, count_live
from topics.engine.store import DeleteFlags, Store
from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.errors import NotAQueue, TopicsError
from topics.formats.api.append_body import AppendBody
from topics.formats.api.delete_body import TagMatch
from topics.formats.api.limits import U64_MAX
from topics.formats.api.topic_config import TopicConfigPatch
from topics.formats.disk.copies import Copier, ForwardBody
from topics.formats.disk.rendering import Rendering

SWEEP_TOPICS = 1024  # half a millisecond
SWEEP_KEYS = 1 << 17  # some milliseconds


class ShardEngine:
    """Decisions about the topics of one shard; ``table`` holds the topics."""

    def __init__(self, shard: int = 0, shards: int = 1) -> None:
        self.table = TopicTable(shard, shards)
        self.topics, self.by_id = self.table.by_name, self.table.by_id
        self._unswept: list[int] = []

    # The table

    @property
    def store(self) -> Store:
        """Finds the records of the topics."""
        return self.table.store

    @store.setter
    def store(self, store: Store) -> None:
        self.table.store = store

    @property
    def delete_flags(self) -> DeleteFlags:
        """Flags of deleted records that are in no segment, for the store to keep."""
        return self.table.delete_flags

    def topic(self, name: str) -> Topic:
        """The topic of that name. Raises `TopicNotFound`."""
        return self.table.topic(name)

    def names(self, prefix: str, after: str | None, prefixes: list[str] | None) -> Iterator[str]:
        """Names of topics in order, from behind ``after`` on (§1.3)."""
        return self.table.names(prefix, after, prefixes)

    # Decisions

    def append(
        self, name: str, body: AppendBody, now: Now, prefixes: list[str] | None = None
    ) -> Append | InFlightDuplicate | DedupeEntry:
        """Give the records their seqs (§2), unless their key is known.

        Raises `TopicFull` when they do not fit and the topic rejects, `TopicNotFound` when it is
        not to be made.
        """
        return append.decide(self.table, name, body, now, prefixes)

    def append_streamed(
        self,
        topic: Topic,
        body: AppendBody,
        rendering: Rendering,
        size: int,
        now: Now,
        due: Sequence[int] = (),
    ) -> Append:
        """Give seqs to a write that is rendered run by run, of ``size`` bytes. The topic has no
        other change under way. ``due``: as `append.due_times` gives it.

        Its frame holds no records: they must be durable in a blob before it is written.
        """
        return append.decide_streamed(self.table, topic, body, rendering, size, now, due)

    def known(self, topic: Topic, key: str, now: Now) -> InFlightDuplicate | DedupeEntry | None:
        """The write that an idempotency key stands for, if it has been used (§0.8)."""
        return append.find_duplicate(topic, key, now)

    def reserve(self, topic: Topic) -> Reservation | None:
        """The reservation that is due after an append, None for most. No other change waits for
        it.
        """
        return reservation.decide(topic)

    def create(
        self,
        name: str,
        body: AppendBody,
        now: Now,
        prefixes: list[str] | None = None,
        size: int = 0,
    ) -> PutTopic:
        """Make the topic that a streamed append asks for, before its records. ``size``: their
        bytes, where it matters; room for them is kept until `append_streamed` or `let_go`.
        """
        topic = put_topic.new_topic_for(self.table, name, body, now, prefixes)
        append.check_topic_room(topic, len(body.records), size)
        append.due_times(topic, body, now)
        change = put_topic.make(self.table, topic, now)
        if self.table.byte_quota is not None:
            try:
                self.table.byte_quota.hold(topic, size)
            except TopicsError:
                self.undo(change)
                raise
        return change

    def let_go(self, topic: Topic) -> None:
        """The append for which `create` has made the topic is decided, or will not be."""
        if self.table.byte_quota is not None:
            self.table.byte_quota.let_go(topic)

    def put(
        self,
        name: str,
        patch: TopicConfigPatch,
        now: Now,
        prefixes: list[str] | None = None,
        *,
        has_place: bool = False,
    ) -> PutTopic:
        """Make or configure a topic (§1.1). Without a difference it has no frame, but still waits
        for earlier ones. ``has_place``: another shard keeps a place for a new one.
        """
        return put_topic.decide(self.table, name, patch, now, prefixes, has_place=has_place)

    def delete(self, name: str, if_empty: bool, now: Now) -> DeleteTopic | None:
        """Remove a topic with everything in it (§1.4); None when there is none. Raises
        `TopicNotEmpty`.
        """
        return delete_topic.decide(self.table, name, if_empty, now)

    def check_deletable(self, name: str, if_empty: bool) -> None:
        """Raises `TopicNotEmpty` when `delete` would."""
        delete_topic.check(self.table, name, if_empty)

    def delete_asked(self, name: str, before_seq: int | None, match: TagMatch | None) -> Rest:
        """What a delete of now is about: the records below ``before_seq`` that match, of those that
        are there (§5). Raises `TopicNotFound`.
        """
        return delete_records.asked(self.table, name, before_seq, match)

    def delete_more(self, rest: Rest, now: Now) -> DeleteRecords:
        """Delete the first slice of ``rest``; ``rest`` of the change is what is left then.
        The topic still stands, and the slice before this one is committed.
        """
        return delete_records.decide(self.table, rest, now)

    def delete_records(
        self, name: str, before_seq: int | None, match: TagMatch | None, now: Now
    ) -> DeleteRecords:
        """The first slice of a delete, which is all of it when it takes few records."""
        return self.delete_more(self.delete_asked(name, before_seq, match), now)

    def delete_must_wait(self, name: str) -> bool:
        """Whether a delete of matching records is decided only when its topic has no other change
        under way.

        A replay lets what this delete names live until it comes to it. Had another delete taken
        some of that before, caps on the way would count it and evict more than they did at first.
        """
        return delete_records.must_wait(self.table, name)

    def expire(self, topic: Topic, now: Now) -> FloorMoved | None:
        """Remove what is too old, at once, before anything is answered or decided. The change tells
        the log, if it must know.
        """
        try:
            return floor.decide(self.table, topic, now)
        finally:
            self.recharge(topic)

    def next_expiry(self, topic: Topic) -> int | None:
        """When `expire` has something to remove next (wall ms); None: never, as the topic is."""
        return retention.next_expiry(topic, self.store)

    # Routers

    def forward(
        self, takers: Sequence[Taker], copier: Copier, body: ForwardBody, ts: int, now: Now
    ) -> Forwarded:
        """Append the copies of ``copier`` to the dests of ``takers``, which have room for them and
        whose `forward.copy_ts` is ``ts`` (§6). ``body``: of the frame, rows omitted.
        """
        return forward.forward(self.table, takers, copier, body, ts, now)

    def advance(
        self, takers: Sequence[Taker], cursor: int, trimmed: int, hop: int, now: Now
    ) -> Forwarded:
        """Move routers on to ``cursor`` without copies. ``trimmed``: how many seqs the source has
        lost; ``hop``: of the seqs that are burnt for them.
        """
        return forward.advance(takers, cursor, trimmed, hop, now)

    # Queues

    def queue(self, name: str) -> Topic:
        """The queue of that name. Raises `TopicNotFound` and `NotAQueue`."""
        topic = self.table.topic(name)
        if topic.jobs is None:
            raise NotAQueue(name)
        return topic

    def poller(self, topic: Topic, node: str) -> Holder:
        """Who holds what ``node`` claims from the queue by polling."""
        return jobs_of(topic).leases.poller(node)

    def claim(
        self,
        topic: Topic,
        asks: Sequence[Ask],
        now: Now,
        *,
        evenly: bool,
        max_bytes: int = U64_MAX,
    ) -> list[LeaseChange]:
        """Lease jobs to all askers in one pass, free ones first (§10.2); a change for each.

        ``evenly``: dealt round-robin, to a cohort. Otherwise the first asker takes what it may. The
        records of all of them have about ``max_bytes`` at most.
        """
        return lease_jobs.claim(self.table, topic, asks, now, evenly=evenly, max_bytes=max_bytes)

    def ack(
        self,
        topic: Topic,
        node: str,
        seqs: Sequence[int],
        tokens: Sequence[str] | None,
        now: Now,
    ) -> FinishJobs:
        """Delete the jobs that ``node`` holds, for good (§10.4). ``tokens``: of their leases, one
        for each seq, if they are to be checked.
        """
        return finish_jobs.ack(topic, finish_jobs.begin_ack(topic, node, seqs, tokens, now)[0], now)

    def nack(
        self,
        topic: Topic,
        node: str,
        seqs: Sequence[int],
        tokens: Sequence[str] | None,
        delay_ms: int,
        now: Now,
    ) -> LeaseChange:
        """Give back the jobs that ``node`` holds; they are claimable after ``delay_ms`` (§10.5)."""
        return lease_jobs.nack(topic, node, seqs, tokens, delay_ms, now)

    def extend(
        self,
        topic: Topic,
        node: str,
        seqs: Sequence[int],
        tokens: Sequence[str] | None,
        lease_ms: int,
        now: Now,
    ) -> LeaseChange:
        """The leases that ``node`` holds end ``lease_ms`` from now (§10.6)."""
        return lease_jobs.extend(topic, node, seqs, tokens, lease_ms, now)

    def release(self, topic: Topic, holder: Holder, now: Now) -> LeaseChange:
        """End all leases of a stream (§10.8)."""
        return lease_jobs.release(topic, holder, now)

    def unclaim(self, topic: Topic, jobs: Iterable[tuple[int, int]], now: Now) -> LeaseChange:
        """A claim has reached nobody: end these leases, (seq, number), as if they had not been
        given, unless others have taken their place.
        """
        return lease_jobs.unclaim(topic, jobs, now)

    def dead(self, topic: Topic, max_jobs: int, max_bytes: int, now: Now) -> list[Taken]:
        """The exhausted jobs that are to be moved next, and their rendered records: the rest of the
        batch that is dying, else those that `dying` begins with. At most ``max_jobs``, and no more
        once these have ``max_bytes``.

        Jobs whose record cannot be read are hidden for a while.
        """
        return dead.dead(topic, self.store, max_jobs, max_bytes, now)

    def dying(self, topic: Topic, max_jobs: int, now: Now) -> LeaseChange:
        """Begin to move exhausted jobs to the dead-letter topic (§10.6), or go on with the batch
        that is dying. When it is committed, append them there, then `bury` or `keep_dead`.
        """
        return lease_jobs.dying(topic, max_jobs, now)

    def bury(self, topic: Topic, seqs: Sequence[int], now: Now) -> FinishJobs:
        """The dead-letter topic has these jobs: delete them."""
        return finish_jobs.bury(topic, seqs, now)

    def keep_dead(self, topic: Topic, seqs: Iterable[int]) -> None:
        """The dead-letter topic has refused these jobs: they stay."""
        lease_jobs.keep_dead(topic, seqs)

    def revive_dead(self, topic: Topic) -> None:
        """The config has changed: the next pass looks at exhausted jobs again."""
        jobs_of(topic).revive_dead()

    def set_aside(self, topic: Topic, seqs: Iterable[int]) -> list[int]:
        """Those of these records that nobody holds, of a queue or a log. Nobody may claim them
        until they are put back or removed.
        """
        jobs = topic.jobs
        return [seq for seq in seqs if jobs is None or jobs.set_aside(seq)]

    def busy(self, topic: Topic) -> list[int]:
        """The records that `set_aside` leaves out, rising."""
        return topic.jobs.busy() if topic.jobs is not None else []

    def put_back(self, topic: Topic, seqs: Iterable[int], now: Now) -> None:
        """These records were set aside, and stay."""
        if topic.jobs is not None:
            for seq in seqs:
                topic.jobs.put_back(seq, now)

    def remove(self, topic: Topic, seqs: Sequence[int], now: Now) -> FinishJobs:
        """These records were set aside, and go."""
        return finish_jobs.remove(topic, seqs, now)

    def records_of(self, topic: Topic, seqs: Sequence[int]) -> list[tuple[int, bytes]]:
        """The rendered records of these seqs, of those that live and can be read."""
        return records_of(topic, self.store, seqs)

    def select(self, topic: Topic, before_seq: int | None, match: TagMatch | None) -> Selection:
        """The records of now that are below ``before_seq`` and match, each if given."""
        bound = topic.head_seq + 1 if before_seq is None else before_seq
        return Selection(topic, self.store, bound, match)

    def count_live(self, topic: Topic, seqs: Sequence[int]) -> int:
        """How many of these seqs, rising, are those of live records."""
        return count_live(topic, self.store, seqs)

    def leases(
        self, topic: Topic, after: int, limit: int, node: str | None, now: Now
    ) -> list[LeaseView]:
        """Up to ``limit`` leases of jobs above ``after``, of ``node`` or of all, by seq."""
        return lease_list.leases(topic, after, limit, node, now)

    # Routers, in the shard that owns them

    @property
    def routers(self) -> RouterGraph:
        """All routers of the server, as committed."""
        return self.table.routers

    def put_router(self, router: Router, now: Now) -> PutRouter:
        """Make or configure a router (§6.1). No other change of routers is under way."""
        return routers.put(self.table, router, now)

    def remove_routers(self, router_ids: Sequence[int], now: Now) -> RemoveRouters:
        """Remove those of these routers that are there. No other change of routers is under way."""
        return routers.remove(self.table, router_ids, now)

    # Idempotency keys

    def sweep_keys(self, now: Now) -> list[Topic]:
        """Drop keys that are over, of the next `SWEEP_TOPICS` topics and not many more than
        `SWEEP_KEYS`; the topics that have lost some. Call by call it comes to all topics.
        """
        swept, left = list[Topic](), SWEEP_KEYS
        if not self._unswept:
            self._unswept = [*self.by_id]
        for _ in range(SWEEP_TOPICS):
            if not self._unswept or left <= 0:
                break
            topic = self.by_id.get(self._unswept[-1])
            count = topic.dedupe.expire(now.ms, topic.config.idempotency_window_ms) if topic else 0
            if not count or topic is None:
                self._unswept.pop()
                continue
            swept.append(topic)
            left -= count
        return swept

    # What became of them

    def commit(self, change: Change, locator: Locator, now: Now, generation: int = 0) -> None:
        """Make a change visible: its frames are as durable as the class promises.

        ``locator``: finds the records of an append again. ``generation``: LSN at which their log
        file begins; their tags are dropped when that is sealed.
        """
        table, written = self.table, 0
        try:
            if isinstance(change, Append):
                written = change.size
                change.commit_records(table, locator, now, generation)
            else:
                change.commit(table)
        finally:
            if table.byte_quota is not None:
                table.byte_quota.recharge(change.topic, written)

    def undo(self, change: Change) -> None:
        """Take a change back, as if it had never been asked: its frames could not be written. The
        last one first, of those that are under way.
        """
        change.undo(self.table)
        self.recharge(change.topic)

    # Caps of the whole server

    def limit(self, topic_cap: SharedCap | None, byte_quota: ByteQuota | None) -> None:
        """From now on the topics share these caps with other shards (§11). What is there is held
        already: `count_held` tells how much.
        """
        self.table.topic_cap, self.table.byte_quota = topic_cap, byte_quota

    def count_held(self) -> tuple[int, int]:
        """How many topics there are, and the bytes that they are charged for. No change is under
        way.
        """
        for topic in self.by_id.values():
            topic.charge = topic.bytes
        return len(self.by_id), sum(topic.charge for topic in self.by_id.values())

    def recharge(self, topic: Topic) -> None:
        """Records of the topic went, other than by a change."""
        if self.table.byte_quota is not None:
            self.table.byte_quota.recharge(topic)
