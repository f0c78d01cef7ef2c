"""Shard loop: receives messages, makes changes, passes frames to the log and sends replies.

    links --messages--> inbox --batch--> router --> services: changes with frames, later replies
    log --progress--> group commit --> services: on_commit, replies
    deadline queue --time--> calls
                                       each ends an iteration: frames to the log, messages to links

The loop runs in one thread, one iteration at a time. An iteration runs in the callback that has
received the input, so no message waits for the scheduler to switch to another task. There is never
an `await` between the decision to make a change and the queueing of its frames, so the log contains
changes in the order in which they were made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import trio

from topics.actors.link.board import Board
from topics.actors.link.event_loop import EventLoop
from topics.actors.link.ledger import ShardLedger
from topics.actors.link.link import Link
from topics.actors.link.process_id import ProcessKind, shard_id
from topics.actors.rpc.message_router import MessageRouter, MessageRouterConfig
from topics.actors.rpc.replies import map_error
from topics.actors.rpc.session import LinkSession, Transport
from topics.actors.shard.context import ShardContext
from topics.actors.shard.heartbeat import CHECK_INTERVAL_MS
from topics.actors.shard.inbox import FIFO_MAX, WAITING_MAX, Arrival
from topics.actors.shard.peers import Loopback, Peers
from topics.actors.shard.service import Service
from topics.actors.shard.services import ShardServices
from topics.engine.changes.change import Change
from topics.formats.api.limits import Limits
from topics.formats.wire.calls import ACK, APPEND, CLAIM, DIFF, FEED_TAKEN, WORK_TAKEN
from topics.formats.wire.message import Message
from topics.storage.recovery.shard_recovery import RecoveredShard

# Subjects whose handlers do not depend on acks that arrived earlier in the same iteration. These
# messages do not end a batch of acks, which is processed at the end of the iteration. Claims are
# also served at the end of the iteration.
ACK_INDEPENDENT = frozenset(
    each.subject for each in (ACK, CLAIM, APPEND, DIFF, FEED_TAKEN, WORK_TAKEN)
)
# A long poll takes up to 30 s (§3), and the timeout of the message router must not end it earlier.
# A change that waits longer than this for its topic is not made. If a change was already made, the
# reply is sent when the log reports its outcome, even after this timeout.
RPC_TIMEOUT_MS = 45_000


class ShardLoop:
    """Serves the topics of one shard to the front and to other shards."""

    def __init__(self, shard: RecoveredShard, index: int, board: Board, limits: Limits) -> None:
        self.context = context = ShardContext(shard, limits, board.shard(index))
        # Set the callbacks of the context here, because they are methods of the loop.
        context.send, context.end_iteration = self._send, self.end_iteration
        context.commits.on_commit = self._committed
        context.commits.on_rollback = self._rolled_back
        self.commits, self.deadlines, self.inbox = context.commits, context.deadlines, context.inbox
        context.peers = Peers(board.shards, self.deadlines.wake)
        self.router = MessageRouter(
            MessageRouterConfig(rpc_timeout_ms=RPC_TIMEOUT_MS, error_mapper=map_error)
        )
        ledger = ShardLedger(board, index)
        self.services = services = ShardServices(context, shard, board.heads(index), ledger)
        for service in services:
            service.register(self.router)
        # Look up the hooks once. Most services define few of them, and the loop calls only those.
        self._on_config = [s.on_config for s in services if _defines(s, "on_config")]
        self._on_rollback = [s.on_rollback for s in services if _defines(s, "on_rollback")]
        self._heartbeat = services.heartbeat
        self._with_due: list[Service] = [s for s in services if _defines(s, "on_due")]
        self._on_closed = [
            s.on_session_closed for s in services if _defines(s, "on_session_closed")
        ]
        # Empty until `run` is called.
        self._links: Sequence[Link] = ()
        loopback = Loopback(self.inbox, self.deadlines.wake)
        loopback.session = self.open_session(shard_id(index).session_name, loopback)
        context.peers.add(index, loopback.session)

    async def run(self, links: Sequence[Link], stop: trio.Event) -> None:
        """Serve until ``stop`` is set. Then wait until all pending changes are settled."""
        self._links = links
        async with trio.open_nursery() as nursery:
            self.context.nursery = nursery
            for link in links:
                nursery.start_soon(self._serve, link)
            nursery.start_soon(self.follow_log)
            nursery.start_soon(self.follow_time)
            nursery.start_soon(self.router.expire_overdue)
            for service in self.services:
                nursery.start_soon(service.run)
            self.context.disk_space.show()
            await stop.wait()
            # From here on services start no new work. Requests whose changes wait for the log still
            # get their replies.
            self.context.is_stopping = True
            await self.commits.wait_drained()
            nursery.cancel_scope.cancel()

    # Events that begin an iteration

    async def _serve(self, link: Link) -> None:
        session: LinkSession | None = None

        def opened() -> None:
            nonlocal session
            session = self.open_session(link.peer.session_name, link)
            if link.peer.kind is ProcessKind.SHARD:
                self.context.peers.add(link.peer.index, session)

        def arrived(messages: list[Message]) -> None:
            assert session is not None, "messages arrive between open and close"
            inbox = self.inbox
            # If the inbox is empty, handle a few messages directly.
            if not inbox.count and len(messages) <= FIFO_MAX:
                self.run_iteration(((session, messages),))
                return
            is_first = not inbox.count
            inbox.put(session, messages)
            if is_first:
                self.run_iteration()
            # Do not return to the scheduler while the backlog is too long.
            while inbox.count > WAITING_MAX:
                self.run_iteration()

        def closed() -> None:
            if session is not None:
                session.close()

        await link.run(opened, arrived, closed)

    def open_session(self, peer_id: str, transport: Transport) -> LinkSession:
        """Open a session with a front or a shard. Services are notified when it closes."""
        session = self.router.open_session(peer_id, transport)
        for on_closed in self._on_closed:
            session.on_closed(on_closed)
        return session

    async def follow_log(self) -> None:
        """Commit and settle changes whenever the log reports a write, a sync or a failure."""
        await EventLoop.of_this_run().serve(self.context.wal.progress_fd, self._on_log)

    def _on_log(self, _events: int) -> None:
        self.context.disk_space.show(self.commits.advance())
        self.run_iteration()

    async def follow_time(self) -> None:
        """Run the calls of the deadline queue when they are due."""
        await self.deadlines.run(self._on_time)

    def _on_time(self) -> None:
        self.context.begin_iteration()
        self.deadlines.run_due(trio.current_time())
        self.run_iteration()

    # The loop iteration

    def run_iteration(self, arrived: Iterable[Arrival] | None = None) -> None:
        """Handle ``arrived``, or the next batch of the inbox if it is None."""
        context, handle = self.context, self.handle
        # Use one time for all decisions of the iteration.
        context.now = context.clock()
        for session, messages in self.inbox.next_batch() if arrived is None else arrived:
            for message in messages:
                handle(session, message)
        self.end_iteration()

    def handle(self, session: LinkSession, message: Message) -> None:
        """Handle one message of an iteration.

        Batched acks are processed first, unless the message does not depend on them
        (`ACK_INDEPENDENT`).
        """
        job_calls = self.services.job_calls
        if job_calls.gathered and message.subject not in ACK_INDEPENDENT:
            job_calls.decide_gathered()
        unfinished = self.router.dispatch(session, message)
        assert unfinished is None, "handlers of a shard are plain functions"

    def end_iteration(self) -> None:
        """Pass the frames to the log and the messages to the links.

        Schedule another iteration if the inbox, the log or a service has more work.
        """
        # The gathered acks are processed first, so that their frames are part of the flush that
        # follows. This flush precedes the services, so that they see the changes that it commits. A
        # second flush passes the frames of the services to the log.
        commits = self.commits
        job_calls = self.services.job_calls
        if job_calls.gathered:
            job_calls.decide_gathered()
        if commits.is_unsent:
            commits.flush()
        # Services add the frames and messages that result from this iteration.
        for service in self._with_due:
            if service.is_due:
                service.is_due = False
                service.on_due()
        self.context.iteration_count += 1
        if self.context.now.ms - self._heartbeat.checked_ms >= CHECK_INTERVAL_MS:
            self._heartbeat.publish_delay()
        if commits.is_unsent:
            commits.flush()
        self._send()
        has_more = self.inbox.count > 0 or commits.is_unsent
        # The last flush commits changes, which can make services due again.
        for service in self._with_due:
            has_more |= service.is_due
        if has_more:
            self.deadlines.wake()

    def _send(self) -> None:
        for link in self._links:
            link.flush()

    def _committed(self, change: Change) -> None:
        # Notify the services that follow this topic, such as feeds, long polls and its wait list.
        for follower in change.topic.followers:
            follower(change)
        if change.topic is not self.context.engine.table.shard_topic:
            self.context.note_changed(change.topic)
        if change.is_config:
            for on_config in self._on_config:
                on_config(change)

    def _rolled_back(self) -> None:
        for on_rollback in self._on_rollback:
            on_rollback()


def _defines(service: Service, hook: str) -> bool:
    return getattr(type(service), hook) is not getattr(Service, hook)
