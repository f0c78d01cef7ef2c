"""The calls table: every subject that crosses a process boundary. Both ends use it, and no other
module spells a subject or builds params.

    subject                   direction  params               attachment  result            answer
    rpc/append                to shard   AppendParams         requests    AppendResult      answers
    rpc/diff                  to shard   TopicParams          request     DiffResult        answer
    rpc/diff.ahead            to shard   DiffAheadParams      request     DiffAheadResult   answers
    rpc/topic.put             to shard   TopicPutParams       request     PutResult         answer
    rpc/topic.get             to shard   TopicGetParams       -           NoResult          answer
    rpc/topic.list            to shard   TopicListParams      -           TopicListResult   -
    rpc/topic.delete          to shard   TopicDeleteParams    -           NoResult          answer
    rpc/topic.delete_records  to shard   TopicParams          request     NoResult          answer
    rpc/topic.heads           to shard   TopicHeadsParams     -           TopicHeadsResult  -
    rpc/queue.claim           to shard   TopicParams          request     ClaimResult       answer
    rpc/queue.ack             to shard   TopicParams          request     NoResult          answer
    rpc/queue.nack            to shard   TopicParams          request     NoResult          answer
    rpc/queue.extend          to shard   TopicParams          request     NoResult          answer
    rpc/queue.leases          to shard   LeasesParams         -           LeasesResult      answer
    rpc/queue.redrive         to shard   RedriveParams        request     NoResult          answer
    rpc/work.open             to shard   WorkOpenParams       -           NoResult          -
    rpc/router.put            to shard   RouterParams         request     PutResult         answer
    rpc/router.get            to shard   RouterParams         -           NoResult          answer
    rpc/router.list           to shard   RouterListParams     -           RouterListResult  -
    rpc/router.delete         to shard   RouterParams         -           NoResult          answer
    rpc/router.cascade        to shard   CascadeParams        -           CascadeResult     -
    rpc/router.endpoint       to shard   EndpointParams       -           EndpointResult    -
    rpc/router.sync           to shard   RouterSyncParams     -           RouterSyncResult  -
    rpc/router.stats          to shard   RouterStatsParams    -           RouterStats       -
    rpc/router.forward        to shard   ForwardParams        copied      ForwardResult     -
    rpc/metrics.read          to shard   MetricsParams        -           MetricsResult     -
    rpc/backup.begin          to shard   BackupParams         -           BackupBegun       -
    rpc/backup.hold           to shard   BackupParams         -           NoResult          -
    rpc/backup.cut            to shard   BackupParams         -           BackupCut         -
    rpc/backup.files          to shard   BackupParams         -           BackupFiles       -
    rpc/backup.end            to shard   BackupParams         -           NoResult          -
    rpc/feed.open             to shard   FeedOpenParams       -           FeedOpenResult    -
    rpc/feed.read             to shard   FeedReadParams       -           FeedReadResult    records
    event/feed.page           to front   FeedPageParams       records
    event/feed.ended          to front   FeedEndedParams      -
    event/feed.taken          to shard   FeedParams           -
    event/feed.close          to shard   FeedParams           -
    event/work.jobs           to front   WorkJobsParams       jobs
    event/work.ended          to front   WorkEndedParams      -
    event/work.taken          to shard   WorkTakenParams      -
    event/work.close          to shard   WorkCloseParams      -
    event/queue.unclaimed     to shard   UnclaimedParams      -
    event/backup.abandoned    to shard   BackupParams         -
    event/call.cancelled      to shard   CallCancelledParams  -

    request, requests  the JSON body as the client sent it; of an append: n of them, joined
    answer, answers    the JSON body for the client; of `diff.ahead`: pages that lack their ends
    records            rendered records, joined by commas
    jobs               leased jobs as JSON objects, one behind the other
    copied             records that no log holds, as the body of an APPEND frame; mostly empty

A result says what happened. It never holds an HTTP status: the front chooses that.

Field names that several calls share:

    topic     name of the topic, which the receiving shard owns
    at        monotonic ns when the front had the whole request; the answer's performance counts
              from there
    prefixes  names that the caller's API key may make or see; None: all
    epoch     incarnation of the topic
    feed      number of the feed, chosen by the front
    work      number of the work stream, chosen by the front
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

from topics.formats.wire.contract import Call, Event


class NoResult(NamedTuple):
    """The answer's attachment says it all."""


NO_RESULT: Final = NoResult()

ROUTER_OWNER: Final = 0  # the shard that owns the graph of routers


# Appends


