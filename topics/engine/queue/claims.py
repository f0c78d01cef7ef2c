"""Claims: selects the jobs that a pass delivers, and their order (§10.2).

    1. the free jobs, in the order in which they became free
    2. the fresh and the due jobs, by (`$ts` or delivery time, seq)

A pass serves one or more claimers. It takes runs of fresh jobs entry by entry of the index. It
examines single records only while a due job waits. A job whose record cannot be read is hidden for
a while, so that it does not block other jobs.
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
from topics.engine.queue.leases import LeaseHolder
from topics.engine.store import Store, Unreadable
from topics.engine.topic import Topic
from topics.formats.buffers import Buffer
from topics.formats.disk.records import AbstractView, live_runs

UNREADABLE_MS = 60_000  # delay before a job with a damaged record is tried again
STEP = 64  # maximum number of jobs taken from the free queue in one step


class ClaimRequest(NamedTuple):
    """The request of one claimer in a pass."""

    holder: LeaseHolder
    max_jobs: int
    lease_ms: int


class Job(NamedTuple):
    """A leased job. ``deadline_ts`` is in wall ms. ``record`` is its rendered record."""

    seq: int
    number: int
    deadline_ts: int
    deliveries: int
    record: bytes


Taken = tuple[int, bytes]
"""Seq and rendered record of a job that a pass has taken."""


def distribute(
    topic: Topic,
    jobs: Jobs,
    store: Store,
    requests: Sequence[ClaimRequest],
    now: Now,
    *,
    evenly: bool,
    max_bytes: int,
) -> list[list[Taken]]:
    """Take jobs for all claimers of a pass, and return a list for each of them, sorted by seq.

    With ``evenly``, the jobs are distributed round-robin. Otherwise the first claimer gets as many
    jobs as it requested, then the second, and so on. The pass ends when the records of its jobs
    reach ``max_bytes``.

    Implements the selection of §10.2. Raise OSError if the disk fails; in that case no job is
    taken. The taken jobs are in no state, and the caller must deliver or return all of them.
    """
    wanted = (
        requests[0].max_jobs
        if len(requests) == 1
        else sum(request.max_jobs for request in requests)
    )
    # End expired leases first, because their jobs have priority over jobs that were never
    # delivered.
    jobs.advance(now.ms, wanted)
    jobs.steps_left = PASS_STEPS
    found = _take(topic, jobs, store, wanted, max_bytes, now)
    # If the pass found too few jobs and `advance` left expired leases, the caller must try again
    # later.
    jobs.end_pass(is_short=len(found) < min(len(requests), wanted))
    if len(requests) == 1:
        return [sorted(found)]
    # Distribute the jobs in the order in which they were taken. Each claimer gets its jobs in seq
    # order.
    shares: list[list[Taken]] = [[] for _ in requests]
    taken = iter(found)
    if evenly:
        turns = _round_robin(requests, shares)
        for job in taken:
            next(turns).append(job)
    else:
        for request, share in zip(requests, shares, strict=True):
            share += [job for _, job in zip(range(request.max_jobs), taken, strict=False)]
    for share in shares:
        share.sort()
    return shares


def _round_robin(
    requests: Sequence[ClaimRequest], shares: list[list[Taken]]
) -> Iterator[list[Taken]]:
    """Yield the list that gets the next job, round-robin, while a claimer can take more jobs."""
    for request, share in cycle(zip(requests, shares, strict=True)):
        if len(share) < request.max_jobs:
            yield share


def jobs_of(topic: Topic) -> Jobs:
    """Return the jobs of a topic that is a queue."""
    assert topic.jobs is not None, "the topic is a queue"
    return topic.jobs


def _take(
    topic: Topic, jobs: Jobs, store: Store, count: int, max_bytes: int, now: Now
) -> list[Taken]:
    """Take up to ``count`` jobs for a pass.

    If the records cannot be read because of an OSError, return all taken jobs to the free queue and
    raise the error.
    """
    found, size = list[Taken](), 0
    usual_bytes = max(1, topic.bytes // max(1, topic.count))
    seqs: list[int] = []
    try:
        # Three bounds end the pass: the requested number, the bytes of a response and the steps
        # of a scan.
        while len(found) < count and size < max_bytes and jobs.steps_left > 0:
            # Take about as many jobs as fit into ``max_bytes``, so that few are returned to the
            # free queue.
            wanted = max(1, min(count - len(found), STEP, (max_bytes - size) // usual_bytes))
            seqs = jobs.take_free(wanted, topic.config)
            # If the free queue is exhausted, add jobs that were never delivered. Free jobs are
            # taken first, because they have waited longer.
            if len(seqs) < wanted:
                _take_new(topic, jobs, store, wanted, seqs)
            if not seqs:
                break
            read = records_of(topic, store, seqs, max_bytes - size)
            found += read
            for _, record in read:
                size += len(record)
            # If the byte limit is reached, return the jobs after the last record that was read.
            if size >= max_bytes:
                stop = seqs.index(read[-1][0]) + 1
                jobs.return_taken(seqs[stop:])
                del seqs[stop:]
            # Hide the jobs whose records cannot be read.
            if len(read) < len(seqs):
                for seq in set(seqs).difference(seq for seq, _ in read):
                    jobs.hide_taken(seq, now.ms + UNREADABLE_MS)
            # The jobs of this step are settled. An error in the next step must not return them a
            # second time.
            seqs = []
    except OSError:
        # Return the jobs of all steps, because the caller will deliver none of them.
        jobs.return_taken([*(seq for seq, _ in found), *seqs])
        raise
    return found


# Jobs that were never delivered


def _take_new(topic: Topic, jobs: Jobs, store: Store, count: int, taken: list[int]) -> None:
    """Append fresh and due jobs to ``taken`` until it has ``count`` jobs or there are no more."""
    fresh = _FreshRuns(topic, jobs, store)
    while len(taken) < count:
        run, due = fresh.next_run(), jobs.next_due() if jobs.due else None
        # If the search for the next run or for the next due job has reached the limit of steps, its
        # result is not reliable, and the jobs could be taken in the wrong order.
        if jobs.steps_left <= 0:
            break
        # Compare the (time, seq) of the due job with the (time, seq) of the first fresh job. A due
        # job is ordered by its delivery time, and a fresh job by its `$ts`.
        if due is not None and (run is None or due < fresh.key(run[0])):
            taken.append(jobs.take_due())
            continue
        if run is None:
            break
        first, stop = run
        # The run must not extend over a job that is not fresh, and must not have more jobs than are
        # still needed.
        enough = jobs.fresh_until(first, first + count - len(taken))
        if due is None and stop < enough:
            # If there is no due job, the jobs are ordered by seq, so the index alone determines the
            # next jobs.
            stop = fresh.extend_over_live_entries(stop, enough)
        stop = min(stop, enough)
        if due is not None:
            # Deliver only the fresh jobs that precede the due job. This is at least the first one.
            # The next iteration takes the due job.
            stop = first + bisect_right(range(first, stop), due, key=fresh.key)
        # These jobs are in no state now. The cursor moves over them, so that they are not taken
        # again.
        taken += range(first, stop)
        jobs.cursor = stop


class _FreshRuns:
    """Iterates over the live seqs from the claim cursor on."""

    def __init__(self, topic: Topic, jobs: Jobs, store: Store) -> None:
        self._topic, self._store, self._jobs = topic, store, jobs
        self._at = topic.index.find(max(jobs.cursor, topic.start_seq))

    def next_run(self) -> tuple[int, int] | None:
        """Return the next run of live seqs in one entry as (first, stop), or None if there is
        none.
        """
        topic, index, jobs = self._topic, self._topic.index, self._jobs
        while self._at < len(index) and jobs.steps_left > 0:
            first_seq, count, locator, size = index.entry(self._at)
            # Skip jobs that the cursor has passed or that are not fresh. The result may be after
            # this entry.
            at = jobs.skip(max(topic.start_seq, first_seq)) - first_seq
            start = stop = count
            if size and at < count:
                start, stop = at, count
                if first_seq in index.removed:
                    # If the flags cannot be read, it is unknown which records are live. No job of
                    # the entry is taken.
                    with contextlib.suppress(Unreadable):
                        start = count
                        flags = self._store.delete_flags(locator)
                        start, stop = next(live_runs(flags, at, count), (count, count))
            # Move the cursor over deleted records, so that the next pass does not examine them
            # again.
            seq = first_seq + start if start == at else jobs.skip(first_seq + start)
            if seq < first_seq + stop:
                return seq, first_seq + stop
            # If the rest of the entry has no fresh job, continue at the cursor. It may be several
            # entries further.
            if seq >= first_seq + count:
                self._at = index.find(seq)
            # Count this step as unsuccessful, so that the search is bounded even if the rest of
            # the index contains no live job.
            jobs.steps_left -= 1
        return None

    def extend_over_live_entries(self, stop: int, enough: int) -> int:
        """Extend a run that ends at ``stop`` over the following entries whose records are all live.

        Return its new end. No entry beyond ``enough`` is examined.
        """
        index, removed, at = self._topic.index, self._topic.index.removed, self._at + 1
        while stop < enough and at < len(index):
            first_seq, count, _, size = index.entry(at)
            if first_seq != stop or not size or first_seq in removed:
                break
            stop += count
            self._at = at
            at += 1
        return stop

    def key(self, seq: int) -> tuple[int, int]:
        """Return the sort key of the job at ``seq`` among the jobs that were never delivered.

        ``seq`` is in the current entry.
        """
        first_seq, _, locator, _, ts = self._topic.index.full_entry(self._at)
        # All records of one write in the log have the same `$ts`. An extent contains many writes,
        # so its table of times is needed. If it is damaged, the time of the entry is used.
        if is_extent(locator):
            with contextlib.suppress(Unreadable):
                ts = self._store.records(locator).ts(seq - first_seq)
        return ts, seq


# Records


def records_of(
    topic: Topic, store: Store, seqs: Sequence[int], max_bytes: int = sys.maxsize
) -> list[Taken]:
    """Return the rendered records of these seqs, excluding records that are deleted or cannot be
    read.

    The result ends with the record that reaches ``max_bytes``.
    """
    index, found = topic.index, list[Taken]()
    at = first_seq = end = 0
    view: AbstractView | None = None
    deleted: Buffer | None = None
    for seq in seqs:
        # Most seqs are in the current or in the next entry, so the index is rarely searched.
        if not first_seq <= seq < end:
            at = at + 1 if seq == end else index.find(seq)
            if at == len(index):
                # The seqs are after the last entry: their records were removed.
                continue
            first_seq, count, locator, size = index.entry(at)
            end, view = first_seq + count, None
            if size:
                with contextlib.suppress(Unreadable):
                    deleted = store.delete_flags(locator) if first_seq in index.removed else None
                    view = store.records(locator)
        if view is None or not max(first_seq, topic.start_seq) <= seq < end:
            continue
        offset = seq - first_seq
        if deleted is None or deleted[offset] != 1:
            with contextlib.suppress(Unreadable):
                found.append((seq, bytes(view.slice(offset, offset + 1))))
                max_bytes -= len(found[-1][1])
                if max_bytes <= 0:
                    break
    return found


# Jobs that are moved to another topic


def dead(topic: Topic, store: Store, max_jobs: int, max_bytes: int, now: Now) -> list[Taken]:
    """Return the exhausted jobs to be moved next, with their rendered records (§10.6).

    These are the remaining jobs of the batch that is being moved. If there is no such batch, they
    are the jobs with which `lease_jobs.begin_dead_lettering` starts the next batch. At most
    ``max_jobs`` are returned. The list is shorter if it reaches ``max_bytes`` of records earlier.

    A job whose record cannot be read is hidden for a while.
    """
    jobs, found, size = jobs_of(topic), list[Taken](), 0
    waiting = jobs.dead_lettering or jobs.dead
    for seq in [*islice(waiting, max_jobs)]:
        if size >= max_bytes:
            break
        record = records_of(topic, store, (seq,))
        found += record
        if record:
            size += len(record[0][1])
        else:  # as in a claim, an unreadable job must not block other jobs
            del waiting[seq]
            jobs.hide_taken(seq, now.ms + UNREADABLE_MS)
    return found


def reserve(topic: Topic, seqs: Iterable[int], now: Now) -> list[int]:
    """Reserve the records that are not busy, and return their seqs. The topic may be a queue or a
    log.

    No client can claim these records until `unreserve` is called.
    """
    jobs = topic.jobs
    return [seq for seq in seqs if jobs is None or jobs.reserve(seq, now.ms)]


def count_busy(topic: Topic, seqs: Iterable[int], now: Now) -> int:
    """Return the number of these records that are busy and that `reserve` would therefore omit."""
    jobs = topic.jobs
    return 0 if jobs is None else sum(jobs.is_busy(seq, now.ms) for seq in seqs)


def unreserve(topic: Topic, seqs: Iterable[int], now: Now) -> None:
    """Make reserved records available again."""
    if topic.jobs is not None:
        for seq in seqs:
            topic.jobs.unreserve(seq, now)


# Lists of leases


class LeaseView(NamedTuple):
    """A lease in a list. ``deadline_ts`` is in wall ms."""

    seq: int
    node: str
    number: int
    deadline_ts: int
    deliveries: int
    error: str | None


def leases(topic: Topic, after: int, limit: int, node: str | None, now: Now) -> list[LeaseView]:
    """Return up to ``limit`` leases of jobs above ``after``, by seq.

    Only leases of ``node`` are returned if it is given.
    """
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
