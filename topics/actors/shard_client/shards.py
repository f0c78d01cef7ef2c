"""Shards: the front's client for all shards. Each shard has its own state:

              opened                     no heartbeat for STALLED_S
    AWAY -------------> ANSWERING --------------------------------------> STALLED
      ^    closed           |    <--------------------------------------     |
      '---------------------'---------------------------- closed -----------'
                                            a heartbeat

No call is sent to a stalled shard. Its pending calls fail, except calls that wait by design, such
as long polls and waiting claims. Such calls continue when the shard resumes. No write is sent to a
shard that waits for its disk.

    shards.call(shard, CALL, params, body, then)     ``then`` gets a `Reply` or a `TopicsError`
    await shards.answer(shard, CALL, params, body)   for a task: sends the call and waits
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

import structlog
import trio
from trio.lowlevel import Abort, RaiseCancelT

from topics.actors.link.arena import ArenaBlock, BlockFiller
from topics.actors.link.board import Board, ShardCells, ShardState, StartFailure
from topics.actors.link.event_loop import EventLoop
from topics.actors.link.heads import HeadMark, HeadSlotReader
from topics.actors.link.link import EARLY_FLUSH_BUFFERS, Link
from topics.actors.link.liveness import (
    DISK_STALLED,
    DISK_STALLED_S,
    STALLED,
    STALLED_S,
    Liveness,
)
from topics.actors.link.tick import wait_tick
from topics.actors.rpc.message_router import MessageRouter, MessageRouterConfig
from topics.actors.rpc.replies import failure_of
from topics.actors.rpc.session import (
    Attachment,
    InboundMessage,
    LinkSession,
    PendingCall,
    RemoteError,
    Reply,
    discard,
)
from topics.actors.shard_client.readiness import (
    LIMITED,
    SERVING,
    START_FAILURES,
    STATE_REASONS,
    Readiness,
)
from topics.errors import NotReady, Throttled, TopicsError
from topics.formats.buffers import Buffer
from topics.formats.names import shard_of
from topics.formats.wire.calls import (
    CLAIM,
    DIFF,
    FEED_ENDED,
    FEED_PAGE,
    UNCLAIMED,
    WORK_ENDED,
    WORK_JOBS,
    ClaimResult,
    FeedEndedParams,
    FeedPageParams,
    UnclaimedParams,
    WorkEndedParams,
    WorkJobsParams,
)
from topics.formats.wire.contract import Call, Event, P, R
from topics.formats.wire.message import Message, PeerClosed

LINKED_MAX_S: Final = 1.0  # a shard opens a session within one iteration of its loop
LINKED_POLL_S: Final = 0.001
RING_BYTES_PER_MS: Final = 100_000  # approximate rate at which a shard reads its ring
TURNOVER_MAX_S: Final = 10.0  # a slower body may be aborted to free memory
# Finds a positive ``wait_ms`` in the JSON of a diff or a claim, which is cheaper than decoding it.
# The name does not match within a string, where a backslash precedes each quotation mark. A name
# with escaped characters is not found: such a call fails if its shard stalls.
_WAITS: Final = re.compile(rb'"wait_ms"\s*:\s*[1-9]').search

log = structlog.get_logger()


class Listener(Protocol):
    """Receives the events of shards, in the loop that reads a ring. Its methods must not block."""

    def opened(self, shard: int) -> None:
        """The link session with the shard has opened, for the first time or again."""

    def closed(self, shard: int) -> None:
        """The shard's session has closed, and all its feeds and work streams have ended."""

    def page(self, shard: int, params: FeedPageParams, records: Buffer) -> None:
        """A page of a feed has arrived. ``records`` is valid until this returns."""

    def feed_ended(self, shard: int, params: FeedEndedParams) -> None:
        """A feed has ended in the shard."""

    def jobs(self, shard: int, params: WorkJobsParams, jobs: Buffer) -> None:
        """Jobs for a work stream have arrived. ``jobs`` is valid until this returns."""

    def work_ended(self, shard: int, params: WorkEndedParams) -> None:
        """A work stream has ended in the shard."""