class AppendOutcome(IntEnum):
    """What became of one request of an append message."""

    APPENDED = 0  # or known by its key
    CREATED = 1  # appended, and it made the topic
    FAILED = 2


# Each outcome travels in one byte, with the band of the topic's priority above it.
_OUTCOME_BITS: Final = 4
_OUTCOME_MASK: Final = (1 << _OUTCOME_BITS) - 1


def outcome_byte(outcome: int, band: int) -> int:
    """What ``AppendResult.outcomes`` has for a request."""
    return band << _OUTCOME_BITS | outcome


def outcome_in(byte: int) -> int:
    """The `AppendOutcome` in such a byte."""
    return byte & _OUTCOME_MASK


def band_in(byte: int) -> int:
    """The band in such a byte (`topics.engine.priority`), by which the front weighs later writes.

    Of a request that failed because there is no such topic: that of a new one.
    """
    return byte >> _OUTCOME_BITS


Failure: TypeAlias = tuple[str, str, Mapping[str, Any]]  # code, message, detail


class AppendParams(NamedTuple):
    """A batch of n >= 1 requests to one topic. The attachment holds their bodies, joined."""

    topic: str
    key: str | None  # the Idempotency-Key header; only with n = 1
    with_seqs: bool
    prefixes: list[str] | None
    at: int
    lengths: Sequence[int] | None = None  # bytes of each body; None: n = 1
    parked_ms: float = 0.0  # for how long the front let it wait behind others
    may_configure: bool = True  # the caller's API key
    ats: Sequence[int] | None = None  # ``at`` of each request; None: all have the same


class AppendResult(NamedTuple):
    """The outcomes of the batch. All fields are in the order of its requests."""

    outcomes: bytes  # an `outcome_byte` each
    lengths: Sequence[int] | None = None  # bytes of each answer, 0 for a failure; None: n = 1
    failures: Sequence[Failure] | None = None  # of those that failed


# Reads


class TopicParams(NamedTuple):
    """What the body says is read from the topic, or done with it: diff and claim, which may wait
    for its ``wait_ms``; ack, nack, extend; deleting records.
    """

    topic: str
    at: int


class DiffResult(NamedTuple):
    """``next_from_seq``: the reader's next cursor, if the page behind it would hold still."""

    next_from_seq: int | None


class DiffAheadParams(NamedTuple):
    """Up to ``page_count`` pages that nobody has asked for yet."""

    topic: str
    page_count: int


class DiffAheadResult(NamedTuple):
    """The pages that hold still, trailers omitted; none: the other fields mean nothing."""

    pages: Sequence[tuple[int, int, int]] = ()  # bytes, next_from_seq, records scanned
    mark: Sequence[int] = (0, 0)  # the fields of `HeadMark`
    earliest_seq: int = 0
    epoch: int = 0


# Topics


class TopicPutParams(NamedTuple):
    """Create a topic or change its config as the body specifies. With ``dry_run``, only check the
    body and return the effect.
    """

    topic: str
    prefixes: list[str] | None
    at: int
    dry_run: bool = False


class PutResult(NamedTuple):
    """``created``: the topic, or the router, did not exist before."""

    created: bool


class TopicGetParams(NamedTuple):
    """The topic's state. ``touch``: it counts as a read."""

    topic: str
    touch: bool
    at: int


class TopicListParams(NamedTuple):
    """Up to ``limit`` topics of this shard by name, those above ``after`` that begin so."""

    prefix: str
    after: str | None
    limit: int
    touch: bool
    prefixes: list[str] | None


class TopicListResult(NamedTuple):
    """Topics in the order of their names, each with its JSON."""

    items: Sequence[tuple[str, bytes]]


class TopicDeleteParams(NamedTuple):
    """Delete the topic with its routers; ``if_empty``: only if it holds no records."""

    topic: str
    if_empty: bool
    prefixes: list[str] | None
    at: int


class TopicHeadsParams(NamedTuple):
    """Where these topics stand."""

    topics: Sequence[str]


class TopicHeadsResult(NamedTuple):
    """head_seq, earliest_seq and epoch of each topic that exists, by name."""

    heads: Mapping[str, Sequence[int]]


# Queues


class ClaimResult(NamedTuple):
    """The jobs of the answer, leased under ``number`` and the numbers after it."""

    number: int
    seqs: list[int]


class UnclaimedParams(NamedTuple):
    """An answer to a claim reached nobody: its leases, as `ClaimResult` has them, end."""

    topic: str
    number: int
    seqs: list[int]


class LeasesParams(NamedTuple):
    """Up to ``limit`` leases with seqs above ``after``, of ``node`` or of all."""

    topic: str
    after: int
    limit: int
    node: str | None
    with_ids: bool
    at: int


