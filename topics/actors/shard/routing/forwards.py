"""Forwards: copies of routers are appended to the dests of this shard (§6).

    router.forward --payload not linked--> linked in a thread --.
          '-----------------------------------------------------'--> for each router: its copies and
                     its cursor in one change --committed--> outcome; all outcomes --> answer

A router whose cursor is not where the forward begins takes nothing from it: the answer says where
it stands. So a forward that comes twice is done once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Final, TypeAlias

import structlog
import trio

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.replies import answer_error
from topics.actors.rpc.typed_calls import InboundCall, serve
from topics.actors.shard.context import ShardContext
from topics.actors.shard.held_topics import handle_late
from topics.actors.shard.routing.batches import records_in
from topics.actors.shard.routing.registry import Registry
from topics.actors.shard.service import Service
from topics.engine.changes.append import Append
from topics.engine.changes.forward import Advance, Forward, copy_ts, fitting
from topics.engine.routing.derivations import Derivation, derivation_of
from topics.engine.store import Unreadable
from topics.engine.topic import Topic
from topics.errors import NotReady, Throttled
from topics.formats.disk.copies import Copier, CopyRow, Stamp, decode_rows, rows_within
from topics.formats.disk.records import View
from topics.formats.wire.calls import (
    FORWARD,
    IN_MESSAGE,
    ForwardParams,
    ForwardResult,
    ForwardStatus,
    ForwardTarget,
)
from topics.storage.linked_logs import Gone
from topics.storage.wal.progress import Progress

ForwardCall: TypeAlias = InboundCall[ForwardParams, ForwardResult]
_Place: TypeAlias = tuple[int, int]

log: Final = structlog.get_logger()


class Forwards(Service):
    """Handles `router.forward`."""

    def __init__(self, context: ShardContext, registry: Registry) -> None:
        self._context, self._engine, self._registry = context, context.engine, registry
        self._pending: set[int] = set()  # routers whose change is under way

    def register(self, router: MessageRouter) -> None:
        """Serve all sessions of ``router``."""
        serve(router, FORWARD, self._forward)

    def _forward(self, request: ForwardCall) -> None:
        self._context.check_writable(grows=True)
        rows = decode_rows(request.params.rows)
        linked = self._context.wal.linked
        unlinked = {
            (row.shard, row.lsn)
            for row in rows
            if row.shard != IN_MESSAGE and not linked.is_linked(row.shard, row.lsn)
        }
        if unlinked and any(self._keeps_log(target) for target in _targets(request.params)):
            self._context.start(self._link, request, rows, unlinked)
            return
        self._copy_all(request, rows)

    def _keeps_log(self, target: ForwardTarget) -> bool:
        topic = self._engine.topics.get(target.dest)
        return topic is not None and topic.config.durability != "ephemeral"

    async def _link(
        self, request: ForwardCall, rows: Sequence[CopyRow], places: set[_Place]
    ) -> None:
        """Link what the rows name, then go on in a turn of its own."""
        failure: OSError | None = None
        try:
            await trio.to_thread.run_sync(self._context.wal.linked.link, sorted(places))
        except OSError as error:
            failure = error
            if not isinstance(error, Gone):
                log.warning("payload not linked", error=str(error))
        self._context.begin_turn()
        if failure is None:
            handle_late(partial(self._copy_all, rows=rows), request)
        else:
            handle_late(self._refuse_all, request)
        self._context.end_turn()

    def _refuse_all(self, request: ForwardCall) -> None:
        """The payload is gone, or this file system knows no links."""
        answers = _Answers(request)
        for index, target in enumerate(answers.targets):
            answers.settle(index, ForwardStatus.NO_PAYLOAD, self._at(target))
        request.release()

    def _at(self, target: ForwardTarget) -> Derivation:
        topic = self._engine.topics.get(target.dest)
        if topic is None:
            return Derivation(target.start_seq, 0)
        return derivation_of(topic, target.router, target.start_seq)

    # The copies

    def _copy_all(self, request: ForwardCall, rows: Sequence[CopyRow]) -> None:
        answers = _Answers(request)
        peeked: set[_Place] = set()
        try:
            views = self._views(rows, request, peeked)
        except (OSError, Unreadable) as error:
            log.warning("payload cannot be read", error=str(error))
            views = None
        request.release()
        request.outlast()
        copies = None if views is None else _Copies(request.params, rows, views, peeked)
        for index, target in enumerate(answers.targets):
            try:
                self._copy_to(target, copies, partial(answers.settle, index), request.params)
            except Exception as error:
                answers.fail(error)
                return

    def _views(
        self, rows: Sequence[CopyRow], request: ForwardCall, peeked: set[_Place]
    ) -> dict[_Place, View]:
        """The payloads that the rows name; ``peeked`` gets those that no log may name. Raises
        `Gone` or `Damaged`.
        """
        linked = self._context.wal.linked
        views: dict[_Place, View] = {}
        for row in rows:
            place = row.shard, row.lsn
            if place not in views:
                if row.shard == IN_MESSAGE:
                    views[place] = records_in(request.attachment)
                elif linked.is_linked(*place):
                    views[place] = linked.payload(*place)
                else:
                    views[place] = linked.peek(*place)
                    peeked.add(place)
        return views

    def _copy_to(
        self,
        target: ForwardTarget,
        copies: _Copies | None,
        settle: Callable[[ForwardStatus, Derivation], None],
        params: ForwardParams,
    ) -> None:
        """One router's part of a forward."""
        topic = self._engine.topics.get(target.dest)
        if topic is None or topic.id != target.dest_id:
            settle(ForwardStatus.NO_DEST, Derivation(target.start_seq, 0))
            return
        at = derivation_of(topic, target.router, target.start_seq)
        status = self._objection(target, topic, at, params)
        if status is None and copies is None:
            status = ForwardStatus.NO_PAYLOAD
        if status is not None:
            settle(status, at)
            return
        assert copies is not None, "the payload was read"
        self._context.freshen(topic)
        if params.trimmed or not copies.rows:
            reached = Derivation(params.to_seq, at.total)
            change = self._engine.advance(
                topic, target.router, reached, params.trimmed, self._context.now, params.hop
            )
            self._submit(change, settle, ForwardStatus.DONE, at)
        else:
            self._append(target, topic, at, copies, settle)

    def _objection(
        self, target: ForwardTarget, topic: Topic, at: Derivation, params: ForwardParams
    ) -> ForwardStatus | None:
        """Why the router takes nothing now; DONE: there is nothing to take."""
        # Of a router that is gone, which its source may not have heard, the cursor is forgotten.
        is_fed = self._registry.may_feed(topic.name, target.router)
        if not is_fed or target.router in self._pending or self._context.held.is_held(topic.name):
            return ForwardStatus.BUSY
        if at.cursor != params.from_seq:
            return ForwardStatus.BEHIND
        if params.to_seq == params.from_seq:
            return ForwardStatus.DONE
        return None

    def _append(
        self,
        target: ForwardTarget,
        topic: Topic,
        at: Derivation,
        copies: _Copies,
        settle: Callable[[ForwardStatus, Derivation], None],
    ) -> None:
        if copies.in_message and topic.config.durability != "ephemeral":
            settle(ForwardStatus.NOT_LOGGED, at)
            return
        if copies.peeked and topic.config.durability != "ephemeral":
            # Its link was released while others were made.
            settle(ForwardStatus.BUSY, at)
            return
        context, stamp = self._context, target.stamp
        ts = copy_ts(topic, context.now)
        encoded = copies.copier(stamp).render(topic.next_seq, ts)
        status, to_seq, part = ForwardStatus.DONE, copies.params.to_seq, None
        fits = fitting(self._engine.table, topic, encoded)
        if not fits:
            settle(ForwardStatus.FULL, at)
            return
        if fits < encoded.record_count:
            status, to_seq, part = ForwardStatus.FULL, copies.seq_of(fits - 1), fits
            encoded = copies.copier(stamp, part).render(topic.next_seq, ts)
        try:
            change = self._engine.forward(
                topic,
                target.router,
                Derivation(to_seq, at.total + encoded.record_count),
                encoded,
                copies.rows_for(stamp, part),
                copies.stamps_for(stamp),
                copies.params.hop,
                context.now,
            )
        except (Throttled, NotReady):  # another shard was faster
            settle(ForwardStatus.FULL, at)
            return
        self._submit(change, settle, status, at)

    def _submit(
        self,
        change: Forward | Advance,
        settle: Callable[[ForwardStatus, Derivation], None],
        status: ForwardStatus,
        before: Derivation,
    ) -> None:
        context = self._context
        self._pending.add(change.router)

        def settled(result: Progress | OSError) -> None:
            self._pending.discard(change.router)
            if isinstance(result, OSError):
                settle(ForwardStatus.BUSY, before)
                return
            if isinstance(change, Forward) and change.rows and change.locator is not None:
                context.wal.copies.remember(change.locator, change.view)
            settle(status, change.reached)

        context.commits.submit(change, settled)
        if isinstance(change, Append):
            reservation = self._engine.reserve(change.topic)
            if reservation is not None:
                context.commits.submit(reservation, None)


