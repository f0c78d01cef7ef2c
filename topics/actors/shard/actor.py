"""One shard at work: take messages, decide, make durable, answer.

Messages come in batches from the links; every handler decides at once and puts its frames into the
group under way; after the batch the group goes to the log's writer. When the log reports how far it
is, what waited is committed and answered. No `await` stands between a decision and its frames, so
the log holds decisions in the order in which they were taken.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVarTuple

import structlog
import trio

from topics.actors.link.board import Board
from topics.actors.link.heads import HeadWriter
from topics.actors.link.link import Link
from topics.actors.link.pulse import DISK_STALLED, DISK_STALLED_S, Pulse
from topics.actors.rpc.message_router import (
    InboundMessage,
    LinkSession,
    MessageRouter,
    RouterConfig,
)
from topics.actors.rpc.replies import CONTRACT_ERROR, map_error, reply, request_of, total_ms
from topics.actors.shard.burst import Asker, Burst, Part
from topics.actors.shard.commits import Commits
from topics.actors.shard.feeds import Feeds
from topics.actors.shard.reads import Reads
from topics.actors.shard.room import Room
from topics.actors.shard.sealing import Sealing
from topics.actors.shard.streamed_appends import STREAMED_MIN_BYTES, Done, StreamedAppends
from topics.engine.shard import Append, Change, Delete, InFlightDuplicate, Now
from topics.engine.topic import Topic
from topics.errors import NotReady
from topics.formats.api import answers
from topics.formats.api.requests import Buffer, Limits, decode_append, decode_config, decode_delete
from topics.formats.wire.message import MessageFrame
from topics.process import logs
from topics.storage.disk import FULL, Damaged
from topics.storage.recovery import Shard
from topics.storage.wal.file import NoRoom
from topics.storage.wal.writer import Progress

# A long poll takes up to 30 s (§3); the router's own limit must not cut it short. A change that
# waits for its topic longer than this is not done; one that is decided is answered when the log has
# spoken.
RPC_TIMEOUT_MS = 45_000
HEARTBEAT_S = 0.5
log = structlog.get_logger()
Args = TypeVarTuple("Args")


def clock() -> Now:
    """Both clocks, in milliseconds."""
    return Now(time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000)


class ShardActor:
    """Serves the topics of one shard to all fronts."""

    def __init__(self, shard: Shard, index: int, board: Board, limits: Limits) -> None:
        self.engine, self.wal, self.limits = shard.engine, shard.wal, limits
        self.words = board.shard(index)
        self.commits = Commits(shard.engine, shard.wal, shard.segments, clock)
        self.commits.on_commit = self._committed
        self.sealing = Sealing(shard, self.commits)
        self.router = MessageRouter(
            RouterConfig(rpc_timeout_ms=RPC_TIMEOUT_MS, error_mapper=map_error)
        )
        self.streamed_appends = StreamedAppends(shard.engine, self.commits, limits, clock)
        self._disk, self._blobs, self._disk_is_stalled = Pulse(), Pulse(), False
        self.room = Room(shard, self.commits, self.words)
        # Deletes that had no room among others.
        self._repeated: list[tuple[Callable[[InboundMessage], None], InboundMessage]] = []
        self._now = clock()
        self._links: Sequence[Link] = ()
        self._nursery: trio.Nursery
        for name, handler in (
            ("append", self._append),
            ("append.many", self._append_many),
            ("topic.put", self._put),
            ("topic.delete", self._delete),
            ("topic.delete_records", self._delete_records),
        ):
            self.router.route(f"rpc/{name}", handler)
        self.reads = Reads(self, self.commits, limits, HeadWriter(board.heads(index)))
        self.reads.register(self.router)
        self.feeds = Feeds(self.commits, limits, self.fresh_topic, self._freshen)
        self.feeds.register(self.router)
        self._pumping = False

    # The loop

    async def run(self, links: Sequence[Link], stop: trio.Event) -> None:
        """Serve until ``stop``; then finish what waits for the log and return."""
        self._links = links
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for link in links:
                nursery.start_soon(self._serve, link)
            nursery.start_soon(self._follow_log)
            nursery.start_soon(self.router.expire_overdue)
            nursery.start_soon(self._beat)
            nursery.start_soon(self.sealing.run)
            nursery.start_soon(self.room.run)
            self.room.show()
            await stop.wait()
            await self._settle_all()
            nursery.cancel_scope.cancel()

    async def _serve(self, link: Link) -> None:
        session: LinkSession | None = None

        def opened() -> None:
            nonlocal session
            session = self.router.open_session(link.peer.session_name, link)

        def arrived(frames: list[MessageFrame]) -> None:
            assert session is not None, "messages come between open and close"
            self._now = clock()
            for frame in frames:
                rest = self.router.dispatch(session, frame)
                if rest is not None:
                    self._nursery.start_soon(_finish, rest)
            self.send_off()

        def closed() -> None:
            if session is not None:
                self.reads.abandon(session)
                session.close()

        await link.run(opened, arrived, closed)

    async def _follow_log(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self.wal.progress_fd)
            self.room.show(self.commits.advance())
            self._now = clock()
            self.repeat_deletes()
            self.send_off()

    def send_off(self) -> None:
        """What was decided goes to the log; what there is for feeds becomes messages, and all
        messages go to the fronts.
        """
        self.commits.flush()
        if self.feeds.pump() and not self._pumping:
            self._pumping = True
            self._nursery.start_soon(self._pump_on)
        self.commits.flush()
        for link in self._links:
            link.flush()

    async def _pump_on(self) -> None:
        await trio.lowlevel.checkpoint()
        self._pumping, self._now = False, clock()
        self.send_off()

    async def _settle_all(self) -> None:
        self.commits.flush()
        while len(self.commits) and self.room.broken is None:
            await trio.lowlevel.checkpoint()
            await trio.sleep(0.001)

    async def _beat(self) -> None:
        while True:
            self.words.heartbeat_ms = time.monotonic_ns() // 1_000_000
            self.words.topics = len(self.engine.topics)
            self.watch_disk(trio.current_time())
            logs.tell_dropped()
            await trio.sleep(HEARTBEAT_S)

    def watch_disk(self, now: float) -> None:
        """Tell how long the log's threads, or those of long writes, have hung in the kernel, while
        this loop lives.
        """
        waits = (len(self.commits) > 0 or self.wal.is_syncing) and self.room.broken is None
        silent_s = self._disk.look((self.commits.oldest, self.wal.synced) if waits else now, now)
        pours = self.streamed_appends.pouring
        silent_s = max(
            silent_s, self._blobs.look((pours, self.streamed_appends.poured) if pours else now, now)
        )
        self.words.disk_silent_ms = int(silent_s * 1000)
        if self._disk_is_stalled != (silent_s >= DISK_STALLED_S):
            self._disk_is_stalled = not self._disk_is_stalled
            if self._disk_is_stalled:
                log.error("disk stalled", silent_s=round(silent_s, 1))
            else:
                log.info("disk answers again")

    # Writes

    def _append(self, message: InboundMessage) -> None:
        rpc, params = request_of(message)
        self._writable(grows=True)
        if self.streamed_appends.holds(params["topic"], self._append, message):
            return
        if len(message.attachment) > STREAMED_MIN_BYTES:
            self.streamed_appends.take(params["topic"])
            rpc.outlast()  # it ends when all of its body is written
            self._nursery.start_soon(self._append_streamed, message)
            return
        self._append_now(rpc, params, message.attachment)
        rpc.outlast()
        message.release()

    def _append_many(self, message: InboundMessage) -> None:
        """Several short ones to one topic: as if each had come by itself, but answered together."""
        rpc, params = request_of(message)
        self._writable(grows=True)
        if self.streamed_appends.holds(params["topic"], self._append_many, message):
            return
        lengths = params["lengths"]
        burst, content, end = Burst(rpc, len(lengths)), message.attachment, 0
        for index, length in enumerate(lengths):
            part, start, end = Part(burst, index), end, end + length
            try:
                self._append_now(part, params, content[start:end])
            except Exception as error:
                part.error(*map_error(error, message))
        rpc.outlast()
        message.release()

    def _append_now(self, asker: Asker, params: dict[str, Any], content: Buffer) -> None:
        body = decode_append(content, params["key"], self.limits)
        self._freshen(self.engine.topics.get(params["topic"]))
        outcome = self.engine.append(params["topic"], body, self._now, params["prefixes"])
        if isinstance(outcome, Append):
            self.commits.submit(
                outcome, lambda result: self._answer_append(outcome, asker, params, result)
            )
            reservation = self.engine.reserve(outcome.topic)
            if reservation is not None:
                self.commits.submit(reservation, None)
        elif isinstance(outcome, InFlightDuplicate):
            outcome.leader.followers.append((asker, params))
        else:
            _reply_appended(
                asker, params, outcome.first_seq, outcome.record_count, (0.0, 0.0), deduped=True
            )

    async def _append_streamed(self, message: InboundMessage) -> None:
        rpc, params = request_of(message)
        name = params["topic"]
        try:
            outcome = await self.streamed_appends.run(
                name, message.attachment, params["key"], params["prefixes"]
            )
        except Exception as error:
            rpc.error(*map_error(error, message))
        else:
            if isinstance(outcome, Done):
                _reply_change(
                    rpc, params, outcome.change, outcome.progress, created=outcome.created
                )
            elif isinstance(outcome, OSError):
                _refuse(rpc, outcome)
            else:
                _reply_appended(
                    rpc, params, outcome.first_seq, outcome.record_count, (0.0, 0.0), deduped=True
                )
        message.release()
        self._give_back(name)

    def _handle_late(
        self, handler: Callable[[InboundMessage], None], message: InboundMessage
    ) -> None:
        """Handle a message that had to wait, as the router would have.

        Not one whose caller was told of a time-out, nor one whose front has gone: that front's
        successor waits for its memory.
        """
        if not request_of(message)[0].open or message.session.closed:
            message.release()
            return
        try:
            handler(message)
        except Exception as error:
            request_of(message)[0].error(*map_error(error, message))
            message.release()

    def _answer_append(
        self, change: Append, asker: Asker, params: dict[str, Any], result: Progress | OSError
    ) -> None:
        if isinstance(result, OSError):
            for lost, _ in ((asker, params), *change.followers):
                _refuse(lost, result)
            return
        _reply_change(asker, params, change, result, created=change.created)
        for follower, asked in change.followers:
            _reply_change(follower, asked, change, result, deduped=True)

    def _put(self, message: InboundMessage) -> None:
        rpc, params = request_of(message)
        self._writable(grows=params["topic"] not in self.engine.topics)
        if self.streamed_appends.holds(params["topic"], self._put, message):
            return
        self._freshen(
            self.engine.topics.get(params["topic"])
        )  # what is too old by the config so far does not come back
        change = self.engine.put(
            params["topic"], decode_config(message.attachment), self._now, params["prefixes"]
        )
        rpc.outlast()
        message.release()
        topic, config = change.topic, change.topic.config

        def settle(result: Progress | OSError) -> None:
            if isinstance(result, OSError):
                return _refuse(rpc, result)
            body = answers.configured(topic.name, config, created=change.created, epoch=topic.epoch)
            return reply(rpc, params, body, 201 if change.created else 200)

        self.commits.submit(change, settle)

    def _delete(self, message: InboundMessage, *, again: bool = False) -> None:
        rpc, params = request_of(message)
        self._writable()
        name = params["topic"]
        if self.streamed_appends.holds(name, self._delete, message):
            return None
        self._freshen(self.engine.topics.get(name))
        change = self.engine.delete(name, params["if_empty"], self._now)
        if change is None:
            return reply(rpc, params, answers.deleted(name, existed=False))
        rpc.outlast()

        def settle(result: Progress | OSError) -> None:
            if isinstance(result, OSError):
                return self._refuse_delete(self._delete, message, result, again=again)
            return reply(rpc, params, answers.deleted(name, existed=True))

        return self.commits.submit(change, settle)

    def _delete_records(self, message: InboundMessage, *, again: bool = False) -> None:
        rpc, params = request_of(message)
        self._writable()
        if self.streamed_appends.holds(params["topic"], self._delete_records, message):
            return
        asked = decode_delete(message.attachment)
        topic = self.fresh_topic(params["topic"])
        if asked.match is not None and self.engine.delete_must_wait(topic.name):
            self.streamed_appends.take(topic.name)
            self._nursery.start_soon(self._delete_when_idle, topic, message)
            return
        change = self.engine.delete_records(topic.name, asked.before_seq, asked.match, self._now)
        rpc.outlast()

        def settle(result: Progress | OSError) -> None:
            if isinstance(result, OSError):
                return self._refuse_delete(self._delete_records, message, result, again=again)
            body = answers.records_deleted(
                topic.name, change.deleted, earliest_seq=topic.start_seq, head_seq=topic.head_seq, count=topic.count, size=topic.bytes
            )  # fmt: skip
            return reply(rpc, params, body)

        self.commits.submit(change, settle)

    def _refuse_delete(
        self,
        handler: Callable[..., None],
        message: InboundMessage,
        error: OSError,
        *,
        again: bool,
    ) -> None:
        """A delete that shared a group with what grows had no right to the reserve: alone it has,
        so it is done once more.
        """
        if isinstance(error, NoRoom) and not again:
            self._repeated.append((partial(handler, again=True), message))
            return
        _refuse(request_of(message)[0], error)

    def repeat_deletes(self) -> None:
        """See `_refuse_delete`. Once the log goes on."""
        repeated, self._repeated = self._repeated, []
        for handler, message in repeated:
            self._handle_late(handler, message)

    async def _delete_when_idle(self, topic: Topic, message: InboundMessage) -> None:
        await self.commits.idle(topic)
        self._give_back(topic.name, (self._delete_records, message))

    def _give_back(
        self, name: str, *first: tuple[Callable[[InboundMessage], None], InboundMessage]
    ) -> None:
        """The topic is everyone's again: handle what has waited."""
        self._now = clock()
        for handler, waiting in (*first, *self.streamed_appends.give_back(name)):
            self._handle_late(handler, waiting)
        self.send_off()

    def fresh_topic(self, name: str) -> Topic:
        """The topic of that name, as it is now. Raises `TopicNotFound`."""
        topic = self.engine.topic(name)
        self._freshen(topic)
        return topic

    def _freshen(self, topic: Topic | None) -> None:
        """Let go what is too old, before anything is answered or decided."""
        if topic is not None and topic.perishable:
            try:
                change = self.engine.expire(topic, self._now)
            except Damaged as damage:
                return self.commits.tell(
                    damage
                )  # what is damaged does not keep the rest of the topic from its users
            if change is None:
                return None
            if self.room.refusal(grows=False) is None:
                self.commits.submit(change, None)
            else:
                self.engine.undo(change)  # the log is told when it can be
        return None

    def look_again(self, topic: Topic) -> None:
        """Time has passed: let go what is too old by now."""
        self._now = clock()
        self._freshen(topic)

    def start(self, task: Callable[[*Args], Awaitable[object]], *args: *Args) -> None:
        """Run ``task`` beside the loop, until the shard stops."""
        self._nursery.start_soon(task, *args)

    def _writable(self, *, grows: bool = False) -> None:
        refusal = self.room.refusal(grows=grows)
        if refusal is not None:
            raise _unwritable(refusal)
        if self._disk_is_stalled:
            raise NotReady("the disk of this shard does not answer", reason=DISK_STALLED)

    def _committed(self, change: Change) -> None:
        self.reads.committed(change)
        if isinstance(change, Append | Delete):
            self.feeds.committed(change)