class LeasesResult(NamedTuple):
    """``next_after``: seq of the last lease of the answer, if there are more.

    The answer's attachment holds the leases alone, a JSON array.
    """

    next_after: int | None


class RedriveParams(NamedTuple):
    """Move records of a dead-letter topic back, as the body says."""

    topic: str
    prefixes: list[str] | None
    at: int


class WorkOpenParams(NamedTuple):
    """Lease up to ``max_jobs`` jobs at a time to this stream, and send them. ``lease_ms`` None: as
    the topic says.
    """

    work: int
    topic: str
    node: str
    max_jobs: int
    lease_ms: int | None


class WorkJobsParams(NamedTuple):
    """Jobs for a work stream. No more come before `WorkTakenParams`."""

    work: int
    seqs: Sequence[int]
    lengths: Sequence[int]  # bytes of each job in the attachment


class WorkEndedParams(NamedTuple):
    """The stream ends: the topic is gone or its records cannot be read. ``error``: a code of
    `topics.errors`; its leases are released.
    """

    work: int
    error: str
    message: str


class WorkTakenParams(NamedTuple):
    """The client's socket has taken all jobs: more may come."""

    work: int


class WorkCloseParams(NamedTuple):
    """The client has gone: release the leases of the stream. ``pages``: how many `WorkJobsParams`
    it was shown.
    """

    work: int
    pages: int


# Routers. Their graph is owned by one shard (`ROUTER_OWNER`), which is asked by the front and tells
# the shards of both ends; copies go from the source's shard to that of the dest.


class RouterParams(NamedTuple):
    """Make or configure the router, as the body says; tell its config and counters; remove it."""

    router: str
    prefixes: list[str] | None
    at: int


class RouterListParams(NamedTuple):
    """Up to ``limit`` routers by name, those above ``after`` that begin so and have these ends."""

    prefix: str
    source: str | None
    dest: str | None
    after: str | None
    limit: int
    prefixes: list[str] | None


class RouterListResult(NamedTuple):
    """Routers in the order of their names, each with its JSON."""

    items: Sequence[tuple[str, bytes]]


class CascadeParams(NamedTuple):
    """The topic goes: remove all routers that name it."""

    topic: str


class CascadeResult(NamedTuple):
    """Names of the routers that were removed."""

    routers: Sequence[str]


class EndpointParams(NamedTuple):
    """An end of a router; ``create``: make the topic if it is absent. ``place_until_ms``: until
    then (CLOCK_MONOTONIC) the caller keeps a place for it among the topics of the server.
    """

    topic: str
    create: bool
    place_until_ms: int


class EndpointResult(NamedTuple):
    """``id`` 0: there is no such topic. ``head_seq``: what is committed."""

    id: int
    epoch: int
    head_seq: int


class RouterRow(NamedTuple):
    """A router as the shards of its ends know it. A receiver makes it again:
    ``RouterRow._make(row)``.
    """

    id: int  # names one life of the router: another source or dest is another one
    name: str
    source: str
    source_id: int
    epoch: int  # of the source
    dest: str
    dest_id: int
    start_seq: int  # head of the source when the router was made: what follows is forwarded
    preserve_node: bool
    preserve_tag: bool
    filter: Sequence[str] | None  # op, text
    exactly_once: bool
    is_cyclic: bool  # it stands on a cycle of routers: the hops of its records are bounded
    base_total: int = 0  # records that its name forwarded in earlier lives


class RouterSyncParams(NamedTuple):
    """Routers that are new or changed, and ids of those that are gone. ``is_all``: the shard has no
    others.
    """

    routers: Sequence[Sequence[Any]]  # the fields of `RouterRow`
    removed: Sequence[int]
    is_all: bool


class RouterSyncResult(NamedTuple):
    """``orphans``: ids of routers of which an end is not here, though its name belongs here;
    ``totals``: (id, forwarded_total) of the removed ones that had their source here.
    """

    orphans: Sequence[int]
    totals: Sequence[tuple[int, int]]


class RouterStatsParams(NamedTuple):
    """Counters of routers that have their source in this shard."""

    routers: Sequence[int]


class RouterStats(NamedTuple):
    """(id, forwarded_total, lag_records, lag_ms) of each router that is known here."""

    stats: Sequence[tuple[int, int, int, int]]


class ForwardTarget(NamedTuple):
    """One router that takes part in a forward, which is called ``name``."""

    router: int
    dest: str
    dest_id: int
    start_seq: int  # its cursor, where the dest knows none
    name: str


