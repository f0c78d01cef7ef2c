"""The calls table: all calls and events between the front and the shards, and between shards.

Each row has a subject (the name of the call or event), its direction, and the types of its
parameters and its result. Both ends use these definitions. No other module may spell a subject.

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

The column "attachment" is the attachment of the request or event, the column "answer" is the
attachment of the response:

    request, requests  the JSON body as the client sent it; for an append: n bodies, concatenated
    answer, answers    the JSON body for the client; for `diff.ahead`: pages without their ends
    records            rendered records, joined by commas
    jobs               leased jobs as JSON objects, concatenated
    copied             records that are in no log, as the body of an APPEND frame; usually empty

A result describes the outcome of a call. It never contains an HTTP status, because the front
chooses the status.

Fields that several calls share:

    topic     name of the topic, which the receiving shard owns
    at        monotonic time in ns at which the front had received the complete request; the
              durations in the response's performance block start at this time
    prefixes  prefixes of the names that the caller's API key may use; None: all names
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
    """An empty result. The answer to the client, if the call has one, is in the attachment."""


NO_RESULT: Final = NoResult()

ROUTER_OWNER: Final = 0  # the shard that owns the graph of routers


# Appends


class AppendOutcome(IntEnum):
    """The outcome of one request of an append message."""

    APPENDED = 0  # appended now, or earlier by a request with the same idempotency key
    CREATED = 1  # appended, and the topic was created
    FAILED = 2


# An outcome is sent as one byte. The low bits are the outcome, and the high bits are the topic's
# priority band.
_OUTCOME_BITS: Final = 4
_OUTCOME_MASK: Final = (1 << _OUTCOME_BITS) - 1


def outcome_byte(outcome: int, band: int) -> int:
    """Return the byte for a request in ``AppendResult.outcomes``."""
    return band << _OUTCOME_BITS | outcome


def outcome_in(byte: int) -> int:
    """Return the `AppendOutcome` in a byte that `outcome_byte` has returned."""
    return byte & _OUTCOME_MASK


def band_in(byte: int) -> int:
    """Return the priority band (`topics.engine.priority`) in a byte that `outcome_byte` has
    returned.

    The front uses it to weigh later writes to the topic. If a request failed because the topic does
    not exist, it is the band of a new topic.
    """
    return byte >> _OUTCOME_BITS


Failure: TypeAlias = tuple[str, str, Mapping[str, Any]]  # code, message, detail


class AppendParams(NamedTuple):
    """A batch of n >= 1 requests to one topic. The attachment is their bodies, concatenated."""

    topic: str
    key: str | None  # the Idempotency-Key header; only with n = 1
    with_seqs: bool
    prefixes: list[str] | None
    at: int
    lengths: Sequence[int] | None = None  # bytes of each body; None: n = 1
    parked_ms: float = 0.0  # time for which the front delayed the request in favor of others
    may_configure: bool = True  # whether the caller's API key may configure topics
    ats: Sequence[int] | None = None  # ``at`` of each request; None: it is the same for all


class AppendResult(NamedTuple):
    """The outcomes of the batch. The items of each field are in the order of the requests."""

    outcomes: bytes  # an `outcome_byte` for each request
    lengths: Sequence[int] | None = None  # bytes of each answer, 0 for a failure; None: n = 1
    failures: Sequence[Failure] | None = None  # one for each failed request


# Reads


class TopicParams(NamedTuple):
    """A call to a topic whose options are all in the body.

    It is used for diff, claim, ack, nack, extend and the deletion of records. A diff and a claim
    may wait for up to ``wait_ms``, which is also in the body.
    """

    topic: str
    at: int


class DiffResult(NamedTuple):
    """``next_from_seq``: the reader's next cursor if the page after it is not expected to change,
    so that the front may request that page in advance. Otherwise None.
    """

    next_from_seq: int | None


class DiffAheadParams(NamedTuple):
    """Read up to ``page_count`` pages before a client requests them."""

    topic: str
    page_count: int


class DiffAheadResult(NamedTuple):
    """The pages that are not expected to change, without their trailers.

    If there are no pages, the other fields have no meaning.
    """

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
    """Return the topic's state. ``touch``: the call counts as a read of the topic."""

    topic: str
    touch: bool
    at: int


