"""Dead jobs: which exhausted jobs are moved to the dead-letter topic next (§10.6)."""

from __future__ import annotations

from itertools import islice

from topics.engine.now import Now
from topics.engine.queue.claims import UNREADABLE_MS, Taken, jobs_of, records_of
from topics.engine.store import Store
from topics.engine.topic import Topic


def dead(topic: Topic, store: Store, max_jobs: int, max_bytes: int, now: Now) -> list[Taken]:
    """As `ShardEngine.dead`."""
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
