"""The shards, for one front: `Shards` finds the shard of a topic and passes calls, events and
reservations to its link. It is the front's `Backend`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import trio

from topics.actors.link.arena import ArenaBlock, Holder
from topics.actors.link.board import Board
from topics.actors.link.link import Link
from topics.actors.rpc.call import PendingCall
from topics.actors.rpc.inbound import InboundMessage
from topics.actors.rpc.message_router import MessageRouter, RouterConfig
from topics.actors.rpc.transport import Attachment
from topics.actors.rpc.typed_calls import subscribe
from topics.actors.shard_client import reservations
from topics.actors.shard_client.batch import Batch
from topics.actors.shard_client.readiness import SERVING, Readiness, readiness_of
from topics.actors.shard_client.shard_link import Listener, ShardLink, ShardReply
from topics.errors import TopicsError
from topics.formats.names import shard_of
from topics.formats.wire.calls import (
    FEED_ENDED,
    FEED_PAGE,
    WORK_ENDED,
    WORK_JOBS,
    FeedEndedParams,
    FeedPageParams,
    WorkEndedParams,
    WorkJobsParams,
)
from topics.formats.wire.contract import Call, Event, P, R

CHECK_S: Final = 0.5  # between two checks of the heartbeats
LINKED_MAX_S: Final = 1.0  # a shard takes up a session within a turn of its loop
LINKED_LOOK_S: Final = 0.001


class Shards:
    """All shards, for one front. Shard numbers are indexes of ``links``."""

    def __init__(self, links: Sequence[Link], board: Board) -> None:
        self._board = board
        self._router = MessageRouter(RouterConfig())
        self._links = [
            ShardLink(link, board.shard(link.peer.index), self._router) for link in links
        ]
        self.shards = len(links)
        self.batch = Batch(links)
        for link in self._links:
            link.batch = self.batch

    def listen(self, listener: Listener) -> None:
        """From now on ``listener`` is told what the shards send unasked. Once, before `run`."""
        numbers = {link.peer_id: link.number for link in self._links}
        for link in self._links:
            link.listener = listener

        def page(message: InboundMessage, params: FeedPageParams) -> None:
            listener.page(numbers[message.peer_id], params, message.attachment)
            message.release()

        def feed_ended(message: InboundMessage, params: FeedEndedParams) -> None:
            listener.feed_ended(numbers[message.peer_id], params)

        def jobs(message: InboundMessage, params: WorkJobsParams) -> None:
            listener.jobs(numbers[message.peer_id], params, message.attachment)
            message.release()

        def work_ended(message: InboundMessage, params: WorkEndedParams) -> None:
            listener.work_ended(numbers[message.peer_id], params)

        subscribe(self._router, FEED_PAGE, page)
        subscribe(self._router, FEED_ENDED, feed_ended)
        subscribe(self._router, WORK_JOBS, jobs)
        subscribe(self._router, WORK_ENDED, work_ended)

    async def run(self) -> None:
        """Carry messages until cancelled."""
        async with trio.open_nursery() as nursery:
            for link in self._links:
                nursery.start_soon(link.run)
            while True:
                await trio.sleep(CHECK_S)
                self.check(trio.current_time())

    async def wait_linked(self) -> None:
        """Beside `run`: until there is a link session with every shard that serves, at most
        `LINKED_MAX_S`. A front that starts again refuses nobody for want of a session.
        """
        with trio.move_on_after(LINKED_MAX_S):
            # The shard's words are in shared memory, which sets no event.
            while any(  # noqa: ASYNC110
                link.words.state in SERVING and not link.is_connected for link in self._links
            ):
                await trio.sleep(LINKED_LOOK_S)

    def check(self, now: float) -> None:
        """See which shards show a heartbeat."""
        for link in self._links:
            link.check(now)

    def shard_of(self, topic: str) -> int:
        """The shard that owns the topic."""
        return shard_of(topic, self.shards)

    def call(
        self, shard: int, call: Call[P, R], params: P, body: Attachment = b""
    ) -> Coroutine[Any, Any, ShardReply[R]]:
        """As `ShardLink.call`."""
        return self._links[shard].call(call, params, body)

    def ask(
        self,
        shard: int,
        call: Call[P, R],
        params: P,
        body: Attachment,
        then: Callable[[ShardReply[R] | TopicsError], None],
    ) -> PendingCall | None:
        """As `ShardLink.ask`. `flush` sends it."""
        return self._links[shard].ask(call, params, body, then)

    def notify(self, shard: int, event: Event[P], params: P, *, quiet: bool = False) -> None:
        """As `ShardLink.notify`. `flush` sends it."""
        self._links[shard].notify(event, params, quiet=quiet)

    def flush(self, shard: int) -> None:
        """Send what was asked and notified. An open batch does that at its end, if it is little."""
        if self.batch.is_open:
            self._links[shard].link.flush_many()
        else:
            self._links[shard].link.flush()

    def reserve(self, shard: int, length: int, holder: Holder | None) -> ArenaBlock | None:
        """Shared memory for a long body that ``holder`` fills; None when there is no room.

        Raises `NotReady` when the shard is away. The holder is told to give up when the shard goes,
        or when others need the room more. Without a holder the block is filled and sent at once.
        """
        self._links[shard].check_answering()
        return reservations.reserve(self._links[shard].link, length, holder)

    def make_room(self, shard: int, holder: Holder, now: float) -> bool:
        """As `reservations.make_room`. Raises `NotReady` when the shard is away."""
        self._links[shard].check_connected()
        return reservations.make_room(self._links[shard].link, holder, now)

    def delay_ms(self, shard: int) -> float:
        """As `ShardLink.delay_ms`."""
        return self._links[shard].delay_ms

    def readiness(self) -> Readiness:
        """Of all shards together."""
        return readiness_of(self._links, draining=self._board.draining)
