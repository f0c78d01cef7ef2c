"""Dead letters: exhausted jobs are moved to the dead-letter topic of their queue (§10.6).

    DEAD --a LEASE frame, synced--> DYING --appended there--> --a DELETE frame--> gone
      ^   '-- the log cannot ---.     ^ '-- refused --.         |
      '-------------------------'-----|---------------'         |
                                      '-- no answer, or the log cannot: the batch again
                    tried again after a while, or claimable again by another config

Append first, delete second: after a crash in between the DYING rows tell which jobs are to be
moved, and the key of each copy that it is there. One batch of a queue is under way at a time, until
it is known of each job whether the target has it. Only then the next batch starts, so the target
has to remember the keys of the last batch only (``decisions/0049``). A backup waits for that, too.
A job that a cap, its age or a delete removes in the meantime is not counted as dead-lettered, but
the target may have its copy.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
import trio

from topics.actors.shard.context import ShardContext
from topics.actors.shard.deadlines import Deadline, Deadlines
from topics.actors.shard.queues.copies import COPIES_BYTES, Copy, Sent, send
from topics.actors.shard.room import unwritable
from topics.actors.shard.service import Service
from topics.engine.changes import finish_jobs, lease_jobs
from topics.engine.changes.change import Change
from topics.engine.changes.put_topic import PutTopic
from topics.engine.moved_keys import BATCH_JOBS, copy_key
from topics.engine.queue import claims
from topics.engine.queue.claims import Taken, jobs_of
from topics.engine.topic import Topic
from topics.errors import NotReady, TopicsError
from topics.formats.api.queue_answers import append_request, record_parts, stamped
from topics.formats.api.topic_config import TopicConfig
from topics.storage.wal.progress import Progress

RETRY_MIN_S, RETRY_MAX_S = 1.0, 4.0  # doubled as long as nothing can be moved
MOVES_MAX = 8  # to one shard at once

log = structlog.get_logger()

Rule = tuple[str | None, int]
"""What a config says of dead jobs: the dead-letter topic, and the number of deliveries."""


@dataclass(eq=False, slots=True)
class Move:
    """A queue whose dead jobs are being moved, or wait for another attempt (``retry``).

    ``rule`` is the rule of the batch in flight, and ``trouble`` the error code that stopped the
    last one. ``target_shard`` is the shard for which the batch counts as in flight. With
    ``is_unsettled``, the target may have copies of jobs that are still in the queue, so the move
    counts in `Moves`.
    """

    topic: Topic
    rule: Rule
    retry_s: float = 0.0
    retry: Deadline | None = None
    trouble: str = ""
    target_shard: int | None = None
    is_unsettled: bool = False


class MoveLimit:
    """Bounds how many moves to each shard are under way at once: one holds up to 1 MiB of records,
    and a shard that does not answer stops the moves to its topics and no others.

        enter --fewer than MOVES_MAX--> started --leave--> the first that waits, in a later turn
          '--as many--> waits
    """

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._under_way: dict[int, int] = {}
        self._waiting: dict[int, deque[Callable[[], object]]] = {}

    def enter(self, shard: int, start: Callable[[], object]) -> None:
        """Call ``start`` once there is room; whoever is started leaves when it is done."""
        under_way = self._under_way.get(shard, 0)
        if under_way == MOVES_MAX:
            self._waiting.setdefault(shard, deque()).append(start)
            return
        self._under_way[shard] = under_way + 1
        start()

    def leave(self, shard: int) -> None:
        """A move is over."""
        waiting = self._waiting.get(shard)
        if waiting:
            self._deadlines.call_at(-math.inf, waiting.popleft())
        else:
            self._under_way[shard] -= 1


class DeadLetters(Service):
    """Moves the dead jobs of all queues of a shard. ``note_claimable`` is told of queues some of
    whose dead jobs are claimable again.
    """

    def __init__(self, context: ShardContext, note_claimable: Callable[[Topic], object]) -> None:
        self._context, self._engine, self._commits = context, context.engine, context.commits
        self._note_claimable, self._move_limit = note_claimable, MoveLimit(context.deadlines)
        self._moves: dict[int, Move] = {}  # by topic id

    async def run(self) -> None:
        """Go on with what a restart has found: first with batches that were under way."""
        queues = [topic for topic in self._engine.topics.values() if topic.jobs is not None]
        with self._context.turn():
            for topic in sorted(queues, key=lambda topic: not jobs_of(topic).dying):
                self.wake(topic)

    def wake(self, topic: Topic) -> None:
        """The queue may have dead jobs. Only inside of a turn."""
        if topic.id not in self._moves and _is_moving(topic):
            move = self._moves[topic.id] = Move(topic, _rule(topic.config))
            if jobs_of(topic).dying:  # found by a restart
                self._unsettle(move)
            self._begin(move)

    def on_config(self, change: Change) -> None:
        """Look at the dead jobs of a queue anew when its config has changed."""
        topic, jobs = change.topic, change.topic.jobs
        if jobs is None:
            return
        move = self._moves.get(topic.id)
        waiting = move if move is not None and move.retry is not None else None
        if isinstance(change, PutTopic):
            is_outdated = waiting is not None and waiting.rule != _rule(topic.config)
            self._revive(topic, with_batch=is_outdated)
        if waiting is not None and (topic.deleted or not jobs.dying):
            self._forget(waiting)

    def _forget(self, move: Move) -> None:
        """The move is over, or begins anew later."""
        if move.retry is not None:
            move.retry.cancel()
        self._make_way(move)
        del self._moves[move.topic.id]

    def _unsettle(self, move: Move) -> None:
        if not move.is_unsettled:
            move.is_unsettled = True
            self._context.moves.enter()

    def _make_way(self, move: Move) -> None:
        if move.is_unsettled:
            move.is_unsettled = False
            self._context.moves.leave()
        if move.target_shard is not None:
            self._move_limit.leave(move.target_shard)
            move.target_shard = None

    def _revive(self, topic: Topic, *, with_batch: bool) -> None:
        """The next pass looks at the dead jobs again, and at those that are on their way under a
        rule that counts no more.
        """
        if with_batch:
            lease_jobs.keep_dead(topic, tuple(jobs_of(topic).dying))
        if jobs_of(topic).dead:
            jobs_of(topic).revive_dead()
            self._note_claimable(topic)

    # One batch

    def _begin(self, move: Move) -> None:
        topic, move.retry = move.topic, None
        if not _is_moving(topic) or self._context.is_stopping:
            self._forget(move)
        elif topic.config.dead_letter is None or not topic.config.max_deliveries:
            self._forget(move)
            self._revive(topic, with_batch=True)
        elif move.target_shard is not None:
            self._mark(move)
        else:
            move.rule = _rule(topic.config)
            shard = self._context.peers.shard_of(topic.config.dead_letter)
            self._move_limit.enter(shard, partial(self._enter, move, shard))

    def _enter(self, move: Move, shard: int) -> None:
        move.target_shard = shard
        self._mark(move)

    def _mark(self, move: Move) -> None:
        """Tell the log which jobs are moved now, unless it knows of a batch that is under way."""
        topic, context = move.topic, self._context
        if topic.deleted or move.rule != _rule(topic.config):
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
            jobs = claims.dead(topic, self._engine.store, BATCH_JOBS, COPIES_BYTES, context.now)
        except OSError as error:
            self._end(move, unwritable(error))
            return
        change = lease_jobs.dying(topic, len(jobs), context.now)

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
        """Append copies of the jobs that are still in the queue.

        A hold waits for a batch whose result is unknown. So such a batch must not wait for the
        hold.
        """
        moves = self._context.moves
        if not move.is_unsettled and moves.defer_if_held(partial(self._copy, move, jobs)):
            return
        topic, target = move.topic, move.rule[0]
        assert target is not None, "jobs are moved to a topic"
        dying = jobs_of(topic).dying
        copies = [self._copy_of(topic, seq, record) for seq, record in jobs if seq in dying]
        if topic.deleted or not copies:
            self._end(move)
        else:
            self._unsettle(move)
            send(self._context.peers, target, copies, partial(self._copied, move))

    @staticmethod
    def _copy_of(topic: Topic, seq: int, record: bytes) -> Copy:
        config, parts = topic.config, record_parts(record)
        # A restart may know no count.
        deliveries = jobs_of(topic).deliveries(seq) or config.max_deliveries
        error = jobs_of(topic).errors.get(seq)
        parts = parts._replace(meta=stamped(parts.meta, topic.name, deliveries, seq, error))
        key = copy_key("dead_letter", topic.name, topic.epoch, seq)
        return Copy(seq, append_request(parts, key, None if config.auto_create else False))

    def _copied(self, move: Move, sent: Sent) -> None:
        # After `NotReady` the target may have a copy: the job stays in the batch.
        refused = [seq for seq, why in sent.refused.items() if not isinstance(why, NotReady)]
        lease_jobs.keep_dead(move.topic, refused)
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
            self._end(move, unwritable(refusal) if refusal else None)
            return

        def settle(result: Progress | OSError) -> None:
            if isinstance(result, OSError):
                self._end(move, unwritable(result))
                return
            move.retry_s = 0.0
            self._end(move, trouble)

        self._commits.submit(finish_jobs.bury(topic, seqs, context.now), settle)

    def _end(self, move: Move, trouble: TopicsError | None = None) -> None:
        """Go on with the next batch, or after a while if there was trouble. A batch whose fate is
        not known counts as under way: no other may push its keys out of the target.
        """
        topic, is_outdated = move.topic, move.rule != _rule(move.topic.config)
        if is_outdated and not topic.deleted:
            self._revive(topic, with_batch=True)
        if is_outdated or topic.deleted or not jobs_of(topic).dying:
            self._make_way(move)
        if trouble is None or not _is_moving(topic):
            move.trouble = ""
            self._begin(move)
            return
        if move.trouble != trouble.code:
            move.trouble = trouble.code
            log.warning(
                "dead letters wait",
                topic=topic.name,
                dead_letter=move.rule[0],
                reason=trouble.message,
            )
        move.retry_s = min(max(2 * move.retry_s, RETRY_MIN_S), RETRY_MAX_S)
        until = trio.current_time() + move.retry_s
        move.retry = self._context.deadlines.call_at(until, partial(self._begin, move))


def _rule(config: TopicConfig) -> Rule:
    return config.dead_letter, config.max_deliveries


def _is_moving(topic: Topic) -> bool:
    """Whether jobs of the queue are to be moved."""
    return not topic.deleted and bool(jobs_of(topic).dead or jobs_of(topic).dying)
