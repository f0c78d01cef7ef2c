"""Descriptions of routes and parameters that are neither in a struct nor in the route table.

A new route needs a row in `ROUTES` under its name; `openapi` reports routes without a row. Paths
below `LEFT_OUT` are not part of the API.
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
    """The description of a route. ``answer`` is the body of a success, or its media types if it is
    not a described JSON body. ``codes`` are the error codes that are specific to the route.
    """

    summary: str
    answer: Shape | str
    codes: str = ""
    body: Shape | None = None
    creates: bool = False  # also returns 201


JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
JOBS: Final = "topic_not_found not_a_queue"
SETTLED: Final[Members] = {"skipped": list[Count], "ready": Count, "in_flight": Count}
CURSOR: Final[Members] = {"absent": "next_cursor", "next_cursor": str}
IGNORED: Final[Members] = {"absent": "ignored", "ignored": list[str]}
DEADLINES: Final[Members] = {"deadlines": dict[str, Count]}

ROUTES: Final = {
    "append": Described(
        "Append records to a topic, which is created if it does not exist.",
        Receipt,
        "batch_too_large record_too_large topic_not_found topic_full",
        Append,
        creates=True,
    ),
    "diff": Described(
        "Read the records after a seq. Optionally wait for records.",
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
        "Create a topic, or change its config.",
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
        "Return the state and the config of a topic.",
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
        "Delete a topic and its routers.",
        answer("TopicRemoved", topic=Topic, deleted=bool, routers_removed=list[str]),
        "topic_not_empty",
    ),
    "topic.list": Described(
        "List the topics by name, page by page.",
        answer("TopicPage", topics=array(TopicInfo), **CURSOR),
    ),
    "queue.claim": Described(
        "Lease jobs. Optionally wait for jobs.",
        answer("Claimed", topic=Topic, claimed=array(Job), count=Count, ready=Count),
        JOBS,
        Claim,
    ),
    "queue.ack": Described(
        "Acknowledge completed jobs.",
        answer("Acked", topic=Topic, acked=Count, **SETTLED),
        f"{JOBS} batch_too_large",
        Ack,
    ),
    "queue.nack": Described(
        "Release failed jobs for another delivery.",
        answer("Nacked", topic=Topic, nacked=Count, **SETTLED),
        f"{JOBS} batch_too_large",
        Nack,
    ),
    "queue.extend": Described(
        "Extend the leases of jobs.",
        answer(*("Extended",), topic=Topic, extended=Count, skipped=list[Count], **DEADLINES),
        f"{JOBS} batch_too_large",
        Extend,
    ),
    "queue.work": Described(
        "Stream jobs as events; asyncapi.json describes the events.",
        EVENTS,
        f"{JOBS} not_acceptable",
    ),
    "queue.leases": Described(
        "List the leases of jobs. Lease ids are only returned to keys that may write.",
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
        "Create or change a router.",
        answer(
            "RouterConfigured", router=str, created=bool, source=str, dest=str, **ROUTED, **IGNORED
        ),
        "topic_not_found topic_exists_incompatible router_cycle",
        RouterConfig,
        creates=True,
    ),
    "router.get": Described(
        "Return the config and the lag of a router.",
        answer(*("RouterState", values.RouterInfo), **ROUTED, lag_records=Count, lag_ms=Count),
        "router_not_found",
    ),
    "router.delete": Described(
        "Delete a router.", answer("RouterRemoved", router=str, deleted=bool)
    ),
    "router.list": Described(
        "List the routers by name, page by page.",
        answer("RouterPage", routers=array(RouterEnds), **CURSOR),
    ),
    "watch": Described(
        "Create a watch session. A second request opens its stream.",
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
        "Stream topics as events, without a session; asyncapi.json describes the events.",
        EVENTS,
        "topic_not_found not_acceptable",
    ),
    "watch.open": Described(
        "Open the event stream of a session; asyncapi.json describes the events.",
        EVENTS,
        "not_found not_acceptable",
    ),
    "ws": Described(
        "Open a WebSocket; asyncapi.json describes the messages.", "", "upgrade_required"
    ),
    "health": Described(
        "Return 200 while the process can respond.",
        answer("Health", status=Literal["ok"], version=str, uptime_ms=Count),
    ),
    "ready": Described(
        "Return 200 when all shards are ready.",
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
        "Return the name, the version and links.",
        answer("Root", name=Literal["topics"], version=str, links=dict[str, str], docs=str),
    ),
    "metrics": Described("Return metrics for Prometheus or as JSON.", f"text/plain {JSON}"),
    "spec": Described("Return this document.", JSON),
    "backup": Described("Return all data of the server as a tar archive.", "application/x-tar"),
    "backup.changes": Described(
        "Return the data that the client lacks as a tar archive.",
        "application/x-tar",
        body=BackupRequest,
    ),
}


# Query parameters: their meaning, and properties that their parsers do not express.
PARAMETERS: Final = {
    "cursor": "`next_cursor` of the previous page.",
    "page_size": f"Clamped to 1 to {PAGE_SIZE_MAX}.",
    "prefix": "Only names with this prefix.",
    "source": "Only routers from this topic.",
    "dest": "Only routers to this topic.",
    "touch": "Whether this counts as a read (`last_read_ts`).",
    "dry_run": "Check the request and return its effect without changing anything.",
    "if_empty": "Refuse to delete a topic that contains records.",
    "return_seqs": "Whether the response lists `seqs`.",
    "lenient": "Omit topics that do not exist.",
    "max": "Maximum number of leased jobs.",
    "lease_ms": "Duration of a lease. The default is in the config of the topic.",
    "topic": "A topic to follow. Repeat the parameter for more topics.",
    "from_seq": "Begin after this seq.",
    "tail": "Begin at the current head.",
    "limit": "Maximum number of records per event; 0: the default.",
    "max_batch_bytes": "Maximum number of bytes per event; 0: the default.",
    "heartbeat_ms": "Clamped to 1000 to 60000.",
    "include_data": "Whether records have `data` and `meta`.",
    "include_meta": "Whether records have `meta`.",
    "include_tags": "Whether records have `$tag`.",
    "node": "Omit records of this node. Repeat the parameter for more nodes.",
    "server_timing": "Add `Server-Timing` to the response.",
}
NARROWED: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("queue.work", "node"): {"description": "This worker.", "required": True, "minLength": 1},
    ("queue.leases", "node"): {"description": "Only leases of this worker.", "minLength": 1},
    ("queue.work", "max"): {"minimum": 1},
    ("watch.topics", "cursor"): {
        "description": "Resume after the event with this id. `Last-Event-ID` takes precedence."
    },
    ("watch.topics", "topic"): {"required": True, "minItems": 1},
}
