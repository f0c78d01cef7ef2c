"""What a shard answers to readers: pages at once, long polls later, pages ahead of those who read
on, and states of topics (§1, §3).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import trio

from topics.actors.link.heads import HeadWriter, holds_still
from topics.actors.rpc.inbound import InboundMessage, PeerSession
from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.replies import answer_error, total_ms
from topics.actors.rpc.typed_calls import InboundCall, serve, subscribe
from topics.actors.shard.context import ShardContext
from topics.engine.changes.append import Append
from topics.engine.changes.change import Change
from topics.engine.changes.delete_topic import DeleteTopic
from topics.engine.reading import Page, read
from topics.engine.topic import Topic
from topics.formats.api import answers
from topics.formats.api.requests import Diff, decode_diff
from topics.formats.wire.calls import (
    CALL_CANCELLED,
    DIFF,
    DIFF_AHEAD,
    CallCancelledParams,
    DiffAheadParams,
    DiffAheadResult,
    DiffParams,
    DiffResult,
)
from topics.formats.wire.envelope import ErrorCode
from topics.storage.disk import Damaged

DiffCall: TypeAlias = InboundCall[DiffParams, DiffResult]

# A diff looks at all that is there when it comes, whatever its wait_ms; it must be answered before
# the router gives it up.
SCAN_S_MAX = 20.0
RUN_BYTES = 1 << 20  # of pages that are read ahead in one go


class Reads:
    """Answers readers. ``heads``: of topics that are read ahead."""

    def __init__(self, context: ShardContext, heads: HeadWriter) -> None:
        self._context, self._commits, self._heads = context, context.commits, heads
        self._changed: dict[int, trio.Event] = {}
        self._polls: dict[tuple[PeerSession, int], trio.CancelScope] = {}

    def register(self, router: MessageRouter) -> None:
        """Serve all sessions of ``router``."""
        serve(router, DIFF, self._diff)
        serve(router, DIFF_AHEAD, self._diff_ahead)
        subscribe(router, CALL_CANCELLED, self._cancelled)

    # What happens in the shard

    def committed(self, change: Change) -> None:
        """Something has happened to a topic."""
        self._heads.committed(change)
        if isinstance(change, Append | DeleteTopic):
            event = self._changed.pop(change.topic.id, None)
            if event is not None:
                event.set()

    def abandon(self, session: PeerSession) -> None:
        """The front has gone: nobody waits any more."""
        for (owner, _), scope in list(self._polls.items()):
            if owner is session:
                scope.cancel()

    # Requests

    def _diff(self, request: DiffCall) -> None:
        topic, asked, page = self._first_page(request, request.params.topic)
        if page.unfinished or (asked.wait_ms and not page.worth_answering):
            # From here on, not from when the task begins: what is committed in between must wake
            # it.
            changed = self._changed.setdefault(topic.id, trio.Event())
            # So is its end: the cancel, or the end of the session, may come in the same batch of
            # messages.
            scope = self._polls[request.session, request.cid] = trio.CancelScope()
            self._context.start(self._long_poll, scope, request, topic, asked, page, changed)
        else:
            _reply_page(request, topic, page)

    def _first_page(self, request: InboundCall[Any, Any], name: str) -> tuple[Topic, Diff, Page]:
        asked = decode_diff(request.attachment, self._context.limits)
        request.release()
        topic = self._context.fresh_topic(name)
        topic.touch(*self._commits.now())
        return topic, asked, read(topic, asked, self._commits)

    def _diff_ahead(self, request: InboundCall[DiffAheadParams, DiffAheadResult]) -> None:
        """Answer with pages that nobody has asked for yet, trailers omitted; with none that may be
        another one when somebody does.
        """
        topic, asked, page = self._first_page(request, request.params.topic)
        bodies: list[bytes] = []
        pages: list[tuple[int, int, int]] = []
        room = RUN_BYTES
        while holds_still(topic, page) and len(pages) < request.params.page_count:
            bodies.append(answers.difference(topic.name, page.pieces))
            length = len(bodies[-1])
            room -= length
            if room < 0:
                break
            pages.append((length, page.next_from_seq, page.scanned))
            if room < length:  # the next one is likely to be as long
                break
            page = read(topic, asked, self._commits, page.next_from_seq)
        if not pages:
            request.reply(DiffAheadResult())
            return
        self._commits.expect(topic, pages[-1][1] + 1)
        result = DiffAheadResult(pages, self._heads.mark(topic), topic.earliest_seq, topic.epoch)
        request.reply(result, b"".join(bodies[: len(pages)]))

    async def _long_poll(
        self,
        scope: trio.CancelScope,
        request: DiffCall,
        topic: Topic,
        asked: Diff,
        page: Page,
        changed: trio.Event,
    ) -> None:
        scanned, failure, head_seq = page.scanned, None, page.head_seq
        began = trio.current_time()
        with scope:
            with trio.move_on_at(began + SCAN_S_MAX) as limit:
                while not page.worth_answering and not topic.deleted:
                    if page.next_from_seq >= head_seq:  # all that was there is looked through
                        limit.deadline = began + asked.wait_ms / 1000
                        if limit.deadline <= trio.current_time():
                            break
                    if page.unfinished:
                        await trio.lowlevel.checkpoint()
                    else:
                        await changed.wait()
                    try:
                        if not topic.deleted:
                            self._context.begin_turn()
                            self._context.freshen(topic)
                            changed = self._changed.setdefault(topic.id, trio.Event())
                        page = read(topic, asked, self._commits, page.next_from_seq)
                    except (
                        Damaged,
                        OSError,
                    ) as error:  # costs this reader its answer, and nobody else
                        failure = error
                        break
                    scanned += page.scanned
        self._polls.pop((request.session, request.cid), None)
        if scope.cancelled_caught:
            request.error(ErrorCode.TIMEOUT, "nobody waits any more")
            return
        page.scanned = scanned
        if failure is not None:
            answer_error(request, failure)
        else:
            _reply_page(request, topic, page)
        self._context.end_turn()

    def _cancelled(self, message: InboundMessage, params: CallCancelledParams) -> None:
        scope = self._polls.get((message.session, params.cid))
        if scope is not None:
            scope.cancel()


def _reply_page(request: DiffCall, topic: Topic, page: Page) -> None:
    end = answers.difference_end(
        next_from_seq=page.next_from_seq,
        head_seq=page.head_seq,
        earliest_seq=page.earliest_seq,
        epoch=topic.epoch,
        tombstone=page.tombstone.as_json() if page.tombstone else None,
        scanned=page.scanned,
        total_ms=total_ms(request.params.at),
    )
    result = DiffResult(page.next_from_seq if holds_still(topic, page) else None)
    request.reply(result, answers.difference(topic.name, page.pieces, end))
