"""Base of the queue machine: a world, the models of its queues, time and the log."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.engine.queue_model import Job, QueueModel
from tests.engine.shard_machine import ShardMachine
from topics.engine.changes.change import Change
from topics.engine.changes.finish_jobs import FinishJobs
from topics.engine.changes.lease_jobs import ClaimJobs, ExtendLeases, LeaseChange
from topics.engine.now import Now
from topics.engine.queue.jobs import Jobs
from topics.engine.queue.leases import LeaseHolder
from topics.engine.topic import Topic
from topics.formats.disk.frames import FrameKind

NAMES = st.sampled_from(["q", "q", "q", "r"])
NODES = st.sampled_from(["n", "m"])
STEPS_MS = [1, 1, 5, 30, 100, 101, 300]

Models = dict[int, QueueModel]
Effect = Callable[[Models], None]


class Stream(NamedTuple):
    """A connection that jobs are pushed to."""

    topic_id: int
    number: int
    holder: LeaseHolder


class Granted(NamedTuple):
    """A lease that was granted at some time."""

    topic_id: int
    seq: int
    node: str
    token: str


class QueueMachine(ShardMachine):
    """The base class of the queue machine.

    ``models`` holds the committed records and the decided leases by topic id. ``names`` holds the
    decided topics.
    """

    models: Models

    def start(self) -> None:
        """Set up the state before the first rule runs."""
        super().start()
        self.take_backs: dict[int, Callable[[], None]] = {}  # By id of the failed change
        self.streams: dict[int, Stream] = {}
        self.stream_count = 0
        self.held_by_streams: dict[int, int] = {}
        self.granted: list[Granted] = []
        self.numbers: set[int] = set()
        self.reserved: list[tuple[int, dict[int, Job]]] = []  # By topic id
        self.moving: list[tuple[int, list[int]]] = []  # Dead letters whose appends are in flight
        self.busy: set[int] = set()  # Ids of queues with a move in flight
        self.is_last = False  # Whether the checkpoint in progress is that of an orderly stop
        self.begin_process()

    def begin_process(self) -> None:
        """Clear the state that only memory holds, as a new process does."""
        self.take_backs.clear()
        self.streams.clear()
        self.held_by_streams.clear()
        self.reserved.clear()
        self.moving.clear()
        self.busy.clear()
        self.world.engine.table.next_lease_number = 1 + max(self.numbers, default=0)

    # Access to topics

    def topic(self, name: str) -> Topic | None:
        """Return the topic after its expired records are removed, as before every response."""
        topic = self.world.engine.topics.get(name)
        if topic is not None and topic.may_expire:
            model = self.models[topic.id]
            model.expire(self.now.ts)
            change = self.world.engine.expire(topic, self.now)
            if change is not None:
                start = topic.start_seq
                self.submit(change, {FrameKind.FLOOR: lambda models: models[topic.id].cut(start)})
        return topic

    def jobs(self, topic: Topic) -> Jobs:
        """Return the jobs of the queue."""
        assert topic.jobs is not None
        return topic.jobs

    def submit(
        self,
        change: Change,
        effects: dict[FrameKind, Effect],
        commit: Callable[[], None] | None = None,
        take_back: Callable[[], None] | None = None,
    ) -> None:
        """Submit a change to the world.

        ``effects`` are the effects of its replayed frames on the models. ``commit`` and
        ``take_back`` update the model when the change is committed or undone.
        """
        if take_back is not None:
            self.take_backs[id(change)] = take_back
        self.world.submit(change, effects, partial(self._settled, change, commit))

    def _settled(self, change: Change, commit: Callable[[], None] | None) -> None:
        self.take_backs.pop(id(change), None)
        if commit is not None:
            commit()

    # Time, and failures of the log

    @rule(ms=st.sampled_from(STEPS_MS))
    def time_passes(self, ms: int) -> None:
        self.now = Now(self.now.ts + ms, self.now.ms + ms)

    @rule(ts=st.sampled_from([-300, -50, -1, 1, 60, 400]))
    def wall_clock_steps(self, ts: int) -> None:
        self.now = self.now._replace(ts=self.now.ts + ts)

    @precondition(lambda self: self.world.pending)
    @rule()
    def fail(self) -> None:
        """Undo all pending changes because the log cannot be written.

        Expired records that readers saw as removed stay removed.
        """
        waiting = self.world.pending
        for pending in reversed(waiting):
            self.take_backs.pop(id(pending.change), _nothing)()
        super().fail()
        for model in self.models.values():
            model.decided = model.config
        for pending in waiting:
            if pending.change.topic.id in self.models:
                self._adopt(pending.change)

    def _adopt(self, change: Change) -> None:
        """Copy from the engine into the model what a failure leaves unspecified.

        This is the position of jobs that a failure released, the deliveries of leases
        that expired before their claim failed, and whether a lease persists that expired before
        its extension to an earlier deadline failed.
        """
        if not isinstance(change, LeaseChange | FinishJobs):
            return
        model, jobs = self.models[change.topic.id], self.jobs(change.topic)
        model.advance(self.now.ms)
        for job in (model.jobs[seq] for seq in change.seqs if seq in model.jobs):
            if isinstance(change, ClaimJobs):
                assert jobs.deliveries(job.seq) >= job.deliveries
                job.deliveries = jobs.deliveries(job.seq)
            may_be_free = {
                "waiting": isinstance(change, ClaimJobs),
                "held": isinstance(change, ExtendLeases) and job.seq not in jobs.leases,
                "free": True,
            }
            if may_be_free.get(job.state):
                model.release_anywhere(job.seq)
            if job.state == "free" and job.seq in jobs.dead:
                model.die([job.seq])


def _nothing() -> None:
    pass


__all__ = ["QueueMachine"]
