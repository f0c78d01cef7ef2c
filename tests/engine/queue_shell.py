"""The transcript shell with the commands of queues:

    append QUEUE DATA ... FIELD=VALUE    also ``delay_ms`` and ``deliver_in``, for all its records
    claim QUEUE NODE max=N lease=MS      lease jobs
    cohort QUEUE NODE=MAX ...            claims that are served together
    ack QUEUE NODE SEQ ... token=TOKEN   one token for each seq, or none
    nack QUEUE NODE SEQ ... delay=MS
    extend QUEUE NODE SEQ ... lease=MS
    open STREAM QUEUE NODE               open a stream of jobs
    push STREAM max=N                    lease jobs to the stream
    close STREAM                         its client has disconnected
    queue QUEUE                          show the counters of its state
    leases QUEUE                         list the leases
    move QUEUE                           begin to move the exhausted jobs
    remove_dead QUEUE SEQ ...            the dead-letter topic contains them
    refuse QUEUE SEQ ...                 the dead-letter topic has refused them
    recheck QUEUE                        check dead jobs after a change of the configuration
    reserve QUEUE SEQ ...                begin to move records to another topic
    unreserve QUEUE SEQ ...              the records were not moved
    remove QUEUE SEQ ...                 the records were moved
    clock MS                             step the wall clock

A lease is shown with its token, the number of deliveries of its job, and its deadline.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

from tests.engine.transcript_shell import START, Shell, fields_of, values_of
from topics.engine.changes import finish_jobs, lease_jobs
from topics.engine.changes.finish_jobs import FinishJobs, ack, begin_ack
from topics.engine.changes.lease_jobs import LeaseChange
from topics.engine.now import Now
from topics.engine.queue import claims
from topics.engine.queue.claims import ClaimRequest, jobs_of
from topics.engine.queue.leases import LeaseHolder, lease_id
from topics.engine.topic import Topic

LEASES_OF_A_PROCESS = 100


class QueueShell(Shell):
    """Execute transcript lines one after another."""

    def __init__(self) -> None:
        super().__init__()
        self._streams: dict[str, tuple[str, LeaseHolder]] = {}
        self._processes = 0
        self._begin_process()

    def _begin_process(self) -> None:
        self._processes += 1
        self.world.engine.table.next_lease_number = LEASES_OF_A_PROCESS * self._processes + 1
        self._streams.clear()

    def _commands(self) -> dict[str, Callable[..., Iterator[str]]]:
        return {
            **super()._commands(),
            "claim": self._claim,
            "cohort": self._cohort,
            "ack": self._ack,
            "nack": self._nack,
            "extend": self._extend,
            "open": self._open,
            "push": self._push,
            "close": self._close,
            "queue": self._queue,
            "leases": self._leases,
            "move": self._move,
            "remove_dead": self._remove_dead,
            "refuse": self._refuse,
            "recheck": self._recheck,
            "reserve": self._reserve,
            "unreserve": self._unreserve,
            "remove": self._remove,
            "clock": self._clock,
        }

    def _topic(self, name: str) -> Topic:
        topic = self.world.engine.queue(name)
        self.expire(name)
        return topic

    def _lease_change(self, change: LeaseChange) -> None:
        if change.frames:
            self.submit(change)

    # Claims

    def _claim(self, name: str, node: str, *words: str) -> Iterator[str]:
        fields, topic = fields_of(words), self._topic(name)
        holder = jobs_of(topic).leases.poller(node)
        yield from self._lease(topic, holder, fields.get("max", 1), fields.get("lease"))

    def _lease(
        self, topic: Topic, holder: LeaseHolder, max_jobs: int, lease_ms: int | None
    ) -> Iterator[str]:
        request = ClaimRequest(holder, max_jobs, lease_ms or topic.config.lease_ms)
        yield from self._pass(topic, [request], evenly=False) or ["nothing"]

    def _pass(self, topic: Topic, requests: list[ClaimRequest], *, evenly: bool) -> list[str]:
        changes = lease_jobs.claim(
            self.world.engine.table, topic, requests, self.now, evenly=evenly, max_bytes=1 << 20
        )
        for change in changes:
            self._lease_change(change)
        return [
            f"{job.seq}: {json.dumps(json.loads(job.record)['data'])} for {request.holder.node}, "
            f"{lease_id(job.number)}, delivery {job.deliveries}, until {job.deadline_ts}"
            for request, change in zip(requests, changes, strict=True)
            for job in change.jobs
        ]

    def _cohort(self, name: str, *words: str) -> Iterator[str]:
        topic = self._topic(name)
        requests = [
            ClaimRequest(jobs_of(topic).leases.poller(node), max_jobs, topic.config.lease_ms)
            for node, max_jobs in fields_of(words).items()
        ]
        yield from self._pass(topic, requests, evenly=True) or ["nothing"]

    # Streams

    def _open(self, stream: str, name: str, node: str) -> Iterator[str]:
        self._topic(name)
        self._streams[stream] = name, LeaseHolder(node, is_stream=True)
        return iter(())

    def _push(self, stream: str, *words: str) -> Iterator[str]:
        name, holder = self._streams[stream]
        capacity = fields_of(words).get("max", 1) - holder.held
        yield from self._lease(self._topic(name), holder, capacity, None)

    def _close(self, stream: str) -> Iterator[str]:
        name, holder = self._streams.pop(stream)
        change = lease_jobs.release(self._topic(name), holder, self.now)
        self._lease_change(change)
        yield _outcome("released", change.seqs)

    # Calls of lease holders

    def _ack(self, name: str, node: str, *words: str) -> Iterator[str]:
        seqs, tokens = _seqs_and_tokens(words)
        leases, skipped = begin_ack(self._topic(name), node, seqs, tokens, self.now)
        change = ack(self._topic(name), leases, self.now)
        self.submit(change)
        yield _outcome("acked", change.seqs, skipped)

    def _nack(self, name: str, node: str, *words: str) -> Iterator[str]:
        seqs, tokens = _seqs_and_tokens(words)
        delay_ms, topic = fields_of(words).get("delay", 0), self._topic(name)
        change = lease_jobs.nack(topic, node, seqs, tokens, delay_ms, self.now)
        self._lease_change(change)
        yield _outcome("nacked", change.seqs, change.skipped)

    def _extend(self, name: str, node: str, *words: str) -> Iterator[str]:
        seqs, tokens = _seqs_and_tokens(words)
        lease_ms, topic = fields_of(words)["lease"], self._topic(name)
        change = lease_jobs.extend(topic, node, seqs, tokens, lease_ms, self.now)
        self._lease_change(change)
        until = f" until {change.until_ts}" if change.seqs else ""
        yield _outcome("extended", change.seqs, change.skipped) + until

    # Queries

    def _queue(self, name: str) -> Iterator[str]:
        topic = self._topic(name)
        assert topic.jobs is not None
        topic.jobs.advance(self.now.ms)
        counters = topic.jobs.counters(topic.count)
        yield ", ".join(f"{name} {value}" for name, value in counters._asdict().items())

    def _leases(self, name: str) -> Iterator[str]:
        topic = self._topic(name)
        shown = claims.leases(topic, 0, 100, None, self.now)
        yield from [
            f"{view.seq}: {view.node}, {lease_id(view.number)}, delivery {view.deliveries}, "
            f"until {view.deadline_ts}"
            for view in shown
        ] or ["none"]

    # Moves

    def _move(self, name: str) -> Iterator[str]:
        change = lease_jobs.begin_dead_lettering(self._topic(name), 100, self.now)
        self._lease_change(change)
        yield _outcome("moving", change.seqs)

    def _finish(self, change: FinishJobs, done: str) -> Iterator[str]:
        self.submit(change)
        yield _outcome(done, change.seqs)

    def _remove_dead(self, name: str, *seqs: str) -> Iterator[str]:
        change = finish_jobs.remove_dead_lettered(self._topic(name), [*map(int, seqs)], self.now)
        yield from self._finish(change, "removed")

    def _refuse(self, name: str, *seqs: str) -> Iterator[str]:
        lease_jobs.return_to_dead(self._topic(name), [*map(int, seqs)])
        return iter(())

    def _recheck(self, name: str) -> Iterator[str]:
        jobs_of(self._topic(name)).recheck_dead()
        return iter(())

    def _reserve(self, name: str, *seqs: str) -> Iterator[str]:
        yield _outcome("reserved", claims.reserve(self._topic(name), [*map(int, seqs)], self.now))

    def _unreserve(self, name: str, *seqs: str) -> Iterator[str]:
        claims.unreserve(self._topic(name), [*map(int, seqs)], self.now)
        return iter(())

    def _remove(self, name: str, *seqs: str) -> Iterator[str]:
        change = finish_jobs.remove(self._topic(name), [*map(int, seqs)], self.now)
        yield from self._finish(change, "removed")

    # The environment of the shard

    def _clock(self, ms: str) -> Iterator[str]:
        self.now = Now(self.now.ts + int(ms), self.now.ms)
        return iter(())

    def _start(self, *, power: bool) -> Iterator[str]:
        self.now = Now(self.now.ts, START.ms)  # Another monotonic clock
        yield from super()._start(power=power)
        self._begin_process()


def _seqs_and_tokens(words: tuple[str, ...]) -> tuple[list[int], list[str] | None]:
    tokens = [word.removeprefix("token=") for word in words if word.startswith("token=")]
    return values_of(words), tokens or None


def _outcome(done: str, seqs: Iterable[int], skipped: Iterable[int] = ()) -> str:
    text = f"{done} {' '.join(map(str, seqs)) or 'nothing'}"
    return text + "".join(f", skipped {seq}" for seq in skipped)
