"""Feed reads: pages and heads for streams that are catching up, with the view options of feeds.

    feed.read     one page from a cursor, for a stream that has not caught up with its feed
    topic.heads   head, floor and epoch of several topics

A strong view contains only synced records; see `visible_head`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.session import InboundMessage
from topics.actors.shard.context import ShardContext
from topics.actors.shard.service import Service
from topics.engine.page import Page
from topics.engine.reading import read
from topics.engine.topic import Topic
from topics.formats.api.diff_body import Diff
from topics.formats.api.limits import Limits, clamped_batch_bytes, clamped_limit
from topics.formats.buffers import Buffer
from topics.formats.wire.calls import (
    FEED_READ,
    TOPIC_HEADS,
    FeedReadParams,
    FeedReadResult,
    FeedView,
    TopicHeadsParams,
    TopicHeadsResult,
)


class FeedReads(Service):
    """Handles `feed.read` and `topic.heads`."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context

    def register(self, router: MessageRouter) -> None:
        """Register the handlers for all sessions of ``router``."""
        router.serve(FEED_READ, self._read)
        router.serve(TOPIC_HEADS, self._heads)

    def _read(self, request: InboundMessage[FeedReadParams, FeedReadResult]) -> None:
        params, context = request.params, self._context
        topic = topic_to_read(context, params.topic)
        cursor = {"from_seq": params.from_seq, "until_seq": params.until_seq}
        view, strong = diff_of(params.view, context.limits, **cursor, epoch=params.epoch)
        head_seq = visible_head(topic, context.wal.synced_lsn, strong=strong)
        page = read(topic, view, context.store, head_seq=head_seq)
        request.reply(FeedReadResult(*page_fields(page), topic.epoch), joined(page.chunks))
        # Prefetch the next records, because a stream that is catching up soon reads the next page.
        context.store.prefetch(topic, page.next_from_seq + 1)

    def _heads(self, request: InboundMessage[TopicHeadsParams, TopicHeadsResult]) -> None:
        known = self._context.engine.topics
        topics = [self._context.find_topic(name) for name in request.params.topics if name in known]
        heads = {topic.name: (topic.head_seq, topic.start_seq, topic.epoch) for topic in topics}
        request.reply(TopicHeadsResult(heads))


def topic_to_read(context: ShardContext, name: str) -> Topic:
    """Return the topic ``name``, and record that it was read. Raises `TopicNotFound`."""
    topic = context.find_topic(name)
    topic.touch(*context.commits.now())
    return topic


def visible_head(topic: Topic, synced: int, *, strong: bool) -> int:
    """Return the last seq that is visible to a reader.

    This is the last committed seq, or with ``strong`` the last committed seq that is also synced.
    ``synced``: the LSN up to which the log is synced.
    """
    # Only in class `disk` do committed records still wait for a sync: `fsync` commits after the
    # sync, and `memory` and `ephemeral` guarantee no sync. A change of a topic's class is committed
    # when it is synced.
    if not strong or topic.committed.durability != "disk":
        return topic.head_seq
    index = topic.index.find_locator(synced)
    return topic.index.entry(index)[0] - 1 if index < len(topic.index) else topic.head_seq


def diff_of(fields: Sequence[Any], limits: Limits, **cursor: Any) -> tuple[Diff, bool]:
    """Return a view as a diff, clamped like a client's request, and whether the view is strong."""
    view = FeedView._make(fields)
    diff = Diff(
        limit=clamped_limit(view.limit, limits),
        nodes=_node_set(tuple(view.nodes)),
        include_tags=view.tags,
        include_meta=view.meta,
        include_data=view.data,
        max_batch_bytes=clamped_batch_bytes(view.bytes),
        **cursor,
    )
    return diff, view.strong


@lru_cache(256)
def _node_set(nodes: tuple[str, ...]) -> frozenset[str]:
    """Return the nodes as a set. All feeds with the same nodes share one set."""
    return frozenset(nodes)


def joined(chunks: list[Buffer]) -> Buffer:
    """Return the records of a page as one attachment."""
    return chunks[0] if len(chunks) == 1 else b",".join(chunks)


def page_fields(page: Page) -> tuple[int, int, int, int, int, dict[str, Any] | None]:
    """Return the first fields of `FeedPageParams` and `FeedReadResult`, which are the same."""
    return (
        page.from_seq,
        page.next_from_seq,
        page.head_seq,
        page.earliest_seq,
        page.count,
        page.tombstone.as_json() if page.tombstone else None,
    )
