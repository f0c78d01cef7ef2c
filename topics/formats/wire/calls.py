"""The calls table: every subject that crosses a process boundary. Both ends use it, and no other
module spells a subject or builds params.

    subject                   direction  params               attachment  result            answer
    rpc/append                to shard   AppendParams         requests    AppendResult      answers
    rpc/diff                  to shard   DiffParams           request     DiffResult        answer
    rpc/diff.ahead            to shard   DiffAheadParams      request     DiffAheadResult   answers
    rpc/topic.put             to shard   TopicPutParams       request     TopicPutResult    answer
    rpc/topic.get             to shard   TopicGetParams       -           NoResult          answer
    rpc/topic.list            to shard   TopicListParams      -           TopicListResult   -
    rpc/topic.delete          to shard   TopicDeleteParams    -           NoResult          answer
    rpc/topic.delete_records  to shard   DeleteRecordsParams  request     NoResult          answer
    rpc/topic.heads           to shard   TopicHeadsParams     -           TopicHeadsResult  -
    rpc/feed.open             to shard   FeedOpenParams       -           FeedOpenResult    -
    rpc/feed.read             to shard   FeedReadParams       -           FeedReadResult    records
    event/feed.page           to front   FeedPageParams       records
    event/feed.ended          to front   FeedEndedParams      -
    event/feed.taken          to shard   FeedTakenParams      -
    event/feed.close          to shard   FeedCloseParams      -
    event/call.cancelled      to shard   CallCancelledParams  -

    request, requests  the JSON body as the client sent it; of an append: n of them, joined
    answer, answers    the JSON body for the client; of `diff.ahead`: pages that lack their ends
    records            rendered records, joined by commas

A result says what happened. It never holds an HTTP status: the front chooses that.

Field names that several calls share:

    topic     name of the topic, which the receiving shard owns
    at        monotonic ns when the front had the whole request; the answer's performance counts
              from there
    prefixes  names that the caller's API key may make or see; None: all
    epoch     incarnation of the topic
    feed      number of the feed, chosen by the front
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from topics.formats.wire.contract import Call, Direction, Event


class NoResult(NamedTuple):
    """The answer's attachment says it all."""


NO_RESULT: Final = NoResult()


# Appends


class AppendOutcome(IntEnum):
    """What became of one request of an append message."""

    APPENDED = 0  # or known by its key
    CREATED = 1  # appended, and it made the topic
    FAILED = 2


class AppendParams(NamedTuple):
    """A batch of n >= 1 requests to one topic, each with a body of its own in the attachment."""

    topic: str
    lengths: Sequence[int]  # bytes of each body; n = 1: the attachment is the body
    key: str | None  # the Idempotency-Key header; only with n = 1
    with_seqs: bool
    prefixes: list[str] | None
    at: int


class AppendResult(NamedTuple):
    """The outcomes of the batch, in the order of its requests."""

    outcomes: Sequence[int]  # `AppendOutcome`
    lengths: Sequence[int] = ()  # bytes of each answer, 0 for a failed request; () with n = 1
    failures: Sequence[tuple[str, str, Mapping[str, Any]]] = ()  # code, message, detail of each


# Reads


class DiffParams(NamedTuple):
    """A page from the cursor in the body, or a long poll."""

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
    """Make the topic, or change its config, to what the body says."""

    topic: str
    prefixes: list[str] | None
    at: int


class TopicPutResult(NamedTuple):
    """``created``: the topic did not exist before."""

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
    """Delete the topic; ``if_empty``: only if it holds no records."""

    topic: str
    if_empty: bool
    at: int


class DeleteRecordsParams(NamedTuple):
    """Delete the records that the body selects."""

    topic: str
    at: int


class TopicHeadsParams(NamedTuple):
    """Where these topics stand."""

    topics: Sequence[str]


class TopicHeadsResult(NamedTuple):
    """head_seq, earliest_seq and epoch of each topic that exists, by name."""

    heads: Mapping[str, Sequence[int]]


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
    """Records above ``from_seq``, up to ``to_seq``. ``tombstone``: its JSON form."""

    from_seq: int
    to_seq: int
    head_seq: int
    earliest_seq: int
    record_count: int
    tombstone: dict[str, Any] | None
    feed: int


