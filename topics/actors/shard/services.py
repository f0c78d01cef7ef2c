"""The services of a shard, and the order in which their hooks are called."""

from __future__ import annotations

from typing import NamedTuple

from topics.actors.link.heads import HeadWriter
from topics.actors.link.ledger import ShardLedger
from topics.actors.shard.appends import Appends
from topics.actors.shard.context import ShardContext
from topics.actors.shard.delay import Delay
from topics.actors.shard.deletes import Deletes
from topics.actors.shard.expiry import Expiry
from topics.actors.shard.feed_reads import FeedReads
from topics.actors.shard.feeds import Feeds
from topics.actors.shard.gauges import Gauges
from topics.actors.shard.heartbeat import Heartbeat
from topics.actors.shard.long_polls import LongPolls
from topics.actors.shard.metrics import MetricsReads
from topics.actors.shard.peers import Peers
from topics.actors.shard.queues.claims import Claims
from topics.actors.shard.queues.dead_letters import DeadLetters
from topics.actors.shard.queues.job_calls import JobCalls
from topics.actors.shard.queues.job_dispatch import JobDispatch
from topics.actors.shard.queues.redrive import Redrives
from topics.actors.shard.queues.work_streams import WorkStreams
from topics.actors.shard.quota import Quotas
from topics.actors.shard.reads import Reads
from topics.actors.shard.retries import Retries
from topics.actors.shard.room import Room
from topics.actors.shard.routing.barriers import Barriers
from topics.actors.shard.routing.forwards import Forwards
from topics.actors.shard.routing.owner import Routers
from topics.actors.shard.routing.registry import Registry
from topics.actors.shard.routing.workers import Workers
from topics.actors.shard.sealing.sealing import Sealing
from topics.actors.shard.streamed_appends import StreamedAppends
from topics.actors.shard.topics import TopicCalls
from topics.storage.recovery.steps import Shard


class ShardServices(NamedTuple):
    """Everything that attaches to a shard's loop."""

    retries: Retries
    peers: Peers
    appends: Appends
    streamed_appends: StreamedAppends
    topics: TopicCalls
    deletes: Deletes
    claims: Claims
    job_calls: JobCalls
    work_streams: WorkStreams
    job_dispatch: JobDispatch
    dead_letters: DeadLetters
    redrives: Redrives
    routers: Routers
    workers: Workers
    registry: Registry
    barriers: Barriers
    forwards: Forwards
    reads: Reads
    long_polls: LongPolls
    feeds: Feeds
    feed_reads: FeedReads
    metrics: MetricsReads
    room: Room
    quotas: Quotas
    expiry: Expiry
    sealing: Sealing
    heartbeat: Heartbeat
    delay: Delay
    gauges: Gauges


def build_services(
    context: ShardContext, shard: Shard, heads: memoryview, ledger: ShardLedger
) -> ShardServices:
    """All services of one shard. ``heads``: its words for pages that are read ahead; ``ledger``:
    what the shards hold of the caps of the server.
    """
    expiry = Expiry(context)
    quotas = Quotas(context, ledger, expiry)
    streamed_appends, long_polls = StreamedAppends(context), LongPolls(context)
    retries = Retries(context.commits)
    # Each is told by the other: of dead jobs, and of those that are claimable again.
    dispatch = JobDispatch(context, lambda topic: dead_letters.wake(topic))
    dead_letters = DeadLetters(context, dispatch.note_claimable)
    workers = Workers(context)
    registry = Registry(context, workers)
    barriers = Barriers(context, registry, workers)
    sealing = Sealing(shard, context.commits)
    gauges = Gauges(context, shard, sealing)
    return ShardServices(
        retries,
        context.peers,
        Appends(context, streamed_appends),
        streamed_appends,
        TopicCalls(context, barriers),
        Deletes(context, retries, barriers),
        Claims(context, dispatch, barriers),
        JobCalls(context, dispatch, retries),
        WorkStreams(context, dispatch),
        dispatch,
        dead_letters,
        Redrives(context, dispatch.note_claimable),
        Routers(context),
        workers,
        registry,
        barriers,
        Forwards(context, registry),
        Reads(context, long_polls, HeadWriter(heads), barriers),
        long_polls,
        Feeds(context),
        FeedReads(context, barriers),
        MetricsReads(context, workers, gauges.beat),
        context.room,
        quotas,
        expiry,
        sealing,
        Heartbeat(context),
        Delay(context),
        gauges,
    )
