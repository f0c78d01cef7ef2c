"""The services of a shard, and the order in which their hooks are called."""

from __future__ import annotations

from collections.abc import Iterator

from topics.actors.link.heads import HeadSlotWriter
from topics.actors.link.ledger import ShardLedger
from topics.actors.shard.appends import Appends
from topics.actors.shard.backups import Backups
from topics.actors.shard.context import ShardContext
from topics.actors.shard.deletes import Deletes
from topics.actors.shard.expiry import Expiry, Quotas
from topics.actors.shard.feed_reads import FeedReads
from topics.actors.shard.feeds import Feeds
from topics.actors.shard.gauges import Gauges
from topics.actors.shard.heartbeat import Heartbeat
from topics.actors.shard.held_topics import Retries
from topics.actors.shard.long_polls import LongPolls
from topics.actors.shard.metrics import MetricsReads
from topics.actors.shard.queues.claims import Claims
from topics.actors.shard.queues.dead_letters import DeadLetters
from topics.actors.shard.queues.job_calls import JobCalls
from topics.actors.shard.queues.job_dispatch import JobDispatch
from topics.actors.shard.queues.redrive import Redrives
from topics.actors.shard.queues.work_streams import WorkStreams
from topics.actors.shard.reads import Reads
from topics.actors.shard.routing.forwards import Forwards
from topics.actors.shard.routing.owner import RouterOwner
from topics.actors.shard.routing.registry import RouterRegistry
from topics.actors.shard.routing.workers import RouterWorkers
from topics.actors.shard.sealing.sealing import Sealing
from topics.actors.shard.service import Service
from topics.actors.shard.space_waits import SpaceWaits
from topics.actors.shard.streamed_appends import StreamedAppends
from topics.actors.shard.topic_calls import TopicCalls
from topics.storage.recovery.shard_recovery import RecoveredShard


class ShardServices:
    """All services of a shard, in the order in which their hooks are called."""

    def __init__(
        self, context: ShardContext, shard: RecoveredShard, heads: memoryview, ledger: ShardLedger
    ) -> None:
        """Create the services.

        ``heads``: the shard's head slots, which invalidate pages read ahead. ``ledger``: this
        shard's usage of the caps that all shards share.
        """
        self.retries = retries = Retries(context.commits)
        self.peers, self.disk_space = context.peers, context.disk_space
        self.workers = workers = RouterWorkers(context)
        self.registry = registry = RouterRegistry(context, workers)
        self.sealing = Sealing(shard, context.commits)
        self.streamed_appends = StreamedAppends(context, self.sealing.break_pin_and_wait)
        self.appends = Appends(context, self.streamed_appends, SpaceWaits(context, self.sealing))
        self.topics = TopicCalls(context)
        self.deletes = Deletes(context, retries)
        # The job dispatch notifies the dead letters of exhausted jobs, and the dead letters notify
        # the job dispatch of jobs that are claimable again.
        self.job_dispatch = dispatch = JobDispatch(
            context, lambda topic: self.dead_letters.wake(topic)
        )
        self.claims = Claims(context, dispatch)
        self.job_calls = JobCalls(context, dispatch, retries)
        self.work_streams = WorkStreams(context, dispatch)
        self.dead_letters = DeadLetters(context, dispatch.note_claimable)
        self.redrives = Redrives(context, dispatch.note_claimable)
        self.routers = RouterOwner(context)
        self.forwards = Forwards(context, registry)
        self.long_polls = LongPolls(context)
        self.reads = Reads(context, self.long_polls, HeadSlotWriter(heads))
        self.feeds = Feeds(context)
        self.feed_reads = FeedReads(context)
        self.expiry = Expiry(context)
        self.quotas = Quotas(context, ledger, self.expiry)
        self.backups = Backups(context, shard, self.sealing)
        self.heartbeat = Heartbeat(context)
        self.gauges = Gauges(context, shard, self.sealing)
        self.metrics = MetricsReads(context, workers, self.gauges.update)

    def __iter__(self) -> Iterator[Service]:
        return iter(vars(self).values())