class TopicListParams(NamedTuple):
    """List up to ``limit`` topics of this shard, in the order of their names.

    Only topics whose name is above ``after`` and begins with ``prefix`` are listed.
    """

    prefix: str
    after: str | None
    limit: int
    touch: bool
    prefixes: list[str] | None


class TopicListResult(NamedTuple):
    """Topics in the order of their names, each with its JSON."""

    items: Sequence[tuple[str, bytes]]


class TopicDeleteParams(NamedTuple):
    """Delete the topic with its routers; ``if_empty``: only if it contains no records."""

    topic: str
    if_empty: bool
    prefixes: list[str] | None
    at: int


class TopicHeadsParams(NamedTuple):
    """Return the heads of these topics."""

    topics: Sequence[str]


class TopicHeadsResult(NamedTuple):
    """head_seq, earliest_seq and epoch of each topic that exists, by name."""

    heads: Mapping[str, Sequence[int]]


# Queues


class ClaimResult(NamedTuple):
    """The leased jobs. Their lease numbers are contiguous and start at ``number``."""

    number: int
    seqs: list[int]


class UnclaimedParams(NamedTuple):
    """Release the leases of a claim whose response did not reach the client.

    ``number`` and ``seqs`` are the fields of its `ClaimResult`.
    """

    topic: str
    number: int
    seqs: list[int]


class LeasesParams(NamedTuple):
    """List up to ``limit`` leases with seqs above ``after``. If ``node`` is not None, list only its
    leases.
    """

    topic: str
    after: int
    limit: int
    node: str | None
    with_ids: bool
    at: int


class LeasesResult(NamedTuple):
    """``next_after``: the seq of the last listed lease if there are more leases, otherwise None.

    The attachment of the response contains only the leases, as a JSON array.
    """

    next_after: int | None


class RedriveParams(NamedTuple):
    """Move records of a dead-letter topic back, as the body specifies."""

    topic: str
    prefixes: list[str] | None
    at: int


class WorkOpenParams(NamedTuple):
    """Open a work stream, to which the shard leases and sends up to ``max_jobs`` jobs at a time.

    If ``lease_ms`` is None, the topic's config determines the duration of the leases.
    """

    work: int
    topic: str
    node: str
    max_jobs: int
    lease_ms: int | None


class WorkJobsParams(NamedTuple):
    """Jobs for a work stream. The shard does not send more before it receives `WorkTakenParams`."""

    work: int
    seqs: Sequence[int]
    lengths: Sequence[int]  # bytes of each job in the attachment


class WorkEndedParams(NamedTuple):
    """The shard has closed the stream and released its leases.

    Either the topic was deleted or its records cannot be read. ``error`` is a code of
    `topics.errors`.
    """

    work: int
    error: str
    message: str


class WorkTakenParams(NamedTuple):
    """The client's socket has accepted all jobs, so the shard may send more."""

    work: int


class WorkCloseParams(NamedTuple):
    """The client has disconnected: release the leases of the stream.

    ``pages`` is the number of `WorkJobsParams` that were sent to the client.
    """

    work: int
    pages: int


# Routers. One shard (`ROUTER_OWNER`) owns the graph of all routers. The front sends it the calls
# for routers, and it notifies the shards of the source and the dest. The shard of the source sends
# copies of records directly to the shard of the dest.


class RouterParams(NamedTuple):
    """Create or configure the router as the body specifies, or return its state, or remove it."""

    router: str
    prefixes: list[str] | None
    at: int


class RouterListParams(NamedTuple):
    """List up to ``limit`` routers, in the order of their names.

    Only routers whose name is above ``after`` and begins with ``prefix`` are listed, and only those
    with this ``source`` and ``dest``; None matches every topic.
    """

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
    """Remove all routers from and to the topic, because it is being deleted."""

    topic: str


