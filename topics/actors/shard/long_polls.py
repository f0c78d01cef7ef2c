"""Long polls: diffs that wait until there are records to return (§3).

    WAITING --commit to the topic--> DUE --next iteration reads--> replied, or WAITING again
    DUE     --more to scan--> DUE in the next iteration
    any     --wait_ms is over, the topic is deleted, its records are unreadable--> replied
            --cancelled, its front has disconnected--> dropped

Regardless of its wait_ms, a diff scans all records that existed when it arrived, for `SCAN_MAX_S`
at most. A poll has no task. Each iteration performs one read for each due poll, for at most
`POLLS_PER_ITERATION` polls. Polls that a commit makes due are read one iteration later, so that the
reply to the append precedes them.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import trio

from topics.actors.link.heads import depends_only_on_version
from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.replies import answer_error, total_ms
from topics.actors.rpc.session import InboundMessage, LinkSession
from topics.actors.shard.context import ShardContext
from topics.actors.shard.deadlines import Deadline
from topics.actors.shard.service import Service
from topics.engine.changes.append import Append
from topics.engine.changes.change import Change
from topics.engine.changes.delete_topic import DeleteTopic
from topics.engine.changes.forward import Advance
from topics.engine.page import Page
from topics.engine.reading import read
from topics.engine.topic import Topic
from topics.formats.api import answers
from topics.formats.api.diff_body import Diff
from topics.formats.wire.calls import (
    CALL_CANCELLED,
    CallCancelledParams,
    DiffResult,
    TopicParams,
)
from topics.formats.wire.envelope import ErrorCode
from topics.storage.disk import Damaged

DiffCall: TypeAlias = InboundMessage[TopicParams, DiffResult]

SCAN_MAX_S = 20.0  # the reply must be sent before the router times the request out
POLLS_PER_ITERATION = 64


class LongPoll:
    """A diff request that waits for records.

    ``page``: the page that was read last. ``scanned``: the number of records scanned for all pages.
    """

    __slots__ = ("began", "deadline", "diff", "head_seq", "page", "request", "scanned", "topic")

    def __init__(self, request: DiffCall, topic: Topic, diff: Diff, page: Page) -> None:
        self.request, self.topic, self.diff, self.page = request, topic, diff, page
        self.scanned, self.head_seq = page.scanned, page.head_seq
        self.began = trio.current_time()
        self.deadline: Deadline | None = None

    @property
    def key(self) -> tuple[LinkSession, int]:
        """The session and the call id, by which a cancellation identifies the request."""
        return self.request.session, self.request.cid


class LongPolls(Service):
    """The long polls of a shard."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._polls: dict[tuple[LinkSession, int], LongPoll] = {}
        self._waiting: dict[int, dict[LongPoll, None]] = {}  # by topic id
        self._due: dict[LongPoll, None] = {}
        self._next: dict[LongPoll, None] = {}  # due in the iteration after this one

    def register(self, router: MessageRouter) -> None:
        """Register the handlers for all sessions of ``router``."""
        router.subscribe(CALL_CANCELLED, self._cancelled)

    def add(self, request: DiffCall, topic: Topic, diff: Diff, page: Page) -> None:
        """Add a poll for ``request``. ``page`` is the current result of its diff."""
        poll = LongPoll(request, topic, diff, page)
        self._polls[poll.key] = poll
        self._set_deadline(poll, poll.began + SCAN_MAX_S)
        self._answer_or_wait(poll)

    def _changed(self, change: Change) -> None:
        """Make the polls of the topic due if it has new records or was deleted."""
        if isinstance(change, Append | Advance | DeleteTopic):
            self._next.update(self._waiting.pop(change.topic.id, {}))
            change.topic.unfollow(self._changed)
            self._request_iteration()

    def _request_iteration(self) -> None:
        """Request an iteration. A commit may follow `on_due`, or occur outside an iteration."""
        self.is_due = True
        self._context.deadlines.wake()

    def on_due(self) -> None:
        """Read the topics of due polls again."""
        for poll in tuple(islice(self._due, POLLS_PER_ITERATION)):
            del self._due[poll]
            self._read_on(poll)
        if self._next:
            self._due.update(self._next)
            self._next.clear()
        self.is_due = bool(self._due)

    def on_session_closed(self, session: LinkSession) -> None:
        """Drop the polls of the session. Called when its front has disconnected."""
        for poll in tuple(self._polls.values()):
            if poll.request.session is session:
                self._drop(poll)

    def _cancelled(self, message: InboundMessage[CallCancelledParams, Any]) -> None:
        poll = self._polls.get((message.session, message.params.cid))
        if poll is not None:
            self._drop(poll)

    def _read_on(self, poll: LongPoll) -> None:
        topic = poll.topic
        try:
            if not topic.deleted:
                self._context.remove_expired(topic)
            # Do not move a cursor that is above the head, because the client did not request lower
            # seqs.
            start = max(poll.diff.from_seq, poll.page.next_from_seq)
            page = read(topic, poll.diff, self._context.store, start)
        except (Damaged, OSError) as error:  # only this reader is affected
            self._remove(poll)
            answer_error(poll.request, error)
            return
        poll.scanned += page.scanned
        if topic.deleted and not page.count:
            # Reply with the earlier page, so that the cursor skips no records deleted with the
            # topic.
            self._answer(poll)
            return
        poll.page = page
        self._answer_or_wait(poll)

    def _answer_or_wait(self, poll: LongPoll) -> None:
        """Reply to the poll, or queue it for the event that it waits for."""
        page = poll.page
        if page.completes_poll or poll.topic.deleted:
            self._answer(poll)
            return
        # If all records that existed when the diff arrived have been scanned, wait_ms applies.
        if page.next_from_seq >= poll.head_seq:
            until = poll.began + poll.diff.wait_ms / 1000
            if until <= trio.current_time():
                self._answer(poll)
                return
            self._set_deadline(poll, until)
        # If the scan has reached its limit, continue in the next iteration.
        if page.unfinished:
            self._next[poll] = None
            self._request_iteration()
        else:
            self._waiting.setdefault(poll.topic.id, {})[poll] = None
            poll.topic.follow(self._changed)

    def _set_deadline(self, poll: LongPoll, at: float) -> None:
        if poll.deadline is None or poll.deadline.at != at:
            self._cancel_deadline(poll)
            poll.deadline = self._context.deadlines.call_at(at, partial(self._answer, poll))

    @staticmethod
    def _cancel_deadline(poll: LongPoll) -> None:
        if poll.deadline is not None:
            poll.deadline.cancel()

    def _answer(self, poll: LongPoll) -> None:
        self._remove(poll)
        poll.page.scanned = poll.scanned
        reply_page(poll.request, poll.topic, poll.page)

    def _drop(self, poll: LongPoll) -> None:
        self._remove(poll)
        poll.request.error(ErrorCode.TIMEOUT, "the front is no longer waiting for the page")

    def _remove(self, poll: LongPoll) -> None:
        self._cancel_deadline(poll)
        del self._polls[poll.key]
        self._due.pop(poll, None)
        self._next.pop(poll, None)
        of_topic = self._waiting.get(poll.topic.id)
        if of_topic is not None:
            of_topic.pop(poll, None)
            if not of_topic:
                del self._waiting[poll.topic.id]
                poll.topic.unfollow(self._changed)


def reply_page(request: DiffCall, topic: Topic, page: Page) -> None:
    """Reply to a diff with ``page``."""
    end = answers.difference_end(
        next_from_seq=page.next_from_seq,
        head_seq=page.head_seq,
        earliest_seq=page.earliest_seq,
        epoch=topic.epoch,
        tombstone=page.tombstone.as_json() if page.tombstone else None,
        scanned=page.scanned,
        total_ms=total_ms(request.params.at),
        throttle_ms=request.parked_ms,
    )
    result = DiffResult(page.next_from_seq if depends_only_on_version(topic, page) else None)
    request.reply(result, answers.difference(topic.name, page.chunks, end))