class ForwardParams(NamedTuple):
    """Append copies to the dests of routers that stand at the same cursor and copy alike.

    The records are in the attachment, or in the log of the receiver, which is the sender then.
    Without runs the routers move on, or, with ``need``, ask whether their dests have room.
    """

    source: str
    source_id: int
    epoch: int
    from_seq: int  # the cursor of all these routers
    to_seq: int  # the cursor afterwards
    trimmed: int  # seqs above the cursor that the source has lost; then there are no runs
    hop: int  # of the copies
    need: int  # bytes of the next record
    batch: int  # names the attachment among those of the sender; 0: there is none
    runs: bytes  # `formats.disk.copies` runs; LSN 0: of the attachment
    seqs: Sequence[int]  # of each run: seq in the source of its first record
    targets: Sequence[Sequence[Any]]  # the fields of `ForwardTarget`


class ForwardStatus(IntEnum):
    """What became of the copies for one router."""

    DONE = 0
    BEHIND = 1  # the cursor of the dest is another one, or the records are not where they were
    FULL = 2  # the dest has taken what it has room for
    NO_DEST = 3  # the dest is gone, or another one of that name
    BUSY = 4  # an earlier forward is under way, or the log cannot take it now


class ForwardResult(NamedTuple):
    """(status, cursor, forwarded_total, need) of each target, in their order. ``need``: with FULL,
    the bytes of the first copy that had no room.
    """

    outcomes: Sequence[tuple[int, int, int, int]]


# Metrics


class TopicMetrics(NamedTuple):
    """One row of the per-topic block. The queue fields are None for a log."""

    topic: str
    head_seq: int
    earliest_seq: int
    records: int
    bytes: int
    queue_ready: int | None
    queue_in_flight: int | None
    queue_delayed: int | None
    queue_dead_lettered: int | None


class RouterMetrics(NamedTuple):
    """One row of the per-router block. ``forwarded_total`` goes on over all lives of the name."""

    router: str
    lag_records: int
    lag_ms: int
    forwarded_total: int


class MetricsParams(NamedTuple):
    """Rows of at most so many topics of this shard, and of routers that have their source here."""

    prefixes: list[str] | None
    topics_max: int
    routers_max: int


class MetricsResult(NamedTuple):
    """The first rows by name. ``truncated``: some are left out. A receiver makes rows again:
    ``TopicMetrics._make(row)``.
    """

    topics: Sequence[TopicMetrics]
    topics_truncated: bool
    routers: Sequence[RouterMetrics]
    routers_truncated: bool  # also of a router whose dest has not told how far it is


# Backups


class BackupParams(NamedTuple):
    """``number``: of the backup, chosen by the front. A pin of the shard belongs to it, and to the
    link session.
    """

    number: int


class BackupBegun(NamedTuple):
    """The shard has written a checkpoint and keeps what it names. ``flags``: delete flags of its
    segments, to be copied before the cut.
    """

    flags: Sequence[Any]  # of each file the fields of `formats.disk.backup.File`
    files: Sequence[Any]


class BackupCut(NamedTuple):
    """The log up to ``lsn`` belongs to the backup."""

    lsn: int


class BackupFiles(NamedTuple):
    """The log up to the cut is on the disk, and moves go on."""

    files: Sequence[Any]  # of the log, and its blobs


# Feeds


class FeedView(NamedTuple):
    """How a topic looks to a reader. A receiver makes it again: ``FeedView._make(params.view)``."""

    nodes: Sequence[str]
    tags: bool
    meta: bool
    data: bool
    limit: int
    bytes: int
    strong: bool


class FeedOpenParams(NamedTuple):
    """Send what follows the head, page by page."""

    feed: int
    topic: str
    view: Sequence[Any]  # the fields of `FeedView`


class FeedOpenResult(NamedTuple):
    """Where the feed begins, and the topic's first seq."""

    head_seq: int
    earliest_seq: int
    epoch: int


class FeedReadParams(NamedTuple):
    """A page for a reader that is behind its feed."""

    topic: str
    view: Sequence[Any]  # the fields of `FeedView`
    from_seq: int
    until_seq: int | None
    epoch: int | None


class FeedReadResult(NamedTuple):
    """Such a page; the first six fields as those of `FeedPageParams`."""

    from_seq: int
    to_seq: int
    head_seq: int
    earliest_seq: int
    record_count: int
    tombstone: dict[str, Any] | None
    epoch: int


