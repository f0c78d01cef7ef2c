"""Claims: which jobs a pass hands out, and in what order (§10.2).

    free jobs, in the order in which they became so
    then the fresh and the due, by (`$ts` or delivery time, seq)

A pass takes runs of fresh jobs entry by entry of the index; only while a due job waits does it look
at single records. A job whose record cannot be read is hidden for a while: it must not stop the
others.
"""

from __future__ import annotations

import contextlib
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice
from typing import NamedTuple

from topics.engine.locators import is_extent
from topics.engine.now import Now
from topics.engine.queue.jobs import PASS_STEPS, Jobs
from topics.engine.queue.leases import Holder
from topics.engine.store import Store, Unreadable
from topics.engine.topic import Topic
from topics.formats.buffers import Buffer
from topics.formats.disk.records import View, live_runs

UNREADABLE_MS = 60_000  # until a job with a damaged record is tried again
STEP = 64  # jobs that are taken out of the line at once


class Ask(NamedTuple):
    """One claimer of a pass."""

    holder: Holder
    max_jobs: int
    lease_ms: int


class Job(NamedTuple):
    """A leased job. ``deadline_ts``: wall ms. ``record``: its rendered record."""

    seq: int
    number: int
    deadline_ts: int
    deliveries: int
    record: bytes


Taken = tuple[int, bytes]
"""Seq and rendered record of a job that a pass has taken."""


def deal(
    topic: Topic,
    jobs: Jobs,
    store: Store,
    asks: Sequence[Ask],
    now: Now,
    *,
    evenly: bool,
    max_bytes: int,
) -> list[list[Taken]]:
    """Take jobs for all askers; a list for each of them, in the order of seqs.

    ``evenly``: dealt round-robin. Otherwise the first takes what it may, and so on. No more are
    taken once their records have ``max_bytes``.
    """
    wanted = asks[0].max_jobs if len(asks) == 1 else sum(ask.max_jobs for ask in asks)
    jobs.advance(now.ms, wanted)
    jobs.steps_left = PASS_STEPS
    found = _take(topic, jobs, store, wanted, max_bytes, now)
    jobs.end_pass(is_short=len(found) < min(len(asks), wanted))
    if len(asks) == 1:
        return [sorted(found)]
    hands: list[list[Taken]] = [[] for _ in asks]
    taken = iter(found)
    if evenly:
        turns = _turns(asks, hands)
        for job in taken:
            next(turns).append(job)
    else:
        for ask, hand in zip(asks, hands, strict=True):
            hand += [job for _, job in zip(range(ask.max_jobs), taken, strict=False)]
    for hand in hands:
        hand.sort()
    return hands


def _turns(asks: Sequence[Ask], hands: list[list[Taken]]) -> Iterator[list[Taken]]:
    """Whose turn it is, as long as somebody has room."""
    for ask, hand in cycle(zip(asks, hands, strict=True)):
        if len(hand) < ask.max_jobs:
            yield hand


def jobs_of(topic: Topic) -> Jobs:
    """The jobs of a topic that is a queue."""
    assert topic.jobs is not None, "the topic is a queue"
    return topic.jobs


