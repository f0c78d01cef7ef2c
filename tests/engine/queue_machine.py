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
from topics.engine.queue.leases import Holder
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
    holder: Holder


class Granted(NamedTuple):
    """A lease that there was at some time."""

    topic_id: int
    seq: int
    node: str
    token: str


class QueueMachine(ShardMachine):
    """``models`` holds what records are committed and what leases are decided, by topic id;
    ``names`` what topics are decided.
    """

    models: Models

    def start(self) -> None:
        """Before all else."""
        super().start()
        self.take_backs: dict[int, Callable[[], None]] = {}  # by id of the change that has failed
        self.streams: dict[int, Stream] = {}
        self.stream_count = 0
        self.held_by_streams: dict[int, int] = {}
        self.granted: list[Granted] = []
        self.numbers: set[int] = set()
        self.aside: list[tuple[int, dict[int, Job]]] = []  # by topic id
        self.moving: list[tuple[int, list[int]]] = []  # dead letters that are being appended
        self.busy: set[int] = set()  # ids of queues with a batch under way
        self.is_last = False  # the checkpoint in progress is that of an orderly stop
        self.begin_process()

    def begin_process(self) -> None:
        """What is only in memory begins anew."""
        self.take_backs.clear()
        self.streams.clear()
        self.held_by_streams.clear()
        self.aside.clear()
        self.moving.clear()
        self.busy.clear()
        self.world.engine.table.next_lease_number = 1 + max(self.numbers, default=0)

    # Ways in

    def topic(self, name: str) -> Topic | None:
        """The topic after what is too old has gone, as before every answer."""
        topic = self.world.engine.topics.get(name)
        if topic is not None and topic.is_perishable:
            model = self.models[topic.id]
            model.expire(self.now.ts)
            change = self.world.engine.expire(topic, self.now)
            if change is not None:
                start = topic.start_seq
                self.submit(change, {FrameKind.FLOOR: lambda models: models[topic.id].cut(start)})
        return topic

    def jobs(self, topic: Topic) -> Jobs:
        """Of the queue."""
        assert topic.jobs is not None
        return topic.jobs

    def submit(
        self,
        change: Change,
        effects: dict[FrameKind, Effect],
        commit: Callable[[], None] | None = None,
        take_back: Callable[[], None] | None = None,
    ) -> None:
        """``effects``: what a replay makes of the frames; ``commit`` and ``take_back``: what the
        model makes of the end of the change.
        """
        if take_back is not None:
            self.take_backs[id(change)] = take_back
        self.world.submit(change, effects, partial(self._settled, change, commit))

    def _settled(self, change: Change, commit: Callable[[], None] | None) -> None:
        self.take_backs.pop(id(change), None)
        if commit is not None:
            commit()

    # What time and the log do

    @rule(ms=st.sampled_from(STEPS_MS))
    def time_passes(self, ms: int) -> None:
        self.now = Now(self.now.ts + ms, self.now.ms + ms)

    @rule(ts=st.sampled_from([-300, -50, -1, 1, 60, 400]))
    def wall_clock_steps(self, ts: int) -> None:
        self.now = self.now._replace(ts=self.now.ts + ts)

    @precondition(lambda self: self.world.pending)
    @rule()
    def fail(self) -> None:
        """The log could not be written: nothing that waits has happened, but what was shown as
        gone.
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
        """Where a failure has put jobs in the line is not promised; nor whether deliveries count
        that were over before their claim failed; nor that a lease goes on that was over before its
        extension failed, which was to a sooner deadline.
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