class FeedEndedParams(NamedTuple):
    """The topic is deleted or, with an ``error`` code, its records cannot be read."""

    feed: int
    head_seq: int
    error: str | None = None


class FeedTakenParams(NamedTuple):
    """The front has taken a page: another one may come."""

    feed: int


class FeedCloseParams(NamedTuple):
    """Nobody reads the feed any more."""

    feed: int


class CallCancelledParams(NamedTuple):
    """Nobody waits for the answer to the call ``cid`` any more."""

    cid: int


APPEND: Final = Call(
    method="append",
    direction=Direction.TO_SHARD,
    params=AppendParams,
    attachment="requests",
    result=AppendResult,
    answer="answers",
    is_write=True,
)
DIFF: Final = Call(
    method="diff",
    direction=Direction.TO_SHARD,
    params=DiffParams,
    attachment="request",
    result=DiffResult,
    answer="answer",
)
DIFF_AHEAD: Final = Call(
    method="diff.ahead",
    direction=Direction.TO_SHARD,
    params=DiffAheadParams,
    attachment="request",
    result=DiffAheadResult,
    answer="answers",
)
TOPIC_PUT: Final = Call(
    method="topic.put",
    direction=Direction.TO_SHARD,
    params=TopicPutParams,
    attachment="request",
    result=TopicPutResult,
    answer="answer",
    is_write=True,
)
TOPIC_GET: Final = Call(
    method="topic.get",
    direction=Direction.TO_SHARD,
    params=TopicGetParams,
    result=NoResult,
    answer="answer",
)
TOPIC_LIST: Final = Call(
    method="topic.list",
    direction=Direction.TO_SHARD,
    params=TopicListParams,
    result=TopicListResult,
)
TOPIC_DELETE: Final = Call(
    method="topic.delete",
    direction=Direction.TO_SHARD,
    params=TopicDeleteParams,
    result=NoResult,
    answer="answer",
    is_write=True,
)
DELETE_RECORDS: Final = Call(
    method="topic.delete_records",
    direction=Direction.TO_SHARD,
    params=DeleteRecordsParams,
    attachment="request",
    result=NoResult,
    answer="answer",
    is_write=True,
)
TOPIC_HEADS: Final = Call(
    method="topic.heads",
    direction=Direction.TO_SHARD,
    params=TopicHeadsParams,
    result=TopicHeadsResult,
)
FEED_OPEN: Final = Call(
    method="feed.open",
    direction=Direction.TO_SHARD,
    params=FeedOpenParams,
    result=FeedOpenResult,
)
FEED_READ: Final = Call(
    method="feed.read",
    direction=Direction.TO_SHARD,
    params=FeedReadParams,
    result=FeedReadResult,
    answer="records",
)

FEED_PAGE: Final = Event(
    method="feed.page", direction=Direction.TO_FRONT, params=FeedPageParams, attachment="records"
)
FEED_ENDED: Final = Event(method="feed.ended", direction=Direction.TO_FRONT, params=FeedEndedParams)
FEED_TAKEN: Final = Event(method="feed.taken", direction=Direction.TO_SHARD, params=FeedTakenParams)
FEED_CLOSE: Final = Event(method="feed.close", direction=Direction.TO_SHARD, params=FeedCloseParams)
CALL_CANCELLED: Final = Event(
    method="call.cancelled", direction=Direction.TO_SHARD, params=CallCancelledParams
)

CALLS: Final[tuple[Call[Any, Any], ...]] = (
    APPEND,
    DIFF,
    DIFF_AHEAD,
    TOPIC_PUT,
    TOPIC_GET,
    TOPIC_LIST,
    TOPIC_DELETE,
    DELETE_RECORDS,
    TOPIC_HEADS,
    FEED_OPEN,
    FEED_READ,
)
EVENTS: Final[tuple[Event[Any], ...]] = (
    FEED_PAGE,
    FEED_ENDED,
    FEED_TAKEN,
    FEED_CLOSE,
    CALL_CANCELLED,
)
