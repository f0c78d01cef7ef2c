"""Reads: returns pages of a topic immediately, as a long poll, or in advance (§3).

diff         the page completes the request             replied immediately
             no records and a wait_ms, or more to scan  becomes a long poll
diff.ahead   pages that have not been requested, for a reader that reads page by page
"""

from __future__ import annotations

from typing import Any

from topics.actors.link.heads import HeadSlotWriter, depends_only_on_version
from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.session import InboundMessage
from topics.actors.shard.context import ShardContext
from topics.actors.shard.long_polls import DiffCall, LongPolls, reply_page
from topics.actors.shard.service import Service
from topics.engine.page import Page
from topics.engine.reading import read
from topics.engine.topic import Topic
from topics.formats.api import answers
from topics.formats.api.diff_body import Diff, decode_diff
from topics.formats.wire.calls import DIFF, DIFF_AHEAD, DiffAheadParams, DiffAheadResult

READ_AHEAD_MAX_BYTES = 1 << 20  # maximum total size of the pages that one call reads ahead


class Reads(Service):
    """Handles the diff requests. ``heads``: the head slots of topics that are read ahead."""

    def __init__(self, context: ShardContext, polls: LongPolls, heads: HeadSlotWriter) -> None:
        self._context, self._polls, self._heads = context, polls, heads

    def register(self, router: MessageRouter) -> None:
        """Register the handlers for all sessions of ``router``."""
        router.serve(DIFF, self._diff)
        router.serve(DIFF_AHEAD, self._diff_ahead)

    def _diff(self, request: DiffCall) -> None:
        topic, diff, page = self._first_page(request, request.params.topic)
        if page.unfinished or (diff.wait_ms and not page.completes_poll):
            self._polls.add(request, topic, diff, page)
            return
        reply_page(request, topic, page)
        if page.count and not page.caught_up:  # the reader is likely to request the next page
            self._context.store.prefetch(topic, page.next_from_seq + 1)

    def _first_page(self, request: InboundMessage[Any, Any], name: str) -> tuple[Topic, Diff, Page]:
        context = self._context
        diff = decode_diff(request.attachment, context.limits)
        request.release()
        topic = context.find_topic(name)
        topic.touch(*context.commits.now())
        return topic, diff, read(topic, diff, context.store)

    def _diff_ahead(self, request: InboundMessage[DiffAheadParams, DiffAheadResult]) -> None:
        """Reply with pages that have not been requested, without the end of each response body.

        The reply contains only pages that an append does not change (`depends_only_on_version`).
        """
        topic, diff, page = self._first_page(request, request.params.topic)
        bodies: list[bytes] = []
        pages: list[tuple[int, int, int]] = []
        free_bytes = READ_AHEAD_MAX_BYTES
        # Stop at the first page that may change before it is requested.
        while depends_only_on_version(topic, page) and len(pages) < request.params.page_count:
            bodies.append(answers.difference(topic.name, page.chunks))
            length = len(bodies[-1])
            free_bytes -= length
            if free_bytes < 0:
                break
            pages.append((length, page.next_from_seq, page.scanned))
            if free_bytes < length:  # the next page is probably as long
                break
            page = read(topic, diff, self._context.store, page.next_from_seq)
        if not pages:
            request.reply(DiffAheadResult())
            return
        self._context.store.prefetch(topic, pages[-1][1] + 1)
        result = DiffAheadResult(pages, self._heads.mark(topic), topic.earliest_seq, topic.epoch)
        request.reply(result, b"".join(bodies[: len(pages)]))