class _Copies:
    """What a forward has for all of its routers. Those that stamp alike share the renderings.
    ``peeked``: payloads that have no link.
    """

    def __init__(
        self,
        params: ForwardParams,
        rows: Sequence[CopyRow],
        views: Mapping[_Place, View],
        peeked: Set[_Place],
    ) -> None:
        self.params, self.rows, self._views, self.peeked = params, rows, views, peeked
        self._stamps = [Stamp(*fields) for fields in params.stamps]
        self._plain: Copier | None = None
        self.in_message = any(row.shard == IN_MESSAGE for row in rows)

    def copier(self, stamp: str | None, count: int | None = None) -> Copier:
        """Renders the copies of a router that stamps so; ``count``: only the first ones."""
        if stamp is None and count is None and self._plain is not None:
            return self._plain
        rows = self.rows_for(stamp, count)
        pieces = [(self._views[row.shard, row.lsn], row) for row in rows]
        copier = Copier(pieces, self.stamps_for(stamp))
        if stamp is None and count is None:
            self._plain = copier
        return copier

    def stamps_for(self, stamp: str | None) -> Sequence[Stamp]:
        """The stamps that rows of such a router may name."""
        params = self.params
        if stamp is None:
            return self._stamps
        return [Stamp(stamp, params.source, params.source_id, params.epoch)]

    def rows_for(self, stamp: str | None, count: int | None = None) -> Sequence[CopyRow]:
        """The rows of such a router's copies, by default of all."""
        rows = self.rows
        if stamp is not None:
            rows = [
                row._replace(stamp=1, stamp_seq=seq)
                for row, seq in zip(rows, self.params.seqs, strict=True)
            ]
        return rows if count is None else rows_within(rows, 0, count)

    def seq_of(self, index: int) -> int:
        """Seq in the source of a record."""
        for row, seq in zip(self.rows, self.params.seqs, strict=True):
            if index < row.stop - row.start:
                return seq + index
            index -= row.stop - row.start
        raise AssertionError("the rows hold all copies")


class _Answers:
    """The outcomes of a forward. It is answered when all are there."""

    def __init__(self, request: ForwardCall) -> None:
        self._request = request
        self.targets = [*_targets(request.params)]
        self._outcomes: list[tuple[int, int, int]] = [(ForwardStatus.BUSY, 0, 0)] * len(
            self.targets
        )
        self._left = len(self.targets)

    def settle(self, index: int, status: ForwardStatus, at: Derivation) -> None:
        """What became of one router's part."""
        self._outcomes[index] = int(status), at.cursor, at.total
        self._left -= 1
        if not self._left:
            self._request.reply(ForwardResult(self._outcomes))

    def fail(self, error: Exception) -> None:
        """Unexpected: the source asks again."""
        self._left = -1
        answer_error(self._request, error)


def _targets(params: ForwardParams) -> Iterator[ForwardTarget]:
    return map(ForwardTarget._make, params.targets)
