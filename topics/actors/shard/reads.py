"""Reads: pages of a topic, now, later or ahead (§3).

rpc/diff   a page worth answering     answered at once
           nothing yet, or wait_ms    a long poll
           with "ahead"               up to so many pages that nobody has asked for yet, without
                                      their ends, for a reader that goes on page by page
"""

from __future__ import annotations

from topics.actors.link.heads import HeadWriter, holds_still
from topics.actors.rpc.message_router import InboundMessage, MessageRouter, RpcContext
from topics.actors.rpc.replies import request_of
from topics.actors.shard.context import ShardContext
from topics.actors.shard.long_polls import LongPolls, reply_page
from topics.actors.shard.service import Service
from topics.engine.reading import Page, read
from topics.engine.shard import Change
from topics.engine.topic import Topic
from topics.formats.api import answers
from topics.formats.api.requests import Diff, decode_diff

AHEAD_BYTES_MAX = 1 << 20  # of pages that are read ahead in one go


class Reads(Service):
    """Answers diffs. ``heads``: of topics that are read ahead."""

    def __init__(self, context: ShardContext, polls: LongPolls, heads: HeadWriter) -> None:
        self._context, self._commits = context, context.commits
        self._polls, self._heads = polls, heads

    def register(self, router: MessageRouter) -> None:
        """Serve all sessions of ``router``."""
        router.route("rpc/diff", self._diff)

    def on_commit(self, change: Change) -> None:
        """Tell the fronts whether pages that were read ahead are still the answer."""
        self._heads.committed(change)

    def _diff(self, message: InboundMessage) -> None:
        rpc, params = request_of(message)
        asked = decode_diff(message.attachment, self._context.limits)
        message.release()
        topic = self._context.fresh_topic(params["topic"])
        topic.touch(*self._commits.now())
        page = read(topic, asked, self._context.store)
        if "ahead" in params:
            self._reply_ahead(rpc, params["ahead"], topic, asked, page)
        elif page.unfinished or (asked.wait_ms and not page.worth_answering):
            self._polls.add(message, topic, asked, page)
        else:
            reply_page(rpc, params, topic, page)

    def _reply_ahead(
        self, rpc: RpcContext, limit: int, topic: Topic, asked: Diff, page: Page
    ) -> None:
        """Answer with no page that may be another one when somebody asks for it."""
        bodies: list[bytes] = []
        pages: list[tuple[int, int, int]] = []
        room = AHEAD_BYTES_MAX
        while holds_still(topic, page) and len(pages) < limit:
            bodies.append(answers.difference(topic.name, page.pieces))
            length = len(bodies[-1])
            room -= length
            if room < 0:
                break
            pages.append((length, page.next_from_seq, page.scanned))
            if room < length:  # the next one is likely to be as long
                break
            page = read(topic, asked, self._context.store, page.next_from_seq)
        if not pages:
            rpc.reply({})
            return
        self._context.store.prefetch(topic, pages[-1][1] + 1)
        result = {
            "mark": self._heads.mark(topic),
            "pages": pages,
            "earliest": topic.earliest_seq,
            "epoch": topic.epoch,
        }
        rpc.reply(result, b"".join(bodies[: len(pages)]))
