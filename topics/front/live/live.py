"""Live: the streams of a front and the messages of shards for them (decision 0010).

shards --jobs--> work streams (work_subscriptions.py, work_stream.py)
shards --> feeds (feed_subscriptions.py) --page--> every stream whose cursor is where the page
               |                                   begins (topic_streams.py)
               '-> cache of the newest pages, for readers slightly below the head (pages.py)
"""

from __future__ import annotations

from topics.actors.shard_client.shards import Shards
from topics.config import Settings
from topics.front.held_memory import HeldMemory
from topics.front.keys import Keys
from topics.front.limits import FrontSlots
from topics.front.live.feed_subscriptions import FeedSubscriptions
from topics.front.live.streams import Streams
from topics.front.live.work_subscriptions import WorkSubscriptions
from topics.front.pressure.pressure import Pressure


class Live(Streams):
    """All streams of a front and their shared state.

    It is the `Listener` of the shards' messages.
    """

    def __init__(
        self,
        shards: Shards,
        settings: Settings,
        slots: FrontSlots,
        pressure: Pressure,
        keys: Keys | None = None,
        held: HeldMemory | None = None,
    ) -> None:
        super().__init__(slots, keys or Keys(), held or HeldMemory())
        self.shards, self.pressure = shards, pressure
        self.feeds = feeds = FeedSubscriptions(shards, pressure, self.call_in, self.now)
        self.work = work = WorkSubscriptions(shards, slots.streams, pressure, self.call_in)
        self.publish_bytes = 0  # total length of the publishes in flight on all WebSockets
        self.publish_max_bytes = settings.max_body_bytes
        self.opened, self.page, self.feed_ended = feeds.opened, feeds.page, feeds.feed_ended
        self.jobs, self.work_ended = work.jobs, work.work_ended
        shards.listen(self)

    def closed(self, shard: int) -> None:
        """Drop all feeds and work streams of a shard that went down."""
        self.feeds.closed(shard)
        self.work.closed(shard)

    def tick(self) -> None:
        """Store the time of a tick, and wake readers that have waited long enough for their
        shards."""
        super().tick()
        self.feeds.tick(self.now)
