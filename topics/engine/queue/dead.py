"""Dead jobs: which exhausted jobs are moved to the dead-letter topic next (§10.6)."""

from __future__ import annotations

from topics.engine.now import Now
from topics.engine.queue.claims import UNREADABLE_MS, Taken, jobs_of, records_of
from topics.engine.store import Store
from topics.engine.topic import Topic


def dead(topic: Topic, store: Store, max_jobs: int, max_bytes: int, now: Now) -> list[Taken]:
    """As `ShardEngine.dead`."""
    jobs, found, size = jobs_of(topic), list[Taken](), 0
    for seq in tuple(jobs.dead):
        if len(found) == max_jobs or size >= max_bytes:
            break
        record = records_of(topic, store, (seq,))
        found += record
        if record:
            size += len(record[0][1])
        else:  # as for a claim: it must not stop the others
            del jobs.dead[seq]
            jobs.park(seq, now.ms + UNREADABLE_MS)
    return found