class FeedPageParams(NamedTuple):
    """Records above ``from_seq``, up to ``to_seq``. ``tombstone``: its JSON form. ``band``: of the
    topic's priority. ``is_awaited``: no further page is sent before the front has taken one.
    """

    from_seq: int
    to_seq: int
    head_seq: int
    earliest_seq: int
    record_count: int
    tombstone: dict[str, Any] | None
    feed: int
    band: int
    is_awaited: bool


class FeedEndedParams(NamedTuple):
    """The topic is deleted or, with an ``error`` code, its records cannot be read."""

    feed: int
    head_seq: int
    error: str | None = None


class FeedParams(NamedTuple):
    """The front has taken a page, and another one may come; or nobody reads the feed any more."""

    feed: int


class CallCancelledParams(NamedTuple):
    """Nobody waits for the answer to the call ``cid`` any more."""

    cid: int


APPEND: Final = Call("append", AppendParams, AppendResult, is_write=True)
DIFF: Final = Call("diff", TopicParams, DiffResult)
DIFF_AHEAD: Final = Call("diff.ahead", DiffAheadParams, DiffAheadResult)
TOPIC_PUT: Final = Call("topic.put", TopicPutParams, PutResult, is_write=True)
TOPIC_GET: Final = Call("topic.get", TopicGetParams, NoResult)
TOPIC_LIST: Final = Call("topic.list", TopicListParams, TopicListResult)
TOPIC_DELETE: Final = Call("topic.delete", TopicDeleteParams, NoResult, is_write=True)
DELETE_RECORDS: Final = Call("topic.delete_records", TopicParams, NoResult, is_write=True)
TOPIC_HEADS: Final = Call("topic.heads", TopicHeadsParams, TopicHeadsResult)
CLAIM: Final = Call("queue.claim", TopicParams, ClaimResult)
ACK: Final = Call("queue.ack", TopicParams, NoResult, is_write=True)
NACK: Final = Call("queue.nack", TopicParams, NoResult)
EXTEND: Final = Call("queue.extend", TopicParams, NoResult)
LEASES: Final = Call("queue.leases", LeasesParams, LeasesResult)
REDRIVE: Final = Call("queue.redrive", RedriveParams, NoResult, is_write=True)
WORK_OPEN: Final = Call("work.open", WorkOpenParams, NoResult)
ROUTER_PUT: Final = Call("router.put", RouterParams, PutResult, is_write=True)
ROUTER_GET: Final = Call("router.get", RouterParams, NoResult)
ROUTER_LIST: Final = Call("router.list", RouterListParams, RouterListResult)
ROUTER_DELETE: Final = Call("router.delete", RouterParams, NoResult, is_write=True)
ROUTER_CASCADE: Final = Call("router.cascade", CascadeParams, CascadeResult)
ROUTER_ENDPOINT: Final = Call("router.endpoint", EndpointParams, EndpointResult)
ROUTER_SYNC: Final = Call("router.sync", RouterSyncParams, RouterSyncResult)
ROUTER_STATS: Final = Call("router.stats", RouterStatsParams, RouterStats)
FORWARD: Final = Call("router.forward", ForwardParams, ForwardResult)
METRICS_READ: Final = Call("metrics.read", MetricsParams, MetricsResult)
BACKUP_BEGIN: Final = Call("backup.begin", BackupParams, BackupBegun)
BACKUP_HOLD: Final = Call("backup.hold", BackupParams, NoResult)
BACKUP_CUT: Final = Call("backup.cut", BackupParams, BackupCut)
BACKUP_FILES: Final = Call("backup.files", BackupParams, BackupFiles)
BACKUP_END: Final = Call("backup.end", BackupParams, NoResult)
FEED_OPEN: Final = Call("feed.open", FeedOpenParams, FeedOpenResult)
FEED_READ: Final = Call("feed.read", FeedReadParams, FeedReadResult)

FEED_PAGE: Final = Event("feed.page", FeedPageParams)
FEED_ENDED: Final = Event("feed.ended", FeedEndedParams)
FEED_TAKEN: Final = Event("feed.taken", FeedParams)
FEED_CLOSE: Final = Event("feed.close", FeedParams)
WORK_JOBS: Final = Event("work.jobs", WorkJobsParams)
WORK_ENDED: Final = Event("work.ended", WorkEndedParams)
WORK_TAKEN: Final = Event("work.taken", WorkTakenParams)
WORK_CLOSE: Final = Event("work.close", WorkCloseParams)
UNCLAIMED: Final = Event("queue.unclaimed", UnclaimedParams)
BACKUP_ABANDONED: Final = Event("backup.abandoned", BackupParams)
CALL_CANCELLED: Final = Event("call.cancelled", CallCancelledParams)
