"""The services of a shard, and the order in which their hooks are called."""

from __future__ import annotations

from typing import NamedTuple

from topics.actors.link.heads import HeadWriter
from topics.actors.shard.appends import Appends
from topics.actors.shard.context import ShardContext
from topics.actors.shard.deletes import Deletes
from topics.actors.shard.feeds import Feeds
from topics.actors.shard.heartbeat import Heartbeat
from topics.actors.shard.long_polls import LongPolls
from topics.actors.shard.reads import Reads
from topics.actors.shard.room import Room
from topics.actors.shard.sealing.sealing import Sealing
from topics.actors.shard.topics import TopicCalls
from topics.storage.recovery.steps import Shard


class ShardServices(NamedTuple):
    """Everything that attaches to a shard's loop."""

    appends: Appends
    topics: TopicCalls
    deletes: Deletes
    reads: Reads
    long_polls: LongPolls
    feeds: Feeds
    room: Room
    sealing: Sealing
    heartbeat: Heartbeat


def build_services(context: ShardContext, shard: Shard, heads: memoryview) -> ShardServices:
    """All services of one shard. ``heads``: its words on the board for pages that are read ahead."""
    long_polls = LongPolls(context)
    return ShardServices(
        Appends(context),
        TopicCalls(context),
        Deletes(context),
        Reads(context, long_polls, HeadWriter(heads)),
        long_polls,
        Feeds(context),
        context.room,
        Sealing(shard, context.commits),
        Heartbeat(context),
    )
