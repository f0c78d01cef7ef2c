"""Redrive: records of a dead-letter topic, or of any other, are moved back.

A window of records at a time: one message to each of their targets, and a delete of what each has
taken. Append first, delete second; the key of a copy keeps a redrive that is repeated after a crash
from duplicating the record. One redrive of a topic runs at a time, and others wait for it. After
`TIME_MAX_S` a redrive chooses no further records and returns the number of records moved so far.
The window in flight is still finished.

    search a slice --> wait until moves may begin --> choose --> send --> all settled --> search ...
                                                        '-- nothing to send --> search ...
    over: count what remains, slice by slice --> answer

A redrive holds its lock and its entry in `Moves` from the first copy of a window until no copy is
in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import trio

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.replies import answer_error, reply_json
from topics.actors.shard.context import ShardContext
from topics.actors.shard.queues.copies import Sent, send
from topics.actors.shard.queues.transfer import RedriveCall, Transfer
from topics.actors.shard.room import unwritable
from topics.actors.shard.service import Service
from topics.engine.changes import finish_jobs
from topics.engine.topic import Topic
from topics.errors import Forbidden, InvalidRequest
from topics.formats.api import queue_answers
from topics.formats.api.queue_bodies import decode_redrive
from topics.formats.names import covered
from topics.formats.wire.calls import NO_RESULT, REDRIVE
from topics.storage.wal.progress import Progress

Result = TypeVar("Result")

TIME_MAX_S: Final = 20.0


class Redrives(Service):
    """Handles `queue.redrive`. ``note_claimable`` is told of queues whose jobs are claimable again,
    because they could not be moved.
    """

    def __init__(self, context: ShardContext, note_claimable: Callable[[Topic], object]) -> None:
        self._context, self._engine, self._commits = context, context.engine, context.commits
        self._note_claimable = note_claimable
        self._locks: dict[int, trio.Lock] = {}  # by topic id
        self._slices = trio.Lock()

    def register(self, router: MessageRouter) -> None:
        """Serve all sessions of ``router``."""
        router.serve(REDRIVE, self._redrive)

    def _redrive(self, request: RedriveCall) -> None:
        context, params = self._context, request.params
        context.check_writable()
        asked = decode_redrive(request.attachment)
        if asked.to == params.topic:
            raise InvalidRequest("to must be another topic than that of the path", field="to")
        if asked.to is not None and not covered(asked.to, params.prefixes):
            raise Forbidden("to is outside the key's prefixes", field="to")
        topic = context.fresh_topic(params.topic)
        request.outlast()
        request.release()
        transfer = Transfer(request, topic, asked, self._engine)
        until = trio.current_time() + TIME_MAX_S
        answer = partial(context.start, self._answer, transfer)
        transfer.deadline = context.deadlines.call_at(until, answer)
        context.start(self._run, transfer)

    async def _run(self, transfer: Transfer) -> None:
        lock = self._locks.setdefault(transfer.topic.id, trio.Lock())
        async with lock:
            while self._may_choose(transfer):
                await self._move_window(transfer)
        if not lock.locked():
            self._locks.pop(transfer.topic.id, None)
        await self._answer(transfer)

    def _may_choose(self, transfer: Transfer) -> bool:
        return not (transfer.is_over or self._context.is_stopping)

    async def _move_window(self, transfer: Transfer) -> None:
        """Move a window of records, and wait until each record is moved or put back.

        A backup waits for that, too.
        """
        context = self._context
        try:
            await self._take_turn(transfer.search)
            await context.moves.wait_free()
            if not self._may_choose(transfer):
                return
            context.begin_turn()
            context.freshen(transfer.topic)
            copies = transfer.choose(context.now)
        except Exception as error:
            self._fail(transfer, error)
            return
        for target, those in copies.items():
            send(context.peers, target, those, partial(self._sent, transfer, target))
        self._tell_claimable(transfer)
        if not transfer.in_flight:
            context.end_turn()
            return
        context.moves.enter()
        context.end_turn()
        await transfer.wait_settled()
        context.moves.leave()

    async def _take_turn(self, step: Callable[[], Result]) -> Result:
        """Run a step of a few milliseconds.

        In each iteration of the shard loop, only one redrive of the shard runs a step.
        """
        async with self._slices:
            return step()

    def _fail(self, transfer: Transfer, error: Exception) -> None:
        """Nothing of this window was sent."""
        with self._context.turn():
            transfer.put_back_all(self._context.now)
            self._tell_claimable(transfer)
            transfer.is_stopped = True
            if self._begin_answer(transfer):
                answer_error(transfer.request, error)

    # Each ends in a turn

    def _sent(self, transfer: Transfer, target: str, sent: Sent) -> None:
        transfer.refuse(target, sent.refused, self._context.now)
        self._tell_claimable(transfer)
        if sent.appended:
            self._delete(transfer, sent.appended)

    def _delete(self, transfer: Transfer, seqs: Sequence[int]) -> None:
        """Delete records that their target has now."""
        context, topic = self._context, transfer.topic
        if topic.deleted:
            transfer.finish(seqs)
            return
        if context.held.defer_call_if_held(topic.name, partial(self._delete, transfer, seqs)):
            return
        refusal = context.room.refusal(grows=False)
        if refusal is not None:
            self._keep(transfer, seqs, refusal)
            return

        def settle(result: Progress | OSError) -> None:
            if isinstance(result, OSError):
                self._keep(transfer, seqs, result)
            else:
                transfer.finish(seqs)

        self._commits.submit(finish_jobs.remove(topic, seqs, context.now), settle)

    def _keep(self, transfer: Transfer, seqs: Sequence[int], error: OSError) -> None:
        """The log cannot tell that they are gone: they stay, though the target has them."""
        transfer.is_stopped = True
        for seq in seqs:
            transfer.skip(seq, unwritable(error).code, self._context.now)
        self._tell_claimable(transfer)

    def _tell_claimable(self, transfer: Transfer) -> None:
        if transfer.topic.jobs is not None and transfer.has_put_back:
            transfer.has_put_back = False
            self._note_claimable(transfer.topic)

    @staticmethod
    def _begin_answer(transfer: Transfer) -> bool:
        """Whether it has not been answered yet."""
        if transfer.is_answered:
            return False
        transfer.is_answered = True
        assert transfer.deadline is not None, "a redrive has an end"
        transfer.deadline.cancel()
        return True

    async def _answer(self, transfer: Transfer) -> None:
        """Count the remaining records, and send the result.

        Copies that are still in flight count as remaining until they are moved.
        """
        if not self._begin_answer(transfer):
            return
        session, clock = transfer.request.session, self._context.clock
        try:
            while not session.closed:
                if not await self._take_turn(lambda: transfer.count_slice(clock())):
                    break
        except Exception as error:
            with self._context.turn():
                answer_error(transfer.request, error)
            return
        with self._context.turn():
            body = queue_answers.redriven(
                transfer.topic.name,
                transfer.moved,
                transfer.remaining,
                transfer.skipped,
                transfer.reason.code if transfer.reason is not None else None,
            )
            reply_json(transfer.request, NO_RESULT, body, transfer.request.params.at)