class FlushBatch:
    """The messages that one pass of the front's loop sends to shards. They are flushed together.

    While the batch is open, a link is flushed early only when many messages are queued, so that the
    shard starts while the front is still reading. The end of the batch flushes all links. Code that
    runs while the batch is open must not block. ``at_end`` is called before the last flush, and may
    send more messages. The messages of the tasks that run afterwards (``runs_tasks``) are also
    flushed together.
    """

    __slots__ = ("_links", "at_end", "is_open", "runs_tasks")

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self.at_end: Callable[[], None] | None = None
        self.is_open = self.runs_tasks = False

    def __enter__(self) -> None:
        assert not self.is_open, "batches are not nested"
        self.is_open = True

    def end(self, *_: object) -> None:
        """Call ``at_end``, and flush the links."""
        if self.at_end is not None:
            self.at_end()
        self.is_open = False
        self.flush()

    __exit__ = end

    def flush(self) -> None:
        """Flush the links that have messages."""
        for link in self._links:
            if link.is_due:
                link.flush()

    @property
    def is_joined(self) -> bool:
        """Whether messages that are sent now are flushed together later in this pass."""
        return self.is_open or self.runs_tasks


class ShardLink:
    """One shard: its link, its link session if one is open, and its cells on the board."""

    def __init__(self, link: Link, cells: ShardCells, router: MessageRouter) -> None:
        self.link, self.cells, self.number = link, cells, link.peer.index
        self.peer_id = link.peer.session_name
        # ``session`` is set from `opened` to `closed`. ``answering`` is the same object, or None
        # while the shard is stalled.
        self.session: LinkSession | None = None
        self.answering: LinkSession | None = None
        self.listener: Listener | None = None
        self.waits_for_disk = False  # whether the shard waited for its disk at the last check
        self._router = router
        self._liveness = Liveness()

    def opened(self) -> None:
        """Open a session. Called when the link has connected."""
        self.session = self._router.open_session(self.peer_id, self.link, self._failure_of)
        self.answering = self.session
        # Restart the measurement, because the old process may have been silent for a long time.
        self._liveness, self.waits_for_disk = Liveness(), False
        if self.listener is not None:
            self.listener.opened(self.number)

    def arrived(self, messages: list[Message]) -> None:
        """Dispatch the messages of the shard."""
        session, dispatch = self.session, self._router.dispatch
        assert session is not None, "messages arrive between open and close"
        for message in messages:
            rest = dispatch(session, message)
            assert rest is None, "a front has no asynchronous handler"

    def closed(self) -> None:
        """Close the session. Called when the link has disconnected."""
        if self.session is not None:
            # Clear the fields before the listeners run, because they may call the shard again.
            session, self.session, self.answering = self.session, None, None
            session.close()
            # Bodies that were being received into the arena of this session are lost.
            for block in self.link.writer.filling:
                if block.filler is not None:
                    block.filler.abort(self.not_ready())
            if self.listener is not None:
                self.listener.closed(self.number)

    def _failure_of(self, error: RemoteError | PeerClosed) -> TopicsError:
        return failure_of(error) if isinstance(error, RemoteError) else self.not_ready()

    # State

    def check(self, now: float) -> None:
        """Check the shard's cells on the board. Called with each tick.

        Fail the calls to a shard that hangs.
        """
        session = self.session
        if session is None:
            return
        self.waits_for_disk = self.is_waiting_for_disk()
        # If the shard waits for its disk, writes may hang for a long time. Fail them immediately;
        # their outcome is unknown to the client.
        if self.waits_for_disk:
            session.fail_calls(lambda pending: pending.call.is_write)
        # If there has been no heartbeat for `STALLED_S`, the loop of the shard is blocked.
        stalled = self._liveness.observe(self.cells.heartbeat_ms, now) >= STALLED_S
        if stalled and not self.is_stalled:
            log.warning("shard stalled", shard=self.number)
            self.answering = None
            # Long polls and waiting claims have no deadline in the shard. They continue when the
            # shard resumes.
            session.fail_calls(lambda pending: not pending.is_long_poll)
        elif not stalled and self.is_stalled:
            log.info("shard resumed", shard=self.number)
            self.answering = session

    @property
    def is_connected(self) -> bool:
        """Whether a link session is open and has the current session number of the board.

        The comparison ensures that a process that has died is not mistaken for its replacement.
        """
        return self.link.connected

    @property
    def is_stalled(self) -> bool:
        """Whether a link session is open but heartbeats are missing."""
        return self.answering is not self.session

    def is_waiting_for_disk(self) -> bool:
        """Return whether the shard's writes have hung in the kernel for `DISK_STALLED_S`."""
        return self.cells.disk_silent_ms >= DISK_STALLED_S * 1000

    @property
    def progress(self) -> float:
        """The fraction of the shard's log that has been replayed, 0 to 1."""
        serves = self.is_connected and self.cells.state in SERVING
        return 1.0 if serves else self.cells.progress_ppm / 1e6

    @property
    def unavailable_reason(self) -> str:
        """A keyword for the reason why the shard does not serve requests; empty if it does."""
        state = self.cells.state
        if self.is_stalled:
            return DISK_STALLED if self.is_waiting_for_disk() else STALLED
        if state not in SERVING:
            if state != ShardState.DAMAGED and self.cells.start_failure:
                return START_FAILURES[StartFailure(self.cells.start_failure)]
            return state.name.lower()
        if not self.is_connected:
            name = state.name.lower()
            return name if name in STATE_REASONS else "connecting"
        return DISK_STALLED if self.is_waiting_for_disk() else ""

    def not_ready(self) -> NotReady:
        """Return the error for a call that the shard cannot serve now (§8.2, §0.6)."""
        reason, progress = self.unavailable_reason, self.progress
        if reason in STATE_REASONS:
            text = f"the shard of this topic {STATE_REASONS[reason]}"
            return NotReady(text, reason=reason, replay_progress=progress)
        return NotReady("the shard of this topic is not ready", replay_progress=progress)


