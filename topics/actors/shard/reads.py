"""What a shard answers to readers: pages at once, long polls later, pages ahead of those who read
on, and states of topics (§1, §3).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVarTuple

import trio

from topics.actors.link.heads import HeadWriter, holds_still
from topics.actors.rpc.message_router import (
    ErrorCode,
    InboundMessage,
    LinkSession,
    MessageRouter,
    RpcContext,
)
from topics.actors.rpc.replies import map_error, reply, request_of, total_ms
from topics.actors.shard.commits import Commits
from topics.engine.changes.append import Append
from topics.engine.changes.change import Change
from topics.engine.changes.delete_topic import DeleteTopic
from topics.engine.now import Now
from topics.engine.page import Page
from topics.engine.reading import read
from topics.engine.topic import Topic
from topics.formats.api import answers
from topics.formats.api.requests import Diff, Limits, decode_diff
from topics.formats.json_text import json_bytes
from topics.storage.disk import Damaged

# A diff looks at all that is there when it comes, whatever its wait_ms; it must be answered before
# the router gives it up.
SCAN_S_MAX = 20.0
RUN_BYTES = 1 << 20  # of pages that are read ahead in one go
Args = TypeVarTuple("Args")


class Host(Protocol):
    """What the loop of a shard does for those who answer in it."""

    def fresh_topic(self, name: str) -> Topic:
        """The topic of that name, as it is now. Raises `TopicNotFound`."""

    def look_again(self, topic: Topic) -> None:
        """Time has passed: let go what is too old by now."""

    def send_off(self) -> None:
        """Outside of a batch of messages: what was answered goes to the fronts."""

    def start(self, task: Callable[[*Args], Awaitable[object]], *args: *Args) -> None:
        """Run ``task`` beside the loop."""


class Reads:
    """Answers readers. ``heads``: of topics that are read ahead."""

    def __init__(self, host: Host, commits: Commits, limits: Limits, heads: HeadWriter) -> None:
        self._host, self._commits, self._limits, self._heads = host, commits, limits, heads
        self._changed: dict[int, trio.Event] = {}
        self._polls: dict[tuple[LinkSession, int], trio.CancelScope] = {}

    def register(self, router: MessageRouter) -> None:
        """Serve all sessions of ``router``."""
        router.route("rpc/diff", self._diff)
        router.route("rpc/topic.get", self._get)
        router.route("rpc/topic.list", self._list)
        router.route("event/call.cancelled", self._cancelled)

    # What happens in the shard

    def committed(self, change: Change) -> None:
        """Something has happened to a topic."""
        self._heads.committed(change)
        if isinstance(change, Append | DeleteTopic):
            event = self._changed.pop(change.topic.id, None)
            if event is not None:
                event.set()

    def abandon(self, session: LinkSession) -> None:
        """The front has gone: nobody waits any more."""
        for (owner, _), scope in list(self._polls.items()):
            if owner is session:
                scope.cancel()

    # Requests

    def _diff(self, message: InboundMessage) -> None:
        rpc, params = request_of(message)
        asked = decode_diff(message.attachment, self._limits)
        message.release()
        topic = self._host.fresh_topic(params["topic"])
        topic.touch(*self._commits.now())
        page = read(topic, asked, self._commits)
        if "ahead" in params:
            self._reply_ahead(rpc, params["ahead"], topic, asked, page)
        elif page.unfinished or (asked.wait_ms and not page.worth_answering):
            # From here on, not from when the task begins: what is committed in between must wake
            # it.
            changed = self._changed.setdefault(topic.id, trio.Event())
            # So is its end: the cancel, or the end of the session, may come in the same batch of
            # messages.
            scope = self._polls[message.session, rpc.cid] = trio.CancelScope()
            self._host.start(
                self._long_poll, scope, message, rpc, params, topic, asked, page, changed
            )
        else:
            _reply_page(rpc, params, topic, page)

    def _reply_ahead(
        self, rpc: RpcContext, limit: int, topic: Topic, asked: Diff, page: Page
    ) -> None:
        """Up to ``limit`` pages that nobody has asked for yet, without their ends; none that may be
        another when somebody does.
        """
        bodies: list[bytes] = []
        pages: list[tuple[int, int, int]] = []
        room = RUN_BYTES
        while holds_still(topic, page) and len(pages) < limit:
            bodies.append(answers.difference(topic.name, page.pieces))
            length = len(bodies[-1])
            room -= length
            if room < 0:
                break
            pages.append((length, page.next_from_seq, page.scanned))
            if room < length:  # the next one is likely to be as long
                break
            page = read(topic, asked, self._commits, page.next_from_seq)
        if not pages:
            rpc.reply({})
            return
        self._commits.expect(topic, pages[-1][1] + 1)
        result = {
            "mark": self._heads.mark(topic),
            "pages": pages,
            "earliest": topic.earliest_seq,
            "epoch": topic.epoch,
        }
        rpc.reply(result, b"".join(bodies[: len(pages)]))

    async def _long_poll(
        self,
        scope: trio.CancelScope,
        message: InboundMessage,
        rpc: RpcContext,
        params: dict[str, Any],
        topic: Topic,
        asked: Diff,
        page: Page,
        changed: trio.Event,
    ) -> None:
        scanned, failure, head_seq = page.scanned, None, page.head_seq
        began = trio.current_time()
        with scope:
            with trio.move_on_at(began + SCAN_S_MAX) as limit:
                while not page.worth_answering and not topic.deleted:
                    if page.next_from_seq >= head_seq:  # all that was there is looked through
                        limit.deadline = began + asked.wait_ms / 1000
                        if limit.deadline <= trio.current_time():
                            break
                    if page.unfinished:
                        await trio.lowlevel.checkpoint()
                    else:
                        await changed.wait()
                    try:
                        if not topic.deleted:
                            self._host.look_again(topic)
                            changed = self._changed.setdefault(topic.id, trio.Event())
                        page = read(topic, asked, self._commits, page.next_from_seq)
                    except (
                        Damaged,
                        OSError,
                    ) as error:  # costs this reader its answer, and nobody else
                        failure = error
                        break
                    scanned += page.scanned
        self._polls.pop((message.session, rpc.cid), None)
        if scope.cancelled_caught:
            rpc.error(ErrorCode.TIMEOUT, "nobody waits any more")
            return
        page.scanned = scanned
        if failure is not None:
            rpc.error(*map_error(failure, message))
        else:
            _reply_page(rpc, params, topic, page)
        self._host.send_off()

    def _cancelled(self, message: InboundMessage) -> None:
        assert message.notification is not None, "event/ subjects come with a notification"
        scope = self._polls.get((message.session, message.notification.params["cid"]))
        if scope is not None:
            scope.cancel()

    def _get(self, message: InboundMessage) -> None:
        rpc, params = request_of(message)
        topic = self._host.fresh_topic(params["topic"])
        if params["touch"]:
            topic.touch(*self._commits.now())
        reply(rpc, params, answers.state(_state(topic, self._commits.now())))

    def _list(self, message: InboundMessage) -> None:
        rpc, params = request_of(message)
        items: list[list[Any]] = []
        for name in self._commits.engine.names(
            params["prefix"], params["after"], params["prefixes"]
        ):
            if len(items) == params["limit"]:
                break
            topic = self._host.fresh_topic(name)
            if params["touch"]:
                topic.touch(*self._commits.now())
            items.append([name, json_bytes(_summary(topic, self._commits.now()))])
        rpc.reply({"items": items})


def _reply_page(rpc: RpcContext, params: dict[str, Any], topic: Topic, page: Page) -> None:
    end = answers.difference_end(
        next_from_seq=page.next_from_seq, head_seq=page.head_seq, earliest_seq=page.earliest_seq, epoch=topic.epoch,
        tombstone=page.tombstone.as_json() if page.tombstone else None, scanned=page.scanned, total_ms=total_ms(params),
    )  # fmt: skip
    result = (
        {"status": 200, "next": page.next_from_seq} if holds_still(topic, page) else {"status": 200}
    )
    rpc.reply(result, answers.difference(topic.name, page.pieces, end))


def _summary(topic: Topic, now: Now) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "head_seq": topic.head_seq,
        "earliest_seq": topic.earliest_seq,
        "count": topic.count,
        "bytes": topic.bytes,
        "durable": topic.config.durable,
        "effective_priority": topic.effective_priority(now.ms),
    }


def _state(topic: Topic, now: Now) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "type": topic.config.type,
        "head_seq": topic.head_seq,
        "earliest_seq": topic.earliest_seq,
        "next_seq": topic.head_seq + 1,
        "count": topic.count,
        "bytes": topic.bytes,
        "epoch": topic.epoch,
        "config": topic.config.as_json(),
        "effective_priority": topic.effective_priority(now.ms),
        "last_write_ts": topic.last_write_ts,
        "last_read_ts": topic.last_read_ts,
    }
