"""Forwards: append the copies that routers make to the dests in this shard (§6).

    1. `router.forward` arrives. For each router, check that its cursor is at ``from_seq`` and that
       its dest has space.
    2. Routers whose copies are equal share ONE frame with the payload and all of their cursors.
    3. The commit of the frame determines the outcome for its routers. When all outcomes are known,
       they are sent in one reply.

If a router's cursor is not where the forward begins, the forward changes nothing for that router,
and the reply contains the actual cursor. So a forward that is sent twice is applied once. If the
log file already contains the payload, from an earlier forward or from the source itself, the frame
refers to it instead of containing it again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import structlog

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.replies import answer_error
from topics.actors.rpc.session import InboundMessage
from topics.actors.shard.context import ShardContext
from topics.actors.shard.routing.batches import frame_bytes_max, records_in
from topics.actors.shard.routing.registry import RouterRegistry
from topics.actors.shard.service import Service
from topics.engine.changes import forward, reservation
from topics.engine.changes.forward import (
    Advance,
    Forward,
    ForwardDest,
    Forwarded,
    bytes_left,
    copy_ts,
    count_fitting,
    records_left,
)
from topics.engine.routing.derivations import Derivation, derivation_of
from topics.engine.store import Unreadable
from topics.formats.disk.copies import (
    OWN_STAMP,
    Copier,
    ForwardBody,
    OwnStamp,
    Run,
    Stamp,
    decode_forward,
    decode_runs,
    is_row,
    row_index,
    runs_within,
)
from topics.formats.disk.frames import FrameKind
from topics.formats.disk.records import RecordFlags, RecordsView
from topics.formats.wire.calls import (
    FORWARD,
    ForwardParams,
    ForwardResult,
    ForwardStatus,
    ForwardTarget,
)
from topics.storage.wal.log_progress import LogProgress

ForwardCall: TypeAlias = InboundMessage[ForwardParams, ForwardResult]

Settle: TypeAlias = Callable[..., None]
"""`_Answers.settle`, bound to one target."""

LOGGED_MAX: Final = 16  # maximum number of batches whose payload later frames may refer to
_EXTERNAL: Final = int(RecordFlags.EXTERNAL)

log = structlog.get_logger()


class Forwards(Service):
    """Handles `router.forward`."""

    def __init__(self, context: ShardContext, registry: RouterRegistry) -> None:
        self._context, self._engine, self._registry = context, context.engine, registry
        # A router is in this set from the submission of its change until the commit. The shard of
        # the source has at most one forward of a router in flight, but after a restart it may
        # repeat a forward whose first attempt is still pending.
        self._pending: set[int] = set()  # routers with a pending change
        # Payloads that the log contains, with the LSN of their frame, by session and batch number,
        # the newest last.
        self._logged: OrderedDict[tuple[Any, int], tuple[int, RecordsView]] = OrderedDict()
        self._losses = 0  # the number of rollbacks when `_logged` was last valid

    def register(self, router: MessageRouter) -> None:
        """Register the handlers for all sessions of ``router``."""
        router.serve(FORWARD, self._forward)

    def _forward(self, request: ForwardCall) -> None:
        # First settle the targets that cannot take part. If no target is left, the reply has been
        # sent.
        self._context.check_writable(grows=True)
        params, answers = request.params, _Answers(request)
        takers: dict[int, ForwardDest] = {}  # by the index of the target
        for index, target in enumerate(answers.targets):
            taker = self._checked_taker(target, params, partial(answers.settle, index))
            if taker is not None:
                takers[index] = taker
        # Copy the attachment only if its records are needed, because it is in memory that is
        # shared with the sender and is released below.
        records = None
        if takers and params.batch and not self._is_logged(request):
            records = records_in(request.attachment)
        request.release()
        if not takers:
            return
        # The reply is sent after the commit. A timeout would report an error although the copies
        # are made.
        request.disable_timeout()
        try:
            if params.trimmed or not params.runs:
                self._advance(params, takers, answers)
            else:
                self._copy(request, takers, answers, records)
        # Any error must settle the request, because the source waits for the reply before it
        # continues.
        except Exception as error:
            answers.fail(error)

    def _checked_taker(
        self, target: ForwardTarget, params: ForwardParams, settle: Settle
    ) -> ForwardDest | None:
        """Return the target if it takes part in the forward, or settle it and return None."""
        topic = self._engine.topics.get(target.dest)
        # The topic has been deleted, or deleted and created again. No copies must be appended to
        # the new topic.
        if topic is None or topic.id != target.dest_id:
            settle(ForwardStatus.NO_DEST, Derivation(target.start_seq, 0))
            return None
        at = derivation_of(topic, target.router, target.start_seq)
        # Accept no copies from a removed router, even if the shard of its source still sends them.
        is_fed = self._registry.may_feed(topic.name, target.router)
        # A router has at most one pending change, and a held topic accepts no changes.
        if not is_fed or target.router in self._pending or self._context.held.is_held(topic.name):
            settle(ForwardStatus.BUSY, at)
        # The cursor in this shard's log is authoritative. It is committed in the same frame as the
        # copies, so an equal cursor proves that none of these records has been copied.
        elif at.cursor != params.from_seq:
            settle(ForwardStatus.BEHIND, at)
        elif params.to_seq == params.from_seq:
            # A forward that contains no range requests the cursor, or space for ``need`` bytes.
            self._context.remove_expired(topic)
            left = bytes_left(self._engine.table, topic) if params.need else None
            has_room = left is None or left >= params.need
            is_full = params.need and not (has_room and records_left(topic, 1))
            settle(ForwardStatus.FULL if is_full else ForwardStatus.DONE, at, params.need)
        else:
            # Remove expired records before the capacity is checked, because that may free space.
            self._context.remove_expired(topic)
            return ForwardDest(topic, target.router, at.total, target.name)
        return None

    def _advance(
        self, params: ForwardParams, takers: Mapping[int, ForwardDest], answers: _Answers
    ) -> None:
        forwarded = forward.advance(
            [*takers.values()], params.to_seq, params.trimmed, params.hop, self._context.now
        )
        self._submit(forwarded, params, takers, answers, ForwardStatus.DONE)

    # Copies

    def _copy(
        self,
        request: ForwardCall,
        takers: Mapping[int, ForwardDest],
        answers: _Answers,
        records: RecordsView | None,
    ) -> None:
        # The records are in the message, or the message refers to their frames in this shard's log.
        params = request.params
        try:
            payload = self._payload(request, records)
        except Unreadable as error:
            log.warning("forward records unreadable", error=str(error))
            payload = None
        if payload is None:  # the records are unreadable, or are not in the current log file
            _settle_all_behind(takers, params, answers)
            return
        # Dests may differ in `$ts`, in free space and in the size of their copies. Dests that agree
        # in all three form a group, which gets one frame.
        groups: dict[_CopyGroup, dict[int, ForwardDest]] = {}
        copiers: dict[_CopyGroup, Copier] = {}
        plain: Copier | None = None
        for index, taker in takers.items():
            # If the routers add no stamps, all copies are equal and share a renderer.
            copier = plain or payload.copier(taker.name)
            if not payload.is_stamped:
                plain = copier
            topic = taker.topic
            ts = copy_ts(topic, self._context.now)
            fits = count_fitting(self._engine.table, topic, copier, ts)
            # The dest has no space for the first copy. Report the size of this copy.
            if not fits:
                need = copier.first_size(topic.next_seq, ts)
                at = Derivation(params.from_seq, taker.total)
                answers.settle(index, ForwardStatus.FULL, at, need)
                continue
            # Only some copies fit. The dest takes these, and the cursor stops after them.
            if fits < copier.count:
                copier = payload.copier(taker.name, fits)
            # Dests whose copies have the same time, number and size share one frame.
            group_key = _CopyGroup(ts, fits, copier.tail_bytes)
            groups.setdefault(group_key, {})[index] = taker
            copiers.setdefault(group_key, copier)
        for group_key, group in groups.items():
            # The first frame contains the payload. The frames of the following groups refer to it.
            payload = self._copy_group(
                request, payload, copiers[group_key], group_key, group, answers
            )

    def _copy_group(
        self,
        request: ForwardCall,
        payload: _Payload,
        copier: Copier,
        group_key: _CopyGroup,
        takers: Mapping[int, ForwardDest],
        answers: _Answers,
    ) -> _Payload:
        """Append the copies to the dests of a group.

        Return the payload to which the frame of the next group refers.
        """
        params = request.params
        is_all = group_key.copies == payload.records
        # FULL also reports partial success: the cursor has moved, and the rest remains in the
        # source.
        status = ForwardStatus.DONE if is_all else ForwardStatus.FULL
        to_seq = params.to_seq if is_all else payload.seq_of(group_key.copies - 1, params.seqs)
        # A frame may refer only to frames of its own log file.
        if not self._fits(payload, takers.values()):
            if not payload.logged_at:
                # Begin a new log file, because the source would otherwise refer to frames of the
                # current file again.
                self._context.wal.end_file()
                _settle_all_behind(takers, params, answers)
                return payload
            # The log file with the payload is full, so the new frame contains the payload again.
            payload = payload._replace(logged_at=0)
        body = payload.body(group_key.copies)._replace(
            cursor=to_seq, hop=params.hop, tail_bytes=copier.tail_bytes
        )
        if payload.is_stamped:
            # With `exactly_once`, each copy has a stamp of its router, source and source seq,
            # which the frame stores once for all rows.
            body = body._replace(
                own_stamp=OwnStamp(params.source, params.source_id, params.epoch, ())
            )
        forwarded = forward.forward(
            self._engine.table, [*takers.values()], copier, body, group_key.ts, self._context.now
        )
        lsn = self._submit(forwarded, params, takers, answers, status)
        # Later messages of this fan-out contain the same records. Store the LSN of the frame, so
        # that their frames refer to it instead of containing the payload again.
        if lsn and body.payload is not None:
            payload = payload._replace(logged_at=lsn)
            if params.batch:
                self._logged[request.session, params.batch] = lsn, body.payload
                if len(self._logged) > LOGGED_MAX:
                    self._logged.popitem(last=False)
        return payload

    def _submit(
        self,
        forwarded: Forwarded,
        params: ForwardParams,
        takers: Mapping[int, ForwardDest],
        answers: _Answers,
        status: ForwardStatus,
    ) -> int:
        """Submit the changes, and return the LSN of their frame; 0 if there are no changes."""
        indexes = {taker.router: index for index, taker in takers.items()}
        # Other shards may have used up the shared byte quota since the check.
        for taker in forwarded.refused:
            at = Derivation(params.from_seq, taker.total)
            answers.settle(indexes[taker.router], ForwardStatus.FULL, at)
        if not forwarded.changes:
            return 0
        # From now until `settled`, other forwards of these routers get BUSY.
        self._pending.update(change.router for change in forwarded.changes)
        totals = {taker.router: taker.total for taker in takers.values()}

        def settled(change: Forward | Advance, result: LogProgress | OSError) -> None:
            router = change.router
            self._pending.discard(router)
            # The log has lost the frame, and the change is undone. The source repeats the
            # forward.
            if isinstance(result, OSError):
                before = Derivation(params.from_seq, totals[router])
                answers.settle(indexes[router], ForwardStatus.BUSY, before)
            else:
                answers.settle(indexes[router], status, change.reached)

        commits = self._context.commits
        lsn = commits.submit_forward(forwarded, settled)
        # Copies use up reserved seqs like other writes. Reserve more before they run out.
        for change in forwarded.changes:
            if isinstance(change, Forward):
                reserved = reservation.decide(change.topic)
                if reserved is not None:
                    commits.submit(reserved, None)
        return lsn

    # Locations of the records

    def _is_logged(self, request: ForwardCall) -> bool:
        """Return whether the log file contains the payload of this batch."""
        # After a rollback, the stored LSNs may be beyond the end of the log, or refer to other
        # frames.
        if self._losses != self._context.commits.rollback_count:
            self._losses = self._context.commits.rollback_count
            self._logged.clear()
        found = self._logged.get((request.session, request.params.batch))
        return found is not None and self._may_name(found[0], request.params)

    def _may_name(self, lsn: int, params: ForwardParams) -> bool:
        """Return whether a frame for this forward may refer to the frame at ``lsn``."""
        names = [target[-1] for target in params.targets]
        return self._context.wal.may_name(lsn, frame_bytes_max(len(params.seqs), names))

    def _fits(self, payload: _Payload, takers: Iterable[ForwardDest]) -> bool:
        """Return whether the new frame fits in the log file of the frames to which it refers."""
        named = payload.named
        names = [taker.name for taker in takers]
        texts = [text for stamp in payload.stamps for text in stamp[:2]]
        length = frame_bytes_max(len(payload.runs), [*names, payload.params.source, *texts])
        return not named or self._context.wal.may_name(min(named), length)

    def _payload(self, request: ForwardCall, records: RecordsView | None) -> _Payload | None:
        """Return the records, or None if their frames are not in the current log file."""
        params = request.params
        runs = decode_runs(params.runs)
        if not params.batch:
            # If there is no batch number, the runs refer to frames of this shard's log by LSN.
            return self._named(runs, params)
        lsn, view = 0, records
        if view is None:
            # The message contains no records, or they were not copied, because `_is_logged` found
            # them in the log.
            lsn, view = self._logged[request.session, params.batch]
        return _Payload(runs, (), {0: view}, params, lsn)

    def _named(self, runs: Sequence[Run], params: ForwardParams) -> _Payload | None:
        """Return the records of runs that refer to frames of the log.

        Runs of copies are resolved to the frames that contain the records.
        """
        wal = self._context.wal
        # If a frame is not in the current log file, or the file has no space for the new frame, the
        # source must send the records again.
        if not all(self._may_name(run.lsn, params) for run in runs):
            return None
        stamps: dict[Stamp, int] = {}
        composed = [each for run in runs for each in self._composed(run, stamps)]
        for run in composed:
            header, _ = wal.frame_at(run.lsn)
            # The records of a long append are in a blob. Keep the blob while the log has the new
            # frame, which depends on it.
            if header.flags & _EXTERNAL and header.kind == FrameKind.APPEND:
                wal.blobs.keep_at(run.lsn)
        views = {run.lsn: wal.payload(run.lsn) for run in composed}
        return _Payload(composed, [*stamps], views, params, 0)

    def _composed(self, run: Run, stamps: dict[Stamp, int]) -> Iterator[Run]:
        """Yield the run. If it refers to copies, yield the runs of the copied records instead.

        The stamps of these copies are added to ``stamps``.
        """
        if not is_row(run.lsn):
            yield run
            return
        # The run refers to copies. Resolve them to the runs of their FORWARD frame.
        header, body = self._context.wal.frame_at(run.lsn)
        held = decode_forward(header, body)
        inner_stamps = held.stamps_of(row_index(header, run.lsn))
        seq = run.stamp_seq
        for inner in runs_within(held.runs, run.start, run.stop):
            lsn, drops = inner.lsn or header.lsn, inner.drops | run.drops
            # The copies get the stamp of this router, and the seqs of the forwarded source.
            if run.stamp == OWN_STAMP:
                yield inner._replace(lsn=lsn, drops=drops, stamp=OWN_STAMP, stamp_seq=seq)
            else:
                # The copies keep the stamps of earlier routers, so that their origin remains
                # visible. Equal stamps are stored once.
                stamp = 0
                if inner.stamp:
                    carried = inner_stamps[inner.stamp - 1]
                    stamp = stamps.setdefault(carried, len(stamps) + 1)
                yield inner._replace(lsn=lsn, drops=drops, stamp=stamp)
            seq += inner.stop - inner.start


class _CopyGroup(NamedTuple):
    """The properties by which dests are grouped. The dests of a group share a frame."""

    ts: int
    copies: int
    tail_bytes: int


class _Payload(NamedTuple):
    """The records of a forward.

    ``views``: the records, by the LSN in the runs; LSN 0 stands for the attachment. ``logged_at``:
    LSN of the frame that contains the attachment, or 0.
    """

    runs: Sequence[Run]
    stamps: Sequence[Stamp]
    views: Mapping[int, RecordsView]
    params: ForwardParams
    logged_at: int

    @property
    def records(self) -> int:
        """The number of records."""
        return sum(run.stop - run.start for run in self.runs)

    @property
    def named(self) -> set[int]:
        """LSNs of the frames that contain the records."""
        lsns = {self.logged_at} if self.logged_at else self.views.keys()
        return {lsn for lsn in lsns if lsn}

    @property
    def is_stamped(self) -> bool:
        """Return whether each router stamps its copies."""
        return self.runs[0].stamp == OWN_STAMP

    def copier(self, router: str, count: int | None = None) -> Copier:
        """Return a renderer for the first ``count`` copies of a router, by default for all."""
        runs, stamps = self.runs, self.stamps
        if count is not None:
            runs = runs_within(runs, 0, count)
        if self.is_stamped:
            params = self.params
            stamps = [Stamp(router, params.source, params.source_id, params.epoch)]
            runs = [run._replace(stamp=1) for run in runs]
        return Copier([(self.views[run.lsn], run) for run in runs], stamps)

    def body(self, count: int) -> ForwardBody:
        """Return the body of a frame for the first ``count`` copies."""
        runs = runs_within(self.runs, 0, count)
        if self.logged_at:
            runs = [run._replace(lsn=self.logged_at) for run in runs]
        payload = None if self.logged_at else self.views.get(0)
        return ForwardBody(0, 0, (), runs, stamps=self.stamps, payload=payload)

    def seq_of(self, index: int, seqs: Sequence[int]) -> int:
        """Return a record's seq in the source. ``seqs``: source seqs of the runs' first records."""
        for run, seq in zip(decode_runs(self.params.runs), seqs, strict=True):
            if index < run.stop - run.start:
                return seq + index
            index -= run.stop - run.start
        raise AssertionError("the runs contain all copies")


def _settle_all_behind(
    takers: Mapping[int, ForwardDest], params: ForwardParams, answers: _Answers
) -> None:
    """Settle all takers as BEHIND, so that the source sends a new batch of the records."""
    for index, taker in takers.items():
        answers.settle(index, ForwardStatus.BEHIND, Derivation(params.from_seq, taker.total))


class _Answers:
    """The outcomes of a forward. They are sent in one reply when all are known."""

    def __init__(self, request: ForwardCall) -> None:
        self._request = request
        self.targets = [*map(ForwardTarget._make, request.params.targets)]
        # Initial values. Each of them is replaced before the reply is sent.
        self._outcomes = [(int(ForwardStatus.BUSY), 0, 0, 0)] * len(self.targets)
        self._open_count = len(self.targets)

    def settle(self, index: int, status: ForwardStatus, at: Derivation, need: int = 0) -> None:
        """Store the outcome for one router, and reply if all outcomes are known.

        ``need``: the size of the first copy for which a full dest has no space.
        """
        need = need if status is ForwardStatus.FULL else 0
        self._outcomes[index] = int(status), at.cursor, at.total, need
        self._open_count -= 1
        if not self._open_count:
            self._request.reply(ForwardResult(self._outcomes))

    def fail(self, error: Exception) -> None:
        """Reply with an unexpected error. The source repeats the forward."""
        # A negative count never reaches 0, so outcomes that are settled later send no second
        # reply.
        self._open_count = -1
        answer_error(self._request, error)