class CascadeResult(NamedTuple):
    """Names of the removed routers."""

    routers: Sequence[str]


class EndpointParams(NamedTuple):
    """Look up the source or the dest of a router. ``create``: create the topic if it does not
    exist.

    Until ``place_until_ms`` (CLOCK_MONOTONIC), the caller reserves a slot for the new topic within
    the server's maximum number of topics.
    """

    topic: str
    create: bool
    place_until_ms: int


class EndpointResult(NamedTuple):
    """``id`` 0: the topic does not exist. ``head_seq``: the committed head."""

    id: int
    epoch: int
    head_seq: int


class RouterRow(NamedTuple):
    """A router in the form in which it is sent to the shards of its source and its dest.

    A row is received as an array. The receiver converts it with ``RouterRow._make(row)``.
    """

    id: int  # A router that is recreated, or gets a different source or dest, gets a new id.
    name: str
    source: str
    source_id: int
    epoch: int  # epoch of the source
    dest: str
    dest_id: int
    start_seq: int  # head of the source at creation; the records after it are forwarded
    preserve_node: bool
    preserve_tag: bool
    filter: Sequence[str] | None  # op, text
    exactly_once: bool
    is_cyclic: bool  # The router is part of a cycle, so the hops of its records are limited.
    base_total: int = 0  # records that routers with this name forwarded under earlier ids


class RouterSyncParams(NamedTuple):
    """New and changed routers, and the ids of removed ones.

    ``is_all``: the list is complete, so the shard removes all others.
    """

    routers: Sequence[Sequence[Any]]  # the fields of `RouterRow`
    removed: Sequence[int]
    is_all: bool


class RouterSyncResult(NamedTuple):
    """``orphans``: ids of routers whose source or dest belongs to this shard but does not exist.

    ``totals``: (id, forwarded_total) of the removed routers whose source is in this shard.
    """

    orphans: Sequence[int]
    totals: Sequence[tuple[int, int]]


class RouterStatsParams(NamedTuple):
    """Return the counters of routers whose source is in this shard."""

    routers: Sequence[int]


class RouterStats(NamedTuple):
    """(id, forwarded_total, lag_records, lag_ms) of each router that the shard knows."""

    stats: Sequence[tuple[int, int, int, int]]


class ForwardTarget(NamedTuple):
    """One router of a forward. ``name`` is the name of the router."""

    router: int
    dest: str
    dest_id: int
    start_seq: int  # the cursor to use if the dest has none for this router
    name: str


class ForwardParams(NamedTuple):
    """Append copies to the dests of routers that have the same cursor and make the same copies.

    The records are in the attachment. If the receiver is the sending shard itself, the runs refer
    to its log instead. A forward without runs only advances the cursors. With ``need``, it checks
    whether the dests have capacity for the next record.
    """

    source: str
    source_id: int
    epoch: int
    from_seq: int  # the cursor of all these routers
    to_seq: int  # the cursor afterwards
    trimmed: int  # number of lost seqs above the cursor, not counting those in ``runs``
    hop: int  # hop count of the copies
    need: int  # bytes of the next record
    batch: int  # number of the attachment, unique for the sender; 0: there is no attachment
    runs: bytes  # runs of `formats.disk.copies`; LSN 0 refers to the attachment
    seqs: Sequence[int]  # for each run, the seq of its first record in the source
    targets: Sequence[Sequence[Any]]  # the fields of `ForwardTarget`


class ForwardStatus(IntEnum):
    """The outcome of a forward for one router."""

    DONE = 0
    BEHIND = 1  # The dest has a different cursor, or the records are no longer at their locators.
    FULL = 2  # The dest has appended only the copies for which it has capacity.
    NO_DEST = 3  # The dest was deleted, or was deleted and recreated.
    BUSY = 4  # An earlier forward is in progress, or the log cannot accept frames now.


