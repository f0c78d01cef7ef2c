"""Dead letters: exhausted jobs are moved to the dead-letter topic of their queue (§10.6).

    DEAD --a LEASE frame, synced--> DYING --appended there--> --a DELETE frame--> gone
      ^   '-- the log cannot ---.       '-- refused --.         '-- the log cannot --.
      '-------------------------'---------------------'-------------------------------'
                    tried again after a while, or claimable again by another config

Append first, delete second: after a crash in between the DYING rows tell which jobs are to be
moved, and the key of each copy that it is there. One batch of a queue is under way at a time. A job
that a cap, its age or a delete takes meanwhile is not counted; its copy may be there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
import trio

from topics.actors.shard.context import ShardContext
from topics.actors.shard.deadlines import Deadline
from topics.actors.shard.queues.copies import COPIES_BYTES, Copy, Sent, copy_key, send
from topics.actors.shard.queues.lanes import Lanes
from topics.actors.shard.room import unwritable
from topics.actors.shard.service import Service
from topics.engine.changes.change import Change
from topics.engine.changes.delete_topic import DeleteTopic
from topics.engine.changes.put_topic import PutTopic
from topics.engine.queue.claims import Taken, jobs_of
from topics.engine.topic import Topic
from topics.errors import TopicsError
from topics.formats.api.dead_letters import append_request, record_parts, stamped
from topics.formats.api.topic_config import TopicConfig
from topics.storage.wal.progress import Progress

BATCH_JOBS = 64
RETRY_MIN_S, RETRY_MAX_S = 1.0, 4.0  # doubled as long as nothing can be moved

log = structlog.get_logger()


@dataclass(eq=False, slots=True)
class Move:
    """A queue whose dead jobs are being moved, or wait for another attempt (``retry``). The
    ``config`` is that of the batch under way; ``trouble``: code of what stopped the last one.
    """

    topic: Topic
    config: TopicConfig
    retry_s: float = 0.0
    retry: Deadline | None = None
    trouble: str = ""


class DeadLetters(Service):
    """Moves the dead jobs of all queues of a shard. ``note_claimable`` is told of queues some of
    whose dead jobs are claimable again.
    """

    def __init__(self, context: ShardContext, note_claimable: Callable[[Topic], object]) -> None:
        self._context, self._engine, self._commits = context, context.engine, context.commits
        self._note_claimable, self._lanes = note_claimable, Lanes(context.deadlines)
        self._moves: dict[int, Move] = {}  # by topic id

    async def run(self) -> None:
        """Go on with what a restart has found."""
        self._context.begin_turn()
        for topic in tuple(self._engine.topics.values()):
            if topic.jobs is not None and topic.jobs.dead:
                self.wake(topic)
        self._context.end_turn()

    def wake(self, topic: Topic) -> None:
        """The queue has dead jobs. Only inside of a turn."""
        if topic.id not in self._moves:
            move = self._moves[topic.id] = Move(topic, topic.config)
            self._begin(move)

    def on_commit(self, change: Change) -> None:
        """Look at the dead jobs of a queue anew when its config has changed."""
        topic, jobs = change.topic, change.topic.jobs
        if jobs is None:
            return
        move = self._moves.get(topic.id)
        if isinstance(change, PutTopic) and jobs.dead:
            self._engine.revive_dead(topic)
            self._note_claimable(topic)
        elif not isinstance(change, DeleteTopic):
            return
        if move is not None and move.retry is not None:
            self._forget(move)

    def _forget(self, move: Move) -> None:
        if move.retry is not None:
            move.retry.cancel()
        del self._moves[move.topic.id]

    # One batch

    def _begin(self, move: Move) -> None:
        topic, move.retry = move.topic, None
        move.config = config = topic.config
        if topic.deleted or not jobs_of(topic).dead or self._context.is_stopping:
            self._forget(move)
        elif config.dead_letter is None or not config.max_deliveries:
            self._forget(move)
            self._engine.revive_dead(topic)
            self._note_claimable(topic)
        else:
            shard = self._context.peers.shard_of(config.dead_letter)
            self._lanes.enter(shard, partial(self._mark, move))

    def _mark(self, move: Move) -> None:
        """Tell the log which jobs are moved now."""
        topic, context = move.topic, self._context
        if topic.deleted or topic.config is not move.config:
            self._end(move)
            return
        if context.held.defer_call_if_held(topic.name, partial(self._mark, move)):
            return
        refusal = context.room.refusal(grows=False)
        if refusal is not None:
            self._end(move, unwritable(refusal))
            return
        context.freshen(topic)
        try:
            jobs = self._engine.dead(topic, BATCH_JOBS, COPIES_BYTES, context.now)
        except OSError as error:
            self._end(move, unwritable(error))
            return
        change = self._engine.dying(topic, len(jobs), context.now)

        def settle(result: Progress | OSError) -> None:
            if isinstance(result, OSError):
                self._end(move, unwritable(result))
            else:
                self._copy(move, jobs)

        if change.frames:
            self._commits.submit(change, settle)
        else:
            self._copy(move, jobs)

    def _copy(self, move: Move, jobs: Sequence[Taken]) -> None:
        """Append those jobs that are still there."""
        topic, target = move.topic, move.config.dead_letter
        assert target is not None, "jobs are moved to a topic"
        dying = jobs_of(topic).dying
        copies = [self._copy_of(move, seq, record) for seq, record in jobs if seq in dying]
        if topic.deleted or not copies:
            self._engine.keep_dead(topic, [copy.seq for copy in copies])
            self._end(move)
        else:
            send(self._context.peers, target, copies, partial(self._copied, move))

    def _copy_of(self, move: Move, seq: int, record: bytes) -> Copy:
        topic, config, parts = move.topic, move.config, record_parts(record)
        # A restart may know no count.
        deliveries = jobs_of(topic).deliveries(seq) or config.max_deliveries
        parts = parts._replace(meta=stamped(parts.meta, topic.name, deliveries, seq))
        key = copy_key("dead_letter", topic, seq)
        return Copy(seq, append_request(parts, key, None if config.auto_create else False))

    def _copied(self, move: Move, sent: Sent) -> None:
        self._engine.keep_dead(move.topic, sent.refused)
        trouble = next(iter(sent.refused.values()), None)
        if sent.appended:
            self._bury(move, sent.appended, trouble)
        else:
            self._end(move, trouble)

    def _bury(self, move: Move, seqs: Sequence[int], trouble: TopicsError | None) -> None:
        """Delete the jobs that are there now. ``trouble``: why others are not."""
        topic, context = move.topic, self._context
        again = partial(self._bury, move, seqs, trouble)
        if context.held.defer_call_if_held(topic.name, again):
            return
        refusal = context.room.refusal(grows=False)
        if topic.deleted or refusal is not None:
            self._engine.keep_dead(topic, seqs)
            self._end(move, unwritable(refusal) if refusal else None)
            return

        def settle(result: Progress | OSError) -> None:
            if isinstance(result, OSError):
                self._end(move, unwritable(result))
                return
            move.retry_s = 0.0
            self._end(move, trouble)

        self._commits.submit(self._engine.bury(topic, seqs, context.now), settle)

    def _end(self, move: Move, trouble: TopicsError | None = None) -> None:
        """The batch is over: go on with the next one, or after a while if there was trouble."""
        topic = move.topic
        assert move.config.dead_letter is not None, "jobs are moved to a topic"
        self._lanes.leave(self._context.peers.shard_of(move.config.dead_letter))
        if topic.config is not move.config and not topic.deleted:
            # The config of this batch counts no more.
            self._engine.revive_dead(topic)
            self._note_claimable(topic)
        if trouble is None or topic.deleted or not jobs_of(topic).dead:
            move.trouble = ""
            self._begin(move)
            return
        if move.trouble != trouble.code:
            move.trouble = trouble.code
            log.warning(
                "dead letters wait",
                topic=topic.name,
                dead_letter=move.config.dead_letter,
                reason=trouble.message,
            )
        move.retry_s = min(max(2 * move.retry_s, RETRY_MIN_S), RETRY_MAX_S)
        until = trio.current_time() + move.retry_s
        move.retry = self._context.deadlines.call_at(until, partial(self._begin, move))
