"""Lines: give the jobs of queues to those who wait for them (§10.2, §10.8).

What makes a line due: a claimer that joins, a commit that makes jobs claimable or gives a stream
room, jobs that are released, a window that is over, and the time at which jobs become claimable by
themselves, or full streams lose jobs by age. A turn serves the lines that are due,
``JOBS_PER_TURN`` jobs over all of them, each line in its turn. A line without claimers is
forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import structlog
import trio

from topics.actors.shard.context import ShardContext
from topics.actors.shard.group_commit import NO_IO
from topics.actors.shard.queues.claimers import Claimer
from topics.actors.shard.queues.line import Line, Share
from topics.actors.shard.service import Service
from topics.engine.changes.append import Append
from topics.engine.changes.change import Change
from topics.engine.changes.delete_topic import DeleteTopic
from topics.engine.changes.lease_jobs import LeaseChange
from topics.engine.changes.put_topic import PutTopic
from topics.engine.queue.claims import jobs_of
from topics.engine.topic import Topic
from topics.errors import NotReady, TopicNotFound

JOBS_PER_TURN = 4096  # to all lines, about
JOB_BYTES = 4096  # a job with more bytes counts as several
TURN_BYTES_MAX = JOBS_PER_TURN * JOB_BYTES
LINE_COST = 4  # in jobs: what it costs to find that a line gets nothing
RETRY_S = 1.0  # after the log has refused leases, or age has found damage
ALARM_MIN_S = 0.005  # an alarm may be early; it is never set for a time that has passed

log = structlog.get_logger()


class Lines(Service):
    """The lines of all queues of a shard. ``on_dead(topic)``: jobs were found to be exhausted."""

    def __init__(self, context: ShardContext, on_dead: Callable[[Topic], object]) -> None:
        self._context, self._commits, self._engine = context, context.commits, context.engine
        self._on_dead = on_dead
        self._lines: dict[int, Line] = {}  # by topic id
        self._due: dict[Line, None] = {}  # in the order in which turns serve them
        self._budget = 0  # jobs that this turn may still lease

    def __len__(self) -> int:
        return len(self._lines)

    # Who waits

    def join(self, claimer: Claimer, *, is_patient: bool) -> None:
        """Put a claimer at the end of its line, in a turn. ``is_patient``: until `hurry`."""
        line = self._line(claimer.topic)
        line.join(claimer, is_patient=is_patient)
        self._make_due(line)

    def leave(self, claimer: Claimer) -> None:
        """Take a claimer out of its line, if it waits there."""
        line = self._lines.get(claimer.topic.id)
        if line is not None:
            line.leave(claimer)
            self._drop_if_empty(line)

    def hurry(self, claimer: Claimer) -> None:
        """Its time is over: it gets what its cohort is dealt, or nothing at once."""
        line = self._lines[claimer.topic.id]
        if line.window is not None or line.slices is not None:
            line.impatient[claimer] = None
            return
        self.leave(claimer)
        claimer.get_nothing()

    def follow(self, stream: Claimer) -> None:
        """Let a work stream join whenever it has room, until `unfollow`."""
        self._line(stream.topic).streams[stream.holder] = stream

    def unfollow(self, stream: Claimer) -> None:
        """Take a work stream out of its line for good."""
        line = self._lines.get(stream.topic.id)
        if line is not None:
            line.streams.pop(stream.holder, None)
            line.leave(stream)
            self._drop_if_empty(line)

    def note_claimable(self, topic: Topic) -> None:
        """Jobs may have become claimable, or streams may have room."""
        self._context.note_changed(topic)
        line = self._lines.get(topic.id)
        if line is None:
            jobs_of(topic).leases.loosened.clear()
        elif line not in self._due:
            self._make_due(line)
            # It may be noted behind `on_due`, or outside of any turn.
            self._context.deadlines.wake()

    def _make_due(self, line: Line) -> None:
        self._due[line] = None
        self.is_due = True

    def _line(self, topic: Topic) -> Line:
        line = self._lines.get(topic.id)
        if line is None:
            line = self._lines[topic.id] = Line(topic)
            topic.follow(self._changed)
        return line

    # Hooks

    def _changed(self, change: Change) -> None:
        """Note what a commit may give to those who wait; end the line of a queue that is gone."""
        topic = change.topic
        if isinstance(change, DeleteTopic):
            self._end(self._lines[topic.id])
        elif isinstance(change, Append | PutTopic) or jobs_of(topic).leases.loosened:
            self.note_claimable(topic)

    def on_due(self) -> None:
        """Serve the lines that are due; some of them may wait for the next turn."""
        self._budget = JOBS_PER_TURN
        for line in tuple(self._due):
            if self._budget <= 0:
                break
            if line in self._due:
                del self._due[line]
                self._budget -= LINE_COST
                self._visit(line)
        self.is_due = bool(self._due)

    def on_loss(self) -> None:
        """A topic that is gone now was never made; leases that were taken back are claimable."""
        for line in tuple(self._lines.values()):
            if line.topic.deleted:
                self._end(line)
            elif line.topic.config.leases_durable:
                # Not at once: the log would refuse the same leases, turn by turn.
                self._set_alarm(line, RETRY_S)
            else:
                self._make_due(line)

    # Serving

    def _visit(self, line: Line) -> None:
        topic = line.topic
        if topic.deleted:
            return  # its commit ends the line; if the log loses it, the line is due again
        self._context.freshen(topic)
        jobs = jobs_of(topic)
        jobs.advance(self._context.now.ms)
        line.admit(jobs.leases.loosened)
        jobs.leases.loosened.clear()
        if line.waiting:
            self._serve(line)
        for claimer in line.newcomers:
            if claimer in line.waiting:
                claimer.begin_waiting()
        line.newcomers.clear()
        if not self._drop_if_empty(line):
            self._await_jobs(line)

    def _serve(self, line: Line) -> None:
        try:
            self._context.check_leasable(line.topic)
        except NotReady as error:
            self._put_off(line, error)
            return
        jitter_ms = line.topic.config.claim_jitter_ms
        if line.slices is not None:
            self._deal(line)
        elif not jitter_ms:
            line.close_window()
            self._serve_in_order(line)
        elif line.window is None and (line.unheard or self._ready(line.topic)):
            until = trio.current_time() + jitter_ms / 1000
            line.window = self._context.deadlines.call_at(until, partial(self._form, line))

    def _put_off(self, line: Line, error: NotReady) -> None:
        """The shard cannot write: polls are told, streams wait."""
        for claimer in tuple(line.waiting):
            if not claimer.is_stream:
                line.leave(claimer)
                claimer.end(error)
        self._set_alarm(line, RETRY_S)

    def _serve_in_order(self, line: Line) -> None:
        while line.waiting:
            if self._budget <= 0:
                self._due[line] = None
                return
            claimer = next(iter(line.waiting))
            if not claimer.room:  # an ack that made room was taken back
                line.leave(claimer)
            elif not self._claim(line, [Share(claimer, claimer.room)], evenly=False) and (
                self._budget > 0
            ):
                break
        line.unheard.clear()
        self._answer_impatient(line, tuple(line.impatient))

    def _form(self, line: Line) -> None:
        """The window of a line is over."""
        line.window = None
        line.form_cohort(self._ready(line.topic), JOBS_PER_TURN)
        self._make_due(line)

    def _deal(self, line: Line) -> None:
        assert line.slices is not None, "a cohort is formed before it is dealt to"
        has_more = False
        while line.slices and self._budget > 0:
            shares = [share for share in line.slices.popleft() if share.claimer in line.waiting]
            has_more = bool(shares) and self._claim(line, shares, evenly=True) > 0
            if shares and jobs_of(line.topic).is_unfinished:
                line.slices.appendleft(shares)
        if line.slices:
            self._due[line] = None
            return
        line.slices = None
        self._answer_impatient(line, [each for each in line.impatient if each not in line.unheard])
        if line.unheard or (line.waiting and has_more):
            self._due[line] = None  # a window may open

    def _claim(self, line: Line, shares: Sequence[Share], *, evenly: bool) -> int:
        """Lease jobs to these claimers; how many. 0: there are no more, or the turn is over."""
        asks = [share.claimer.ask(share.max_jobs) for share in shares]
        bounds = [share.claimer.max_bytes for share in shares]
        max_bytes = min(max(TURN_BYTES_MAX, *bounds), sum(bounds))
        try:
            changes = self._engine.claim(
                line.topic, asks, self._context.now, evenly=evenly, max_bytes=max_bytes
            )
        except OSError as error:
            self._fail(line, shares, error)
            return 0
        for share, change in zip(shares, changes, strict=True):
            if change.jobs:
                self._hand_over(line, share.claimer, change)
        if jobs_of(line.topic).is_unfinished:
            self._budget = 0
        if jobs_of(line.topic).dead:
            self._on_dead(line.topic)
        return sum(len(change.jobs) for change in changes)

    def _hand_over(self, line: Line, claimer: Claimer, change: LeaseChange) -> None:
        size = sum(len(job.record) for job in change.jobs)
        self._budget -= len(change.jobs) + size // JOB_BYTES
        line.leave(claimer)
        claimer.served(change)
        self._context.note_changed(change.topic)  # leases in memory are not committed
        if change.frames:
            self._commits.submit(change, partial(claimer.settle, change))
        else:
            claimer.settle(change, NO_IO)

    @staticmethod
    def _answer_impatient(line: Line, claimers: Iterable[Claimer]) -> None:
        for claimer in claimers:
            line.leave(claimer)
            claimer.get_nothing()

    def _fail(self, line: Line, shares: Sequence[Share], error: OSError) -> None:
        """Records cannot be read: it costs these claimers their jobs, and nobody else."""
        log.error("claim failed", topic=line.topic.name, exc_info=error)
        for share in shares:
            line.leave(share.claimer)
            share.claimer.end(error)

    def _ready(self, topic: Topic) -> int:
        jobs = jobs_of(topic)
        jobs.advance(self._context.now.ms)
        return jobs.counters(topic.count).ready

    # Time, and the end of a line

    def _await_jobs(self, line: Line) -> None:
        """Set the alarm to the time at which jobs become claimable, or age may give a full stream
        room for one that is, unless something comes before.

        An earlier alarm stays: when it goes off, the line is visited and it is set anew.
        """
        if line in self._due or line.window is not None:
            return
        now, next_at = self._commits.now(), jobs_of(line.topic).next_at
        if next_at is not None:
            self._set_alarm(line, max(ALARM_MIN_S, (next_at - now.ms) / 1000))
        if not line.waiting and self._ready(line.topic):
            expires_at = self._engine.next_expiry(line.topic)
            if expires_at is not None:  # what is due and still there is damaged
                left_ms = expires_at - now.ts
                self._set_alarm(line, left_ms / 1000 if left_ms > 0 else RETRY_S)

    def _set_alarm(self, line: Line, seconds: float) -> None:
        at = trio.current_time() + seconds
        if line.alarm is None or at < line.alarm.at:
            if line.alarm is not None:
                line.alarm.cancel()
            line.alarm = self._context.deadlines.call_at(at, partial(self._alarmed, line))

    def _alarmed(self, line: Line) -> None:
        line.alarm = None
        self._make_due(line)

    def _end(self, line: Line) -> None:
        """The queue is gone."""
        claimers = dict.fromkeys((*line.waiting, *line.streams.values()))
        line.waiting.clear()
        line.impatient.clear()
        line.streams.clear()
        self._drop_if_empty(line)
        for claimer in claimers:
            claimer.end(TopicNotFound(line.topic.name))

    def _drop_if_empty(self, line: Line) -> bool:
        if not line.is_empty:
            return False
        line.close_window()
        if line.alarm is not None:
            line.alarm.cancel()
        if self._lines.get(line.topic.id) is line:
            del self._lines[line.topic.id]
            line.topic.unfollow(self._changed)
            jobs_of(line.topic).leases.loosened.clear()
        self._due.pop(line, None)
        return True
