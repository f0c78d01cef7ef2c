"""Mover: moves records from a topic of this shard to another topic, which any shard may own.

    chosen --copy appended--> copied --DELETE frame--> moved
       |                         '-- the log cannot write the frame --> unknown
       |-- the target refuses the copy --> refused
       '-- no reply, or the shard of the target is not ready --> unknown

Records are appended first and deleted second, so that no failure loses a record. Refused and
unknown records stay in their topic. The target has no copy of a refused record, and may have a copy
of an unknown record. A second copy of a record has the same idempotency key as the first copy
(``engine/moved_keys.py``). So the target does not append it again, and the record is deleted.

                          dead letters                      redrives
    chooses               a batch of exhausted jobs         a window of records, for all targets
    reserves it by        a synced LEASE frame (DYING)      hiding the records, in memory only
    refused               dead again, retried after a       claimable again, skipped and counted
                          pause
    unknown               still dying, the same batch is    as refused
                          retried after a pause
    a restart finds       the batch, and moves it first     records that are claimable; the client
                                                            repeats the redrive

Both choose the next batch or window of a source when no copy of the previous batch or window is in
flight, because a target keeps only the newest keys of each source (``decisions/0049``). Both are
counted in `Moves` while copies are in flight; dead letters are counted until no record of the batch
is unknown. A backup waits until no move is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from topics.actors.rpc.replies import failures_of
from topics.actors.shard.context import ShardContext
from topics.actors.shard.disk_space import unwritable
from topics.actors.shard.peers import PeerCall
from topics.engine.changes.finish_jobs import FinishJobs
from topics.engine.moved_keys import copy_key
from topics.engine.now import Now
from topics.engine.topic import Topic
from topics.errors import NotReady, TopicsError
from topics.formats.api.queue_answers import RecordParts, append_request
from topics.formats.wire.calls import APPEND, AppendOutcome, AppendParams, AppendResult, outcome_in

COPIES_BYTES: Final = 1 << 20  # a batch is complete when its records reach this total size

Delete: TypeAlias = Callable[[Topic, Sequence[int], Now], FinishJobs]


class RecordCopy(NamedTuple):
    """An append that copies the record ``seq``. ``request`` is its body."""

    seq: int
    request: bytes


class MoveResult(NamedTuple):
    """The seqs of the moved records, and the errors of the remaining records by seq."""

    seqs: Sequence[int]
    failures: dict[int, TopicsError]

    @property
    def refused(self) -> list[int]:
        """The seqs of the records that the target has refused."""
        return [seq for seq, error in self.failures.items() if not isinstance(error, NotReady)]


def render_copy(
    what: str, topic: Topic, seq: int, parts: RecordParts, create: bool | None
) -> RecordCopy:
    """Return a copy of the record ``seq`` of ``topic``.

    ``what``: the first argument of `copy_key`. ``create``: the ``create`` field of the append.
    """
    key = copy_key(what, topic.name, topic.epoch, seq)
    return RecordCopy(seq, append_request(parts, key, create))


async def move(
    context: ShardContext, topic: Topic, target: str, copies: Sequence[RecordCopy], delete: Delete
) -> MoveResult:
    """Append ``copies`` to the topic ``target`` in order, and delete the original records.

    ``delete`` returns the change of ``topic`` that deletes the records.
    """
    failures = await _append(context, target, copies)
    appended = [copy.seq for copy in copies if copy.seq not in failures]
    error = await _delete(context, topic, appended, delete) if appended else None
    if error is None:
        return MoveResult(appended, failures)
    return MoveResult((), failures | dict.fromkeys(appended, unwritable(error)))


async def _append(
    context: ShardContext, target: str, copies: Sequence[RecordCopy]
) -> dict[int, TopicsError]:
    """Append the copies. Return, by seq, the errors of copies that the target may not contain."""
    params = AppendParams(
        target,
        None,
        with_seqs=False,
        prefixes=None,
        at=time.monotonic_ns(),
        lengths=[len(copy.request) for copy in copies],
    )
    shard = context.peers.shard_of(target)
    call = PeerCall[AppendResult](shard)
    with context.iteration():
        body = b"".join([copy.request for copy in copies])
        context.peers.call(shard, APPEND, params, body, call.then)
    await call.wait()
    try:
        result = call.result
    except TopicsError as error:
        return {copy.seq: error for copy in copies}
    # Only the failed copies have an entry in the failures of the result.
    outcomes = zip(copies, map(outcome_in, result.outcomes), strict=True)
    refused = [copy.seq for copy, outcome in outcomes if outcome == AppendOutcome.FAILED]
    return dict(zip(refused, failures_of(result), strict=True))


async def _delete(
    context: ShardContext, topic: Topic, seqs: Sequence[int], delete: Delete
) -> OSError | None:
    """Delete the originals of the copies. Return the error if the log cannot store the change."""
    await context.held.wait_free(topic.name)
    if topic.deleted:
        return None
    refusal = context.disk_space.refusal(grows=False)
    if refusal is not None:
        return refusal
    result = await context.commits.submit_and_wait(delete(topic, seqs, context.clock()))
    return result if isinstance(result, OSError) else None
