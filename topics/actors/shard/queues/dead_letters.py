"""Dead letters: moves exhausted jobs to the dead-letter topic of their queue (§10.6).

    state  event                                     next state
    DEAD   a LEASE frame for the batch is synced     DYING
    DEAD   the log cannot write the frame            DEAD, retried after a pause
    DYING  `mover.move` has moved the job            deleted from the queue
    DYING  the target has refused the job            DEAD, retried after a pause
    DYING  the outcome of the move is unknown        DYING, the same batch is retried after a pause
    any    the config has another dead-letter rule   claimable again

A queue of class `ephemeral` writes no frame, because its jobs are lost when the process ends. After
a crash, the log and the checkpoint identify the jobs of other queues that are to be moved.

Each queue with dead jobs has a task, which moves one batch at a time until the outcome of each of
its jobs is known. Only then does the next batch start, so the target needs to keep only the keys of
the last batch (``decisions/0049``). A backup also waits until all outcomes are known. A job that is
removed by a cap, by its age or by a delete in the meantime is not counted as dead-lettered, but the
target may have a copy of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from topics.actors.shard.context import ShardContext
from topics.actors.shard.disk_space import unwritable
from topics.actors.shard.queues import mover
from topics.actors.shard.queues.mover import COPIES_BYTES, RecordCopy
from topics.actors.shard.service import Service
from topics.engine.changes import finish_jobs, lease_jobs
from topics.engine.changes.change import Change
from topics.engine.changes.put_topic import PutTopic
from topics.engine.moved_keys import BATCH_JOBS
from topics.engine.queue import claims
from topics.engine.queue.claims import Taken, jobs_of
from topics.engine.topic import Topic
from topics.errors import TopicsError
from topics.formats.api.queue_answers import record_parts, stamped
from topics.formats.api.topic_config import TopicConfig

RETRY_MIN_S, RETRY_MAX_S = 1.0, 4.0  # bounds of the pause, which doubles while no job can be moved
# Maximum number of batches in flight to one shard. Each contains about 1 MiB of records at most. If
# a shard does not reply, only moves to its own topics stop.
MOVES_MAX: Final = 8

log = structlog.get_logger()

Rule = tuple[str | None, int]
"""The dead-letter topic of a config, and its maximum number of deliveries."""


@dataclass(eq=False, slots=True)
class DeadLetterQueue:
    """A queue whose dead jobs are being moved according to ``rule``.

    ``changed`` interrupts the pause before the next attempt, and ``failure`` is the error code of
    the last attempt. If ``is_unsettled``, the target may have copies of jobs that are still in the
    queue, so the queue is counted in `Moves`.
    """

    topic: Topic
    rule: Rule
    retry_s: float = 0.0
    changed: trio.Event = field(default_factory=trio.Event)
    failure: str = ""
    is_unsettled: bool = False


class DeadLetters(Service):
    """Moves the dead jobs of all queues of a shard.

    ``note_claimable`` is called with a queue if some of its dead jobs are claimable again.
    """

    def __init__(self, context: ShardContext, note_claimable: Callable[[Topic], object]) -> None:
        self._context, self._engine = context, context.engine
        self._note_claimable = note_claimable
        # A queue has an entry while its task runs. The task removes it at its end.
        self._queues: dict[int, DeadLetterQueue] = {}  # by topic id
        # Keyed by the shard of the target: limits the batches in memory. Queues acquire a slot in
        # the order of their requests, and tasks that wait for a slot hold no records.
        self._limiters = defaultdict[int, trio.CapacityLimiter](
            lambda: trio.CapacityLimiter(MOVES_MAX)
        )

    async def run(self) -> None:
        """Continue after a restart, first with batches that were in flight."""
        # A batch that was in flight delays backups and the other dead jobs of its queue. So start
        # with these batches.
        queues = [topic for topic in self._engine.topics.values() if topic.jobs is not None]
        for topic in queues:
            if jobs_of(topic).dead_lettering:
                self.wake(topic)
        await trio.lowlevel.checkpoint()  # let their tasks acquire the limiters first
        for topic in queues:
            self.wake(topic)

    def wake(self, topic: Topic) -> None:
        """Move the dead jobs of the queue, if there are any and no task is moving them."""
        # A running task also finds later jobs, because it runs until the queue has no dead jobs.
        if topic.id in self._queues or not _has_dead(topic):
            return
        queue = self._queues[topic.id] = DeadLetterQueue(topic, _rule(topic.config))
        # The batch was in flight when the process stopped. Its outcome is unknown: the target may
        # contain copies of its jobs.
        if jobs_of(topic).dead_lettering:
            queue.is_unsettled = True
            self._context.moves.enter()
        self._context.start(self._move_all, queue)

    def on_config(self, change: Change) -> None:
        """Check the dead jobs of a queue again when its config has changed."""
        topic = change.topic
        if topic.jobs is None:
            return
        # The new config may have another rule. Dead jobs are checked again by the next pass.
        if isinstance(change, PutTopic):
            self._requeue_dead(topic)
        if topic.id in self._queues:
            self._queues[topic.id].changed.set()

    def _requeue_dead(self, topic: Topic, *, with_batch: bool = False) -> None:
        """Make dead jobs claimable. The next claim checks them against the current rule.

        ``with_batch`` includes the jobs of a batch that was started under an earlier rule.
        """
        jobs = jobs_of(topic)
        if with_batch:
            lease_jobs.return_to_dead(topic, tuple(jobs.dead_lettering))
        if jobs.dead:
            jobs.recheck_dead()
            self._note_claimable(topic)

    def _may_move(self, queue: DeadLetterQueue) -> bool:
        rule = _rule(queue.topic.config)
        # `all(rule)`: there is a dead-letter topic, and the number of deliveries is limited.
        is_valid = queue.rule == rule and all(rule) and not self._context.is_stopping
        return is_valid and _has_dead(queue.topic)

    async def _move_all(self, queue: DeadLetterQueue) -> None:
        """Move batches until there are no dead jobs, or the rule of the config changes."""
        topic = queue.topic
        while self._may_move(queue):
            target = queue.rule[0]
            assert target is not None, "the queue has a dead-letter topic"
            # Acquire a slot of the target's shard. If a shard does not reply, only moves to its
            # topics stop.
            async with self._limiters[self._context.peers.shard_of(target)]:
                failure = await self._move_batch(queue, target)
                # The outcome of some jobs is unknown: repeat the same batch.
                while jobs_of(topic).dead_lettering and self._may_move(queue):
                    await self._pause(queue, failure)
                    failure = await self._move_batch(queue, target)
            # The outcome of all jobs of the batch is known, so a backup may run before the next
            # batch.
            self._settle(queue)
            await self._pause(queue, failure)
        # For jobs that become dead later, `wake` creates a new entry and a new task.
        del self._queues[topic.id]
        self._settle(queue)
        # The rule no longer applies to the remaining dead jobs, so make them claimable.
        if not topic.deleted and not self._context.is_stopping:
            self._requeue_dead(topic, with_batch=True)

    def _settle(self, queue: DeadLetterQueue) -> None:
        if queue.is_unsettled:
            queue.is_unsettled = False
            self._context.moves.leave()

    async def _pause(self, queue: DeadLetterQueue, failure: TopicsError | None) -> None:
        """Wait before the next attempt if there was a failure, unless the config changes."""
        if failure is None or not self._may_move(queue):
            queue.failure = ""
            return
        # Log each reason only once, not for every attempt.
        if queue.failure != failure.code:
            queue.failure = failure.code
            log.warning(
                "dead letters not moved",
                topic=queue.topic.name,
                dead_letter=queue.rule[0],
                reason=failure.message,
            )
        # The pause doubles up to the maximum. A successful move resets it.
        queue.retry_s = min(max(2 * queue.retry_s, RETRY_MIN_S), RETRY_MAX_S)
        queue.changed = trio.Event()
        with trio.move_on_after(queue.retry_s):
            await queue.changed.wait()

    # One batch

    async def _move_batch(self, queue: DeadLetterQueue, target: str) -> TopicsError | None:
        """Move a batch of jobs, or repeat the batch in flight if there is one.

        Return the first error if jobs could not be moved.
        """
        topic, context = queue.topic, self._context
        # Wait before the check, because the config may change during the wait.
        await self._begin(queue)
        if not self._may_move(queue):
            return None
        copies = await self._mark(topic)
        if isinstance(copies, OSError):
            return unwritable(copies)
        if topic.deleted or not copies:
            return None
        moved = await mover.move(context, topic, target, copies, finish_jobs.remove_dead_lettered)
        if moved.seqs:
            queue.retry_s = 0.0
        # The target has refused these jobs, so it has no copies of them.
        lease_jobs.return_to_dead(topic, moved.refused)
        return next(iter(moved.failures.values()), None)

    async def _begin(self, queue: DeadLetterQueue) -> None:
        """Wait until the topic may change and moves may begin, and call `Moves.enter`.

        A backup waits for a batch whose outcome is unknown. So such a batch must not wait for the
        backup.
        """
        held, moves, name = self._context.held, self._context.moves, queue.topic.name
        await held.wait_free(name)
        while moves.is_held and not queue.is_unsettled:
            await moves.wait_free()
            await held.wait_free(name)
        if not queue.is_unsettled:
            queue.is_unsettled = True
            moves.enter()

    async def _mark(self, topic: Topic) -> list[RecordCopy] | OSError:
        """Choose the next jobs, log their move if necessary, and return their copies."""
        context = self._context
        # If the log accepts no frames, no job can be moved.
        refusal = context.disk_space.refusal(grows=False)
        if refusal is not None:
            return refusal
        with context.iteration():
            context.remove_expired(topic)
        # The end of the iteration may have committed the deletion of the topic. No frame of the
        # topic may follow its deletion.
        if topic.deleted:
            return []
        try:
            jobs = claims.dead(topic, self._engine.store, BATCH_JOBS, COPIES_BYTES, context.now)
        except OSError as error:
            return error
        # The frame is synced before the first copy (`lease_jobs.begin_dead_lettering`).
        change = lease_jobs.begin_dead_lettering(topic, len(jobs), context.now)
        if change.frames:
            result = await context.commits.submit_and_wait(change)
            if isinstance(result, OSError):
                return result
        # Jobs that were removed while the frame was being written are left out.
        dying = jobs_of(topic).dead_lettering
        return [self._copy_of(topic, job) for job in jobs if job[0] in dying]

    @staticmethod
    def _copy_of(topic: Topic, job: Taken) -> RecordCopy:
        (seq, record), jobs, config = job, jobs_of(topic), topic.config
        # After a restart the number of deliveries may be unknown.
        deliveries = jobs.deliveries(seq) or config.max_deliveries
        parts = record_parts(record)
        meta = stamped(parts.meta, topic.name, deliveries, seq, jobs.errors.get(seq))
        create = None if config.auto_create else False
        return mover.render_copy("dead_letter", topic, seq, parts._replace(meta=meta), create)


def _rule(config: TopicConfig) -> Rule:
    return config.dead_letter, config.max_deliveries


def _has_dead(topic: Topic) -> bool:
    """Return whether the queue has jobs that are to be moved."""
    return not topic.deleted and bool(jobs_of(topic).dead or jobs_of(topic).dead_lettering)
