"""What no struct and no row of the route table says: a line for each route, and for each parameter.

A new route needs a row in `ROUTES`, by its name: `openapi` names those that have none. Paths below
`LEFT_OUT` are no part of the API.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

from tests.specs.shapes import (
    ROUTED,
    Ack,
    Append,
    BackupRequest,
    Claim,
    Config,
    Count,
    Delete,
    Diff,
    Extend,
    Job,
    Lease,
    LimitedShard,
    Members,
    Nack,
    QueueCounts,
    Receipt,
    Record,
    Redrive,
    RouterConfig,
    RouterEnds,
    Shape,
    StartedAt,
    StoredConfig,
    Tombstone,
    Topic,
    TopicInfo,
    Watch,
    answer,
    array,
    by_name,
)
from topics.client import values
from topics.front.admin.paging import PAGE_SIZE_MAX

LEFT_OUT: Final = ("/console",)  # files for a browser


class Described(NamedTuple):
    """``answer``: of a success, a body, or media types of others. ``codes``: of those refusals that
    are not any route's.
    """

    summary: str
    answer: Shape | str
    codes: str = ""
    body: Shape | None = None
    creates: bool = False  # 201, too


JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
JOBS: Final = "topic_not_found not_a_queue"
SETTLED: Final[Members] = {"skipped": list[Count], "ready": Count, "in_flight": Count}
CURSOR: Final[Members] = {"absent": "next_cursor", "next_cursor": str}
IGNORED: Final[Members] = {"absent": "ignored", "ignored": list[str]}
DEADLINES: Final[Members] = {"deadlines": dict[str, Count]}

ROUTES: Final = {
    "append": Described(
        "Append records to a topic, which is made if it is not there.",
        Receipt,
        "batch_too_large record_too_large topic_not_found topic_full",
        Append,
        creates=True,
    ),
    "diff": Described(
        "Read the records behind a seq; wait for some, if asked to.",
        answer(*("DiffPage", values.DiffPage), records=array(Record), tombstone=Tombstone | None),
        "topic_not_found",
        Diff,
    ),
    "topic.delete_records": Described(
        "Delete records by seq, by tag, or by both.",
        answer("RecordsDeleted", values.Deleted),
        "topic_not_found",
        Delete,
    ),
    "topic.put": Described(
        "Make a topic, or change its config.",
        answer(
            *("TopicConfigured",),
            topic=Topic,
            created=bool,
            config=StoredConfig,
            epoch=Count,
            dropped=Count,
            dry_run=Literal[True],
            ignored=list[str],
            absent="epoch dropped dry_run ignored",
        ),
        "topic_exists_incompatible",
        Config,
        creates=True,
    ),
    "topic.get": Described(
        "State and config of a topic.",
        answer(
            *("TopicState", values.TopicState),
            absent="queue",
            type=Literal["log", "queue"],
            config=StoredConfig,
            effective_priority=int,
            queue=QueueCounts,
        ),
        "topic_not_found",
    ),
    "topic.delete": Described(
        "Delete a topic, and its routers.",
        answer("TopicRemoved", topic=Topic, deleted=bool, routers_removed=list[str]),
        "topic_not_empty",
    ),
    "topic.list": Described(
        "The topics by name, page by page.",
        answer("TopicPage", topics=array(TopicInfo), **CURSOR),
    ),
    "queue.claim": Described(
        "Lease jobs; wait for some, if asked to.",
        answer("Claimed", topic=Topic, claimed=array(Job), count=Count, ready=Count),
        JOBS,
        Claim,
    ),
    "queue.ack": Described(
        "Jobs are done.",
        answer("Acked", topic=Topic, acked=Count, **SETTLED),
        f"{JOBS} batch_too_large",
        Ack,
    ),
    "queue.nack": Described(
        "Jobs have failed; they come again.",
        answer("Nacked", topic=Topic, nacked=Count, **SETTLED),
        f"{JOBS} batch_too_large",
        Nack,
    ),
    "queue.extend": Described(
        "Jobs take longer.",
        answer(*("Extended",), topic=Topic, extended=Count, skipped=list[Count], **DEADLINES),
        f"{JOBS} batch_too_large",
        Extend,
    ),
    "queue.work": Described(
        "Jobs as an event stream; asyncapi.json has its events.", EVENTS, f"{JOBS} not_acceptable"
    ),
    "queue.leases": Described(
        "Who holds which job. Only a key that may write is shown the ids of leases.",
        answer("LeasePage", leases=array(Lease), **CURSOR),
        JOBS,
    ),
    "queue.redrive": Described(
        "Move dead letters back to their queues.",
        answer("Redriven", values.Redriven, absent="reason", reason=str),
        "topic_not_found",
        Redrive,
    ),
    "router.put": Described(
        "Make a router, or change it.",
        answer(
            "RouterConfigured", router=str, created=bool, source=str, dest=str, **ROUTED, **IGNORED
        ),
        "topic_not_found topic_exists_incompatible router_cycle",
        RouterConfig,
        creates=True,
    ),
    "router.get": Described(
        "Config of a router, and how far it is behind.",
        answer(*("RouterState", values.RouterInfo), **ROUTED, lag_records=Count, lag_ms=Count),
        "router_not_found",
    ),
    "router.delete": Described(
        "Delete a router.", answer("RouterRemoved", router=str, deleted=bool)
    ),
    "router.list": Described(
        "The routers by name, page by page.",
        answer("RouterPage", routers=array(RouterEnds), **CURSOR),
    ),
    "watch": Described(
        "Make a watch session; its stream is another request.",
        answer(
            "WatchSession",
            wid=str,
            stream_url=str,
            session_ttl_ms=Count,
            topics=by_name(StartedAt),
        ),
        "topic_not_found",
        Watch,
    ),
    "watch.topics": Described(
        "Topics as an event stream, without a session; asyncapi.json has its events.",
        EVENTS,
        "topic_not_found not_acceptable",
    ),
    "watch.open": Described(
        "The event stream of a session; asyncapi.json has its events.",
        EVENTS,
        "not_found not_acceptable",
    ),
    "ws": Described("Open a WebSocket; asyncapi.json has its messages.", "", "upgrade_required"),
    "health": Described(
        "200 as long as the process can answer.",
        answer("Health", status=Literal["ok"], version=str, uptime_ms=Count),
    ),
    "ready": Described(
        "200 when all shards serve.",
        answer(
            "Ready",
            absent="shards",
            status=Literal["ready"],
            wal_replay_complete=bool,
            topics=Count,
            shards=array(LimitedShard),
        ),
        "not_ready shutting_down",
    ),
    "root": Described(
        "Name, version, links.",
        answer("Root", name=Literal["topics"], version=str, links=dict[str, str], docs=str),
    ),
    "metrics": Described("Metrics, for Prometheus or as JSON.", f"text/plain {JSON}"),
    "spec": Described("The document itself.", JSON),
    "backup": Described("All data of the server, as a tar.", "application/x-tar"),
    "backup.changes": Described(
        "The data that the client lacks, as a tar.", "application/x-tar", body=BackupRequest
    ),
}


# Of the query: what a parameter is about, and what its parser does not say.
PARAMETERS: Final = {
    "cursor": "`next_cursor` of the page before.",
    "page_size": f"Clamped to 1 to {PAGE_SIZE_MAX}.",
    "prefix": "Names that begin so.",
    "source": "Routers from this topic.",
    "dest": "Routers to this topic.",
    "touch": "Whether this counts as a read (`last_read_ts`).",
    "dry_run": "Check the request and answer what it would do; nothing is changed.",
    "if_empty": "Refuse to delete a topic that holds records.",
    "return_seqs": "Whether the answer lists `seqs`.",
    "lenient": "Leave out topics that are not there.",
    "max": "How many jobs are in hand at most.",
    "lease_ms": "How long a lease lasts; without it as the topic says.",
    "topic": "A topic to follow; repeat it for more.",
    "from_seq": "Begin behind this seq.",
    "tail": "Start at the current head.",
    "limit": "Records of an event; 0: the default.",
    "max_batch_bytes": "Bytes of an event; 0: the default.",
    "heartbeat_ms": "Clamped to 1000 to 60000.",
    "include_data": "Whether records have `data` and `meta`.",
    "include_meta": "Whether records have `meta`.",
    "include_tags": "Whether records have `$tag`.",
    "node": "Leave out what this node has written; repeat it for more.",
    "server_timing": "Add `Server-Timing` to the answer.",
}
NARROWED: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("queue.work", "node"): {"description": "Who works.", "required": True, "minLength": 1},
    ("queue.leases", "node"): {"description": "Only leases of this worker.", "minLength": 1},
    ("queue.work", "max"): {"minimum": 1},
    ("watch.topics", "cursor"): {
        "description": "Go on behind the event with this id; `Last-Event-ID` counts before it."
    },
    ("watch.topics", "topic"): {"required": True, "minItems": 1},
}