def _take(
    topic: Topic, jobs: Jobs, store: Store, count: int, max_bytes: int, now: Now
) -> list[Taken]:
    """As `deal`. A pass that cannot read (OSError) takes nothing."""
    found, size = list[Taken](), 0
    usual_bytes = max(1, topic.bytes // max(1, topic.count))
    seqs: list[int] = []
    try:
        while len(found) < count and size < max_bytes and jobs.steps_left > 0:
            wanted = max(1, min(count - len(found), STEP, (max_bytes - size) // usual_bytes))
            seqs = jobs.take_free(wanted, topic.config)
            if len(seqs) < wanted:
                _take_new(topic, jobs, store, wanted, seqs)
            if not seqs:
                break
            read = records_of(topic, store, seqs, max_bytes - size)
            found += read
            for _, record in read:
                size += len(record)
            if size >= max_bytes:
                looked_at = seqs.index(read[-1][0]) + 1
                jobs.untake(seqs[looked_at:])
                del seqs[looked_at:]
            if len(read) < len(seqs):
                for seq in set(seqs).difference(seq for seq, _ in read):
                    jobs.park(seq, now.ms + UNREADABLE_MS)
            seqs = []
    except OSError:
        jobs.untake([*(seq for seq, _ in found), *seqs])
        raise
    return found


# Jobs that were never delivered


def _take_new(topic: Topic, jobs: Jobs, store: Store, count: int, taken: list[int]) -> None:
    """Add jobs to ``taken`` until they are ``count``, or there are no more."""
    fresh = _FreshRuns(topic, jobs, store)
    while len(taken) < count:
        run, due = fresh.next_run(), jobs.next_due() if jobs.due else None
        if jobs.steps_left <= 0:
            break
        if due is not None and (run is None or due < fresh.key(run[0])):
            taken.append(jobs.take_due())
            continue
        if run is None:
            break
        first, stop = run
        enough = jobs.fresh_until(first, first + count - len(taken))
        if due is None and stop < enough:
            stop = fresh.over_whole_entries(stop, enough)
        stop = min(stop, enough)
        if due is not None:
            # A due job may be in this run itself, and `$ts` its time: the run goes on behind it.
            stop = first + bisect_right(range(first, stop), due, key=fresh.key)
        taken += range(first, stop)
        jobs.cursor = stop


class _FreshRuns:
    """Walks over the live seqs from the claim cursor on."""

    def __init__(self, topic: Topic, jobs: Jobs, store: Store) -> None:
        self._topic, self._store, self._jobs = topic, store, jobs
        self._at = topic.index.find(max(jobs.cursor, topic.start_seq))

    def next_run(self) -> tuple[int, int] | None:
        """The next run of live seqs in one entry, its end excluded."""
        topic, index, jobs = self._topic, self._topic.index, self._jobs
        while self._at < len(index) and jobs.steps_left > 0:
            first_seq, count, locator, size = index.entry(self._at)
            at = jobs.skip(max(topic.start_seq, first_seq)) - first_seq
            start = stop = count
            if size and at < count:
                start, stop = at, count
                if first_seq in index.gone:
                    # Which of its records live is unknown if they cannot be read: none is taken.
                    with contextlib.suppress(Unreadable):
                        start = count
                        flags = self._store.delete_flags(locator)
                        start, stop = next(live_runs(flags, at, count), (count, count))
            seq = first_seq + start if start == at else jobs.skip(first_seq + start)
            if seq < first_seq + stop:
                return seq, first_seq + stop
            if seq >= first_seq + count:
                self._at = index.find(seq)
            jobs.steps_left -= 1
        return None

    def over_whole_entries(self, stop: int, enough: int) -> int:
        """Where a run that ends at ``stop`` ends if it goes on over entries of which all records
        live; no look at more of them than is ``enough``.
        """
        index, gone, at = self._topic.index, self._topic.index.gone, self._at + 1
        while stop < enough and at < len(index):
            first_seq, count, _, size = index.entry(at)
            if first_seq != stop or not size or first_seq in gone:
                break
            stop += count
            self._at = at
            at += 1
        return stop

    def key(self, seq: int) -> tuple[int, int]:
        """By which the job at ``seq``, in the current entry, is ordered among those never
        delivered.
        """
        first_seq, _, locator, _, ts = self._topic.index.whole_entry(self._at)
        if is_extent(locator):
            with contextlib.suppress(Unreadable):
                ts = self._store.records(locator).ts(seq - first_seq)
        return ts, seq


# Records


def records_of(
    topic: Topic, store: Store, seqs: Sequence[int], max_bytes: int = sys.maxsize
) -> list[Taken]:
    """The rendered records of these seqs, of those that live and can be read, up to the one with
    which they have ``max_bytes``.
    """
    index, found = topic.index, list[Taken]()
    at = first_seq = end = 0
    view: View | None = None
    deleted: Buffer | None = None
    for seq in seqs:
        if not first_seq <= seq < end:
            at = at + 1 if seq == end else index.find(seq)
            if at == len(index):
                continue
            first_seq, count, locator, size = index.entry(at)
            end, view = first_seq + count, None
            if size:
                with contextlib.suppress(Unreadable):
                    deleted = store.delete_flags(locator) if first_seq in index.gone else None
                    view = store.records(locator)
        if view is None or not max(first_seq, topic.start_seq) <= seq < end:
            continue
        place = seq - first_seq
        if deleted is None or deleted[place] != 1:
            with contextlib.suppress(Unreadable):
                found.append((seq, bytes(view.slice(place, place + 1))))
                max_bytes -= len(found[-1][1])
                if max_bytes <= 0:
                    break
    return found


# Jobs that are moved elsewhere


def dead(topic: Topic, store: Store, max_jobs: int, max_bytes: int, now: Now) -> list[Taken]:
    """The exhausted jobs that are to be moved next (§10.6), and their rendered records: the rest of
    the batch that is dying, else those that `lease_jobs.dying` begins with. At most ``max_jobs``,
    and no more once these have ``max_bytes``.

    Jobs whose record cannot be read are hidden for a while.
    """
    jobs, found, size = jobs_of(topic), list[Taken](), 0
    waiting = jobs.dying or jobs.dead
    for seq in [*islice(waiting, max_jobs)]:
        if size >= max_bytes:
            break
        record = records_of(topic, store, (seq,))
        found += record
        if record:
            size += len(record[0][1])
        else:  # as for a claim: it must not stop the others
            del waiting[seq]
            jobs.park(seq, now.ms + UNREADABLE_MS)
    return found


def set_aside(topic: Topic, seqs: Iterable[int], now: Now) -> list[int]:
    """Reserve the records that are not busy, and return their seqs. The topic is a queue or a log.

    No client may claim these records until they are put back or removed.
    """
    jobs = topic.jobs
    return [seq for seq in seqs if jobs is None or jobs.set_aside(seq, now.ms)]


def count_busy(topic: Topic, seqs: Iterable[int], now: Now) -> int:
    """Return the number of these records that `set_aside` would leave out."""
    jobs = topic.jobs
    return 0 if jobs is None else sum(jobs.is_busy(seq, now.ms) for seq in seqs)


def put_back(topic: Topic, seqs: Iterable[int], now: Now) -> None:
    """These records were set aside, and stay."""
    if topic.jobs is not None:
        for seq in seqs:
            topic.jobs.put_back(seq, now)


# Who holds which jobs


class LeaseView(NamedTuple):
    """A lease as it is listed. ``deadline_ts``: wall ms."""

    seq: int
    node: str
    number: int
    deadline_ts: int
    deliveries: int
    error: str | None


def leases(topic: Topic, after: int, limit: int, node: str | None, now: Now) -> list[LeaseView]:
    """Up to ``limit`` leases of jobs above ``after``, of ``node`` or of all, by seq."""
    jobs = jobs_of(topic)
    jobs.advance(now.ms)
    return [
        LeaseView(
            lease.seq,
            lease.holder.node,
            lease.number,
            now.ts + lease.deadline_ms - now.ms,
            jobs.deliveries(lease.seq),
            jobs.errors.get(lease.seq),
        )
        for lease in jobs.leases.page(after, limit, node, now.ms)
    ]