class Shards:
    """The front's view of all shards. Shard numbers are indexes of ``links``."""

    def __init__(self, links: Sequence[Link], board: Board) -> None:
        self._board = board
        self._router = MessageRouter(MessageRouterConfig())
        self.batch = FlushBatch(links)
        self._links = [
            ShardLink(link, board.shard(link.peer.index), self._router) for link in links
        ]
        self._heads = [HeadSlotReader(board.heads(link.peer.index)) for link in links]
        self.count = len(links)

    def listen(self, listener: Listener) -> None:
        """Register the listener for the events of all shards. Call this once, before `run`."""
        numbers = {link.peer_id: link.number for link in self._links}
        for link in self._links:
            link.listener = listener

        def bare(notify: Callable[[int, Any], None]) -> Callable[[InboundMessage[Any, Any]], None]:
            return lambda message: notify(numbers[message.session.peer_id], message.params)

        def with_body(
            notify: Callable[[int, Any, Buffer], None],
        ) -> Callable[[InboundMessage[Any, Any]], None]:
            return lambda message: notify(
                numbers[message.session.peer_id], message.params, message.attachment
            )

        self._router.subscribe(FEED_PAGE, with_body(listener.page))
        self._router.subscribe(FEED_ENDED, bare(listener.feed_ended))
        self._router.subscribe(WORK_JOBS, with_body(listener.jobs))
        self._router.subscribe(WORK_ENDED, bare(listener.work_ended))

    async def run(self) -> None:
        """Transfer messages until cancelled."""
        # All messages of an iteration of the front are flushed together.
        EventLoop.of_this_run().iteration = self.batch
        async with trio.open_nursery() as nursery:
            for link in self._links:
                nursery.start_soon(link.link.run, link.opened, link.arrived, link.closed)
            while True:
                await wait_tick()
                self.check(trio.current_time())

    async def wait_linked(self) -> None:
        """Wait until each serving shard has a link session, for `LINKED_MAX_S` at most.

        `run` must run concurrently. Because of this wait, a restarted front does not refuse
        requests to a shard only because the session with the shard is still being opened.
        """
        with trio.move_on_after(LINKED_MAX_S):
            # The shard's state is in shared memory, which sets no event.
            while any(  # noqa: ASYNC110
                link.cells.state in SERVING and not link.is_connected for link in self._links
            ):
                await trio.sleep(LINKED_POLL_S)

    def check(self, now: float) -> None:
        """Check the heartbeats of all shards."""
        for link in self._links:
            link.check(now)

    def shard_of(self, topic: str) -> int:
        """Return the shard that owns the topic."""
        return shard_of(topic, self.count)

    # Calls

    def call(
        self,
        shard: int,
        call: Call[P, R],
        params: P,
        body: Attachment,
        then: Callable[[Reply[R] | TopicsError], None],
        *,
        early: bool = False,
    ) -> PendingCall:
        """Call a shard.

        ``then`` is called once with the reply or the failure, in the loop that reads the ring.

        While the shard is down, recovering or stalled, it cannot be called, and ``then`` gets
        `NotReady` immediately. If the shard enters such a state later, pending calls also fail with
        `NotReady`.

        While a batch is open or the tasks of a pass run, the call is flushed with other calls at
        their end. At other times, and with ``early``, it is flushed immediately. The call takes
        ownership of an ArenaBlock. A caller that no longer needs the reply must abandon the call.
        """
        link = self._links[shard]
        session = link.answering
        # The disk may have resumed since the last check, so its state is read again before a write
        # is refused.
        if session is None or (
            link.waits_for_disk and call.is_write and link.is_waiting_for_disk()
        ):
            # A shard that hangs must not get the write. It would execute the write later, when the
            # client has already received an error.
            discard(body)
            return self._refused(link, call, then)
        try:
            pending = session.call(call, params, body, then)  # type: ignore[arg-type]
        # The session has ended between the check and the call.
        except PeerClosed:
            return self._refused(link, call, then)
        if call is DIFF or call is CLAIM:
            pending.is_long_poll = isinstance(body, bytes | bytearray) and bool(_WAITS(body))
            if call is CLAIM:
                # The shard may lease jobs to an abandoned claim. They are released when the late
                # reply is received.
                pending.on_late = partial(self._release_jobs, shard, params)
        if early or not self.batch.is_joined or len(link.link.queue) >= EARLY_FLUSH_BUFFERS:
            link.link.flush()
        return pending

    def _refused(
        self, link: ShardLink, call: Call[P, R], then: Callable[[TopicsError], None]
    ) -> PendingCall:
        then(link.not_ready())
        return PendingCall(0, call, then, None, is_done=True)

    def _release_jobs(self, shard: int, params: Any, late: Reply[ClaimResult]) -> None:
        """Release the jobs of a claim whose client is no longer waiting."""
        if late.result.seqs:
            self.notify(shard, UNCLAIMED, UnclaimedParams(params.topic, *late.result))

    async def answer(
        self, shard: int, call: Call[P, R], params: P, body: Attachment = b""
    ) -> Reply[R]:
        """Call a shard and wait for the reply, in a task.

        Raises the failure. Cancellation abandons the call.
        """
        answers: list[Reply[R] | TopicsError] = []
        task, is_waiting = trio.lowlevel.current_task(), False

        def answered(answer: Reply[R] | TopicsError) -> None:
            answers.append(answer)
            # If the call has failed immediately, the task is still running.
            if is_waiting:
                trio.lowlevel.reschedule(task)

        def abort(_raise_cancel: RaiseCancelT) -> Abort:
            pending.abandon()
            return Abort.SUCCEEDED

        # The callback may run inside `call` if the shard cannot be called.
        pending = self.call(shard, call, params, body, answered)
        if not answers:
            is_waiting = True
            await trio.lowlevel.wait_task_rescheduled(abort)
        answer = answers[0]
        if isinstance(answer, TopicsError):
            raise answer
        return answer

    def notify(self, shard: int, event: Event[P], params: P, *, is_deferred: bool = False) -> None:
        """Send an event to a shard, flushed like a call. The event is dropped if the shard is down.

        ``is_deferred``: the event may wait until another message is sent.
        """
        link = self._links[shard]
        # Events are never retried. A shard that restarts has none of the feeds or streams that
        # they refer to.
        if link.session is not None:
            try:
                link.session.notify(event, params)
            except PeerClosed:
                return
            if is_deferred:
                link.link.defer_flush()
            elif not self.batch.is_joined:
                link.link.flush()

    # Shared memory for long bodies

    def reserve(self, shard: int, length: int, filler: BlockFiller | None) -> ArenaBlock | None:
        """Reserve shared memory for a long body that ``filler`` fills.

        Return None if there is no space.

        Raises `NotReady` if the shard is unavailable. `BlockFiller.abort` makes ``filler`` free the
        block if the shard disconnects or faster bodies need the memory. If ``filler`` is None, the
        block must be filled and sent immediately.
        """
        link = self._links[shard]
        if link.answering is None or not link.is_connected:
            raise link.not_ready()
        block = link.link.reserve(length)
        if block is not None:
            block.filler = filler
        return block

    def abort_slowest(self, shard: int, filler: BlockFiller, now: float) -> bool:
        """Abort the slowest body, unless it is the body of ``filler`` or no body is slow.

        A body keeps its memory while at least a tenth of its size is received per second. Return
        whether a body was aborted. Its memory is freed when other tasks run. Raises `NotReady` if
        the shard is unavailable.
        """
        link = self._links[shard]
        if not link.is_connected:
            raise link.not_ready()
        # Use a dict, so that a filler that fills several blocks is included only once.
        holders = {
            block.filler: None for block in link.link.writer.filling if block.filler is not None
        }
        slowest = max(holders, key=lambda one: one.turnover_s(now), default=filler)
        # The body to abort must be slower than `TURNOVER_MAX_S`, and slower than the body that
        # needs the memory.
        bound = max(TURNOVER_MAX_S, filler.turnover_s(now))
        if slowest is filler or slowest.turnover_s(now) < bound:
            return False
        reason = "memory is full, and this large body arrives too slowly"
        slowest.abort(Throttled(reason, retry_after_ms=1000))
        return True

    # State of the shards

    def head(self, shard: int, mark: HeadMark) -> int | None:
        """Return the head of the topic of a read-ahead page, or None if the page is outdated."""
        return self._heads[shard].head(mark)

    def delay_ms(self, shard: int) -> float:
        """Return how long a message sent now is expected to wait in the ring and the shard, in ms.

        Return 0 while the shard is unavailable or stalled, because no call is sent to it.
        """
        link = self._links[shard]
        if link.answering is None:
            return 0.0
        return link.cells.delay_ms + link.link.backlog_bytes / RING_BYTES_PER_MS

    def readiness(self) -> Readiness:
        """Return the combined state of all shards."""
        links = self._links
        troubles = [(link.number, link.unavailable_reason) for link in links]
        unavailable = tuple(
            (number, unavailable_reason)
            for number, unavailable_reason in troubles
            if unavailable_reason
        )
        states = [(link.number, link.cells.state) for link in links]
        return Readiness(
            ready=not unavailable,
            progress=sum(link.progress for link in links) / len(links),
            topics=sum(link.cells.topics for link in links),
            draining=self._board.draining,
            unavailable=unavailable,
            limited=tuple(
                (number, state.name.lower()) for number, state in states if state in LIMITED
            ),
        )