async def _finish(rest: Any) -> None:
    await rest


def _reply_appended(
    asker: Asker,
    params: dict[str, Any],
    first_seq: int,
    count: int,
    took: tuple[float, float],
    *,
    created: bool = False,
    deduped: bool = False,
) -> None:
    body = answers.appended(
        params["topic"],
        first_seq,
        count,
        with_seqs=params["seqs"],
        created=created,
        deduped=deduped,
    )
    end = answers.performance(total_ms(params), wal_ms=took[0], fsync_ms=took[1])
    asker.reply({"status": 201 if created else 200}, body + end)


def _reply_change(
    asker: Asker,
    params: dict[str, Any],
    change: Append,
    progress: Progress,
    *,
    created: bool = False,
    deduped: bool = False,
) -> None:
    took = (progress.write_ms, progress.sync_ms if change.topic.config.durable else 0.0)
    _reply_appended(
        asker, params, change.first_seq, change.count, took, created=created, deduped=deduped
    )


def _unwritable(error: OSError) -> NotReady:
    reason = "disk_full" if error.errno in FULL else "read_only"
    return NotReady(f"the shard cannot write: {error.strerror or error}", reason=reason)


def _refuse(asker: Asker, error: OSError) -> None:
    refusal = _unwritable(error)
    asker.error(CONTRACT_ERROR, refusal.message, {"code": refusal.code, "detail": refusal.detail})
