"""Workers of a queue on a shard that the test drives without a loop, and the state that a restart
must restore.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.support.log import Client
from topics.engine.changes import finish_jobs, lease_jobs
from topics.engine.changes.change import Change
from topics.engine.changes.finish_jobs import FinishJobs
from topics.engine.changes.lease_jobs import LeaseChange
from topics.engine.now import Now
from topics.engine.queue.claims import ClaimRequest, Job, jobs_of
from topics.engine.queue.ledger import JobRow, JobState, keeps_leases
from topics.engine.topic import Topic
from topics.storage.wal.log_progress import LogProgress


def begin(client: Client, change: Change) -> list[LogProgress | OSError]:
    """Submit a change if it has frames. The reply is added to the returned list when it arrives."""
    if change.frames or isinstance(change, FinishJobs):
        return client.submit(change)
    return []


def done(client: Client, change: Change) -> None:
    begin(client, change)
    assert client.wait() is None


def claim(
    client: Client, name: str, max_jobs: int = 1, *, node: str = "w", lease_ms: int = 10_000
) -> list[Job]:
    change = claiming(client, name, max_jobs, node=node, lease_ms=lease_ms)
    done(client, change)
    return list(change.jobs)


def claiming(
    client: Client, name: str, max_jobs: int = 1, *, node: str = "w", lease_ms: int = 10_000
) -> LeaseChange:
    """Decide a claim without submitting it."""
    engine, topic = client.engine, client.engine.queue(name)
    request = ClaimRequest(jobs_of(topic).leases.poller(node), max_jobs, lease_ms)
    (change,) = lease_jobs.claim(engine.table, topic, [request], client.now, evenly=False)
    return change


def acking(client: Client, name: str, *seqs: int, node: str = "w") -> FinishJobs:
    """Decide an ack without submitting it."""
    topic = client.engine.queue(name)
    leases, _ = finish_jobs.begin_ack(topic, node, seqs, None, client.now)
    return finish_jobs.ack(topic, leases, client.now)


def ack(client: Client, name: str, *seqs: int, node: str = "w") -> list[int]:
    change = acking(client, name, *seqs, node=node)
    done(client, change)
    return list(change.seqs)


def nack(client: Client, name: str, *seqs: int, node: str = "w", delay_ms: int = 0) -> None:
    queue = client.engine.queue(name)
    done(client, lease_jobs.nack(queue, node, seqs, None, delay_ms, client.now))


def extend(client: Client, name: str, *seqs: int, node: str = "w", lease_ms: int) -> None:
    queue = client.engine.queue(name)
    done(client, lease_jobs.extend(queue, node, seqs, None, lease_ms, client.now))


def begin_move(client: Client, name: str, max_jobs: int = 100) -> list[int]:
    """Begin to move exhausted jobs to the dead-letter topic."""
    change = lease_jobs.begin_dead_lettering(client.engine.queue(name), max_jobs, client.now)
    done(client, change)
    return list(change.seqs)


def end_move(client: Client, name: str, *seqs: int) -> None:
    """Finish the move, after which the dead-letter topic contains the jobs."""
    done(client, finish_jobs.remove_dead_lettered(client.engine.queue(name), seqs, client.now))


# State that a restart must restore


class Known(NamedTuple):
    """The state of the jobs of a queue that is the same before a kill and after the start.

    Jobs that a claim pass has found exhausted are free again, until the next pass finds them.
    """

    rows: dict[int, JobRow]
    delays: dict[int, int]
    dead_lettered: int


def known(topic: Topic, now: Now) -> Known:
    """Return the current state of the jobs of a queue.

    Passed deadlines are applied first, so that the result does not depend on earlier calls.
    """
    jobs = jobs_of(topic)
    durable = keeps_leases(topic.config)
    rows: dict[int, JobRow] = {}
    delays: dict[int, int] = {}
    jobs.advance(now.ms)
    for ledger in jobs.ledgers(now, with_leases=durable):
        rows |= ledger.rows
        delays |= ledger.delays
    if not durable:  # A job that was delivered is due again
        delays = {seq: due_ts for seq, due_ts in delays.items() if due_ts > now.ts}
    return Known(rows, delays, jobs.dead_lettered)


def all_known(client: Client) -> dict[str, Known]:
    return {
        name: known(topic, client.now)
        for name, topic in sorted(client.engine.topics.items())
        if topic.jobs is not None
    }


HELD, FREE, DYING = JobState