class ForwardResult(NamedTuple):
    """(status, cursor, forwarded_total, need) of each target, in their order.

    With FULL, ``need`` is the size in bytes of the first copy that did not fit.
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
    """One row of the per-router block.

    ``forwarded_total`` is kept when a router is deleted and recreated under the same name.
    """

    router: str
    lag_records: int
    lag_ms: int
    forwarded_total: int


class MetricsParams(NamedTuple):
    """Return rows of at most ``topics_max`` topics and ``routers_max`` routers of this shard.

    A router belongs to the shard of its source.
    """

    prefixes: list[str] | None
    topics_max: int
    routers_max: int


class MetricsResult(NamedTuple):
    """The first rows in the order of names. The flags indicate whether rows are omitted.

    Rows are received as arrays. The receiver converts them with ``TopicMetrics._make(row)``.
    """

    topics: Sequence[TopicMetrics]
    topics_truncated: bool
    routers: Sequence[RouterMetrics]
    routers_truncated: bool  # also true if a router is omitted because its cursor is not yet known


# Backups


class BackupParams(NamedTuple):
    """``number``: the number of the backup, chosen by the front.

    The shard pins files for this number and this link session. With ``is_incremental`` it writes no
    checkpoint if one exists.
    """

    number: int
    is_incremental: bool = False


class BackupBegun(NamedTuple):
    """The shard has a checkpoint and keeps the files that the checkpoint refers to.

    ``flags`` lists the delete flags of its segments, which must be copied before the cut.
    """

    flags: Sequence[Any]  # the fields of `backup_archive.ArchiveFile`, for each file
    files: Sequence[Any]  # likewise


class BackupCut(NamedTuple):
    """The log up to ``lsn`` belongs to the backup. ``run`` is the random number of the process."""

    lsn: int
    run: int


class BackupFiles(NamedTuple):
    """The log up to the cut is synced to disk, and moves between topics have resumed."""

    files: Sequence[Any]  # the files of the log and its blobs


# Feeds


class FeedView(NamedTuple):
    """The options that determine which records and members a reader receives.

    The view is received as an array. The receiver converts it with ``FeedView._make(params.view)``.
    """

    nodes: Sequence[str]
    tags: bool
    meta: bool
    data: bool
    limit: int
    bytes: int
    strong: bool


class FeedOpenParams(NamedTuple):
    """Open a feed: send the records after the current head, page by page."""

    feed: int
    topic: str
    view: Sequence[Any]  # the fields of `FeedView`


class FeedOpenResult(NamedTuple):
    """The seq at which the feed begins, and the topic's first seq and epoch."""

    head_seq: int
    earliest_seq: int
    epoch: int


class FeedReadParams(NamedTuple):
    """Read a page for a reader whose cursor is below the pages of its feed."""

    topic: str
    view: Sequence[Any]  # the fields of `FeedView`
    from_seq: int
    until_seq: int | None
    epoch: int | None


class FeedReadResult(NamedTuple):
    """A page for `FeedReadParams`. The first six fields are the same as in `FeedPageParams`."""

    from_seq: int
    to_seq: int
    head_seq: int
    earliest_seq: int
    record_count: int
    tombstone: dict[str, Any] | None
    epoch: int


class FeedPageParams(NamedTuple):
    """A feed page: the records above ``from_seq`` up to and including ``to_seq``.

    ``tombstone`` is a tombstone in its JSON form. ``band`` is the topic's priority band.
    ``is_awaited``: the shard sends no further page before the front has acknowledged one.
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
    """The feed is closed: the topic was deleted or, with an ``error``, it cannot be read."""

    feed: int
    head_seq: int
    error: str | None = None


class FeedParams(NamedTuple):
    """The feed to which an acknowledgment (`FEED_TAKEN`) or a close request (`FEED_CLOSE`) refers.

    After an acknowledgment of a page, the shard may send another one. The front closes a feed that
    no longer has readers.
    """

    feed: int


class CallCancelledParams(NamedTuple):
    """The caller no longer waits for the response to the call ``cid``."""

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
