"""Reads: pages of a topic (§3).

a page worth answering                         answered at once
nothing yet, and a wait_ms; or more to scan    a long poll
"""

from __future__ import annotations

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.typed_calls import serve
from topics.actors.shard.context import ShardContext
from topics.actors.shard.long_polls import DiffCall, LongPolls, reply_page
from topics.actors.shard.routing.barriers import Barriers
from topics.actors.shard.service import Service
from topics.engine.reading import read
from topics.formats.api.diff_body import decode_diff
from topics.formats.wire.calls import DIFF


class Reads(Service):
    """Answers diffs."""

    def __init__(self, context: ShardContext, polls: LongPolls, barriers: Barriers) -> None:
        self._context, self._polls, self._barriers = context, polls, barriers

    def register(self, router: MessageRouter) -> None:
        """Serve all sessions of ``router``."""
        serve(router, DIFF, self._diff)

    def _diff(self, request: DiffCall) -> None:
        if not self._barriers.defer_if_behind((request.params.topic,), self._read, request):
            self._read(request)

    def _read(self, request: DiffCall) -> None:
        context = self._context
        asked = decode_diff(request.attachment, context.limits)
        request.release()
        topic = context.fresh_topic(request.params.topic)
        topic.touch(*context.commits.now())
        page = read(topic, asked, context.store)
        if page.unfinished or (asked.wait_ms and not page.worth_answering):
            self._polls.add(request, topic, asked, page)
            return
        reply_page(request, topic, page)
        if page.count and not page.caught_up:
            context.store.prefetch(topic, page.next_from_seq + 1)  # the reader goes on
