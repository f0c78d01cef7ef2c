"""Long polls: diffs that wait until there is something to answer (§3).

    WAITING --a commit to the topic--> DUE --a turn reads on--> answered, or WAITING again
    DUE     --more to scan--> DUE in the next turn
    each    --wait_ms is over, the topic is deleted, its records cannot be read--> answered
            --cancelled, its front has gone--> dropped

A diff scans all that was there when it came, whatever its wait_ms, for `SCAN_S_MAX` at most. A poll
is no task: a turn reads on for those that are due, one read each and `POLLS_PER_TURN` at most. What
a commit makes due is read a turn later, so that the answer of the append goes out first.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any

import trio

from topics.actors.link.heads import holds_still
from topics.actors.rpc.message_router import (
    ErrorCode,
    InboundMessage,
    LinkSession,
    MessageRouter,
    RpcContext,
)
from topics.actors.rpc.replies import map_error, request_of, total_ms
from topics.actors.shard.context import ShardContext
from topics.actors.shard.deadlines import Deadline
from topics.actors.shard.service import Service
from topics.engine.reading import Page, read
from topics.engine.shard import Append, Change, Delete
from topics.engine.topic import Topic
from topics.formats.api import answers
from topics.formats.api.requests import Diff
from topics.storage.disk import Damaged

SCAN_S_MAX = 20.0  # it must be answered before the router gives it up
POLLS_PER_TURN = 64


class LongPoll:
    """One diff that waits. ``page`` is what was read last, ``scanned`` counts the records of all."""

    __slots__ = ("asked", "began", "deadline", "head_seq", "message", "page", "scanned", "topic")

    def __init__(self, message: InboundMessage, topic: Topic, asked: Diff, page: Page) -> None:
        self.message, self.topic, self.asked, self.page = message, topic, asked, page
        self.scanned, self.head_seq = page.scanned, page.head_seq
        self.began = trio.current_time()
        self.deadline: Deadline | None = None

    @property
    def key(self) -> tuple[LinkSession, int]:
        """What a cancellation names."""
        return self.message.session, request_of(self.message)[0].cid


class LongPolls(Service):
    """The long polls of a shard."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._polls: dict[tuple[LinkSession, int], LongPoll] = {}
        self._waiting: dict[int, dict[LongPoll, None]] = {}  # by topic id
        self._due: dict[LongPoll, None] = {}
        self._next: dict[LongPoll, None] = {}  # due in the turn after this one

    def register(self, router: MessageRouter) -> None:
        """Serve all sessions of ``router``."""
        router.route("event/call.cancelled", self._cancelled)

    def add(self, message: InboundMessage, topic: Topic, asked: Diff, page: Page) -> None:
        """Answer ``message`` later; ``page`` is what there is for it now."""
        poll = LongPoll(message, topic, asked, page)
        self._polls[poll.key] = poll
        self._set_deadline(poll, poll.began + SCAN_S_MAX)
        self._sort(poll)

    def on_commit(self, change: Change) -> None:
        """The polls of a topic with new records, and of one that is gone, are due."""
        if isinstance(change, Append | Delete):
            polls = self._waiting.pop(change.topic.id, None)
            if polls is not None:
                self._next.update(polls)

    def on_turn(self) -> bool:
        """Read on for the polls that are due."""
        for poll in tuple(islice(self._due, POLLS_PER_TURN)):
            del self._due[poll]
            self._read_on(poll)
        if self._next:
            self._due.update(self._next)
            self._next.clear()
        return bool(self._due)

    def on_session_closed(self, session: LinkSession) -> None:
        """Nobody waits for these any more."""
        for poll in tuple(self._polls.values()):
            if poll.message.session is session:
                self._drop(poll)

    def _cancelled(self, message: InboundMessage) -> None:
        assert message.notification is not None, "event/ subjects come with a notification"
        poll = self._polls.get((message.session, message.notification.params["cid"]))
        if poll is not None:
            self._drop(poll)

    def _read_on(self, poll: LongPoll) -> None:
        topic = poll.topic
        try:
            if not topic.deleted:
                self._context.freshen(topic)
            poll.page = read(topic, poll.asked, self._context.store, poll.page.next_from_seq)
        except (Damaged, OSError) as error:  # costs this reader its answer, and nobody else
            self._forget(poll)
            rpc, _ = request_of(poll.message)
            rpc.error(*map_error(error, poll.message))
            return
        poll.scanned += poll.page.scanned
        self._sort(poll)

    def _sort(self, poll: LongPoll) -> None:
        """Answer the poll, or note what it waits for."""
        page = poll.page
        if page.worth_answering or poll.topic.deleted:
            self._answer(poll)
            return
        if page.next_from_seq >= poll.head_seq:  # all that was there is scanned
            until = poll.began + poll.asked.wait_ms / 1000
            if until <= trio.current_time():
                self._answer(poll)
                return
            self._set_deadline(poll, until)
        if page.unfinished:
            self._next[poll] = None
        else:
            self._waiting.setdefault(poll.topic.id, {})[poll] = None

    def _set_deadline(self, poll: LongPoll, at: float) -> None:
        if poll.deadline is None or poll.deadline.at != at:
            self._cancel_deadline(poll)
            poll.deadline = self._context.deadlines.call_at(at, partial(self._answer, poll))

    @staticmethod
    def _cancel_deadline(poll: LongPoll) -> None:
        if poll.deadline is not None:
            poll.deadline.cancel()

    def _answer(self, poll: LongPoll) -> None:
        self._forget(poll)
        poll.page.scanned = poll.scanned
        reply_page(*request_of(poll.message), poll.topic, poll.page)

    def _drop(self, poll: LongPoll) -> None:
        self._forget(poll)
        request_of(poll.message)[0].error(ErrorCode.TIMEOUT, "nobody waits any more")

    def _forget(self, poll: LongPoll) -> None:
        self._cancel_deadline(poll)
        del self._polls[poll.key]
        self._due.pop(poll, None)
        self._next.pop(poll, None)
        of_topic = self._waiting.get(poll.topic.id)
        if of_topic is not None:
            of_topic.pop(poll, None)
            if not of_topic:
                del self._waiting[poll.topic.id]


def reply_page(rpc: RpcContext, params: dict[str, Any], topic: Topic, page: Page) -> None:
    """Answer a diff with ``page``."""
    end = answers.difference_end(
        next_from_seq=page.next_from_seq,
        head_seq=page.head_seq,
        earliest_seq=page.earliest_seq,
        epoch=topic.epoch,
        tombstone=page.tombstone.as_json() if page.tombstone else None,
        scanned=page.scanned,
        total_ms=total_ms(params),
    )
    result = (
        {"status": 200, "next": page.next_from_seq} if holds_still(topic, page) else {"status": 200}
    )
    rpc.reply(result, answers.difference(topic.name, page.pieces, end))
