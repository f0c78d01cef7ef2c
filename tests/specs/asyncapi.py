"""Generates the AsyncAPI 3.1 document of the event streams and the WebSocket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import UnsetType

from tests.specs.openapi import SCHEMAS, plain
from tests.specs.shapes import (
    APPENDED,
    VIEWED,
    Count,
    Job,
    Members,
    Reason,
    Receipt,
    Shape,
    StartedAt,
    Starts,
    Tombstone,
    Topic,
    WatchedRecord,
    array,
    by_name,
    response_shape,
    sent,
)
from topics import __version__
from topics.client import values
from topics.formats.api.append_body import AppendBody
from topics.formats.api.websocket_commands import SubscribeBody
from topics.front.error_answers import STATUS

Json = dict[str, Any]

# Shared by event streams and the WebSocket

Code: Any = Literal[tuple(sorted({kind.code for kind in STATUS}))]
Status: Any = Literal[tuple(sorted({*STATUS.values(), 408}))]
PAGE: Final[Members] = {"from_seq": Count, "to_seq": Count, "head_seq": Count}
RECORDS: Final[Members] = {"topic": Topic, "records": array(WatchedRecord), **PAGE}
DELETED: Final[Members] = {"reason": Literal["deleted"]}
PACED: Final[Members] = {"retry_after_ms": Count, "topics": list[str]}

# Server-sent events

Records = response_shape("Records", **RECORDS)
LOST: Final[Members] = {
    "topic": Topic,
    "reason": Literal[(*get_args(Reason), "from_seq_too_old")],
}
TopicTombstone = response_shape("TopicTombstone", Tombstone, **LOST)
CaughtUp = response_shape("CaughtUp", values.CaughtUp)
TopicDeleted = response_shape("TopicDeleted", values.TopicDeleted, **DELETED)
StreamError = response_shape(
    *("StreamError",), absent="retry_after_ms topics", code=Status, error=str, **PACED
)
StreamedJob = response_shape("StreamedJob", Job, topic=Topic, absent="$node $tag meta last_error")
EVENTS: Final = {
    "record": (Records, "The next records of a topic."),
    "tombstone": (TopicTombstone, "Records were lost before they were read."),
    "caught-up": (CaughtUp, "All current records have been sent."),
    "topic-deleted": (TopicDeleted, "The topic was deleted."),
    "error": (
        StreamError,
        "Why the server closes the stream. A 429 with `topics` reports that these are paced.",
    ),
}
JOBS: Final = {
    "job": (StreamedJob, "A job, leased to this stream's node."),
    "error": EVENTS["error"],
}

# WebSocket


def command(base: Shape, op: str, name: str, /, **types: Any) -> Shape:
    """Return a message of a client. The reply repeats ``request_id``, which is any JSON value."""
    return sent(base, name, op=Literal[op], request_id=Any | UnsetType, **types)


def reply(op: str, name: str, base: Shape | None = None, /, **more: Any) -> Shape:
    """Return a message of the server."""
    return response_shape(name, base, op=Literal[op], **more)


class Bare(msgspec.Struct):
    """A command without further members."""


ID: Final[Members] = {"request_id": Any}
COMMANDS: Final = {
    "publish": (
        command(
            *(AppendBody, "publish", "Publish"),
            topic=Topic,
            return_seqs=bool | UnsetType,
            **APPENDED,
        ),
        "Append records.",
    ),
    "subscribe": (
        command(
            *(SubscribeBody, "subscribe", "Subscribe"),
            **VIEWED,
            topic=Topic | None,
            topics=Starts | None,
            consistency=Literal["eventual", "strong"],
        ),
        "Follow a `topic`, or `topics`.",
    ),
    "unsubscribe": (
        command(Bare, "unsubscribe", "Unsubscribe", topic=Topic),
        "Stop following a topic.",
    ),
    "ping": (command(Bare, "ping", "Ping"), "Check the connection."),
}
MESSAGES: Final = {
    "record": (reply("record", "RecordsMessage", **RECORDS), EVENTS["record"][1]),
    "tombstone": (
        reply("tombstone", "TombstoneMessage", Tombstone, **LOST),
        EVENTS["tombstone"][1],
    ),
    "caught_up": (
        reply("caught_up", "CaughtUpMessage", values.CaughtUp),
        EVENTS["caught-up"][1],
    ),
    "topic_deleted": (
        reply("topic_deleted", "TopicDeletedMessage", values.TopicDeleted, **DELETED),
        EVENTS["topic-deleted"][1],
    ),
    "error": (
        reply(
            *("error", "ErrorMessage"),
            absent="detail topic retry_after_ms topics",
            **ID,
            code=Code,
            message=str,
            detail=dict[str, Any],
            topic=Topic,
            **PACED,
        ),
        "A command was refused. Without a `request_id`: as in event streams.",
    ),
    "ack": (reply("ack", "Ack", Receipt, absent="seqs", **ID), "The result of a publish."),
    "subscribed": (
        reply("subscribed", "Subscribed", **ID, topics=by_name(StartedAt)),
        "The result of a subscribe.",
    ),
    "unsubscribed": (
        reply("unsubscribed", "Unsubscribed", **ID, topic=Topic),
        "The result of an unsubscribe.",
    ),
    "pong": (reply("pong", "Pong", **ID), "The reply to a ping."),
}

# Channel: address, description, sent messages, received messages. The name of a message in a
# channel is the name of the event, or the `op`.
RESUMED: Final = "`Last-Event-ID` resumes after the event with that id."
CHANNELS: Final[dict[str, tuple[str, str, Json, Json]]] = {
    "watch": (
        "/v0/watch",
        f"The topics in the query, as server-sent events. {RESUMED}",
        *(EVENTS, {}),
    ),
    "session": (
        "/v0/watch/{wid}",
        f"The topics of a watch session, as server-sent events. {RESUMED}",
        *(EVENTS, {}),
    ),
    "work": (
        "/v0/topics/{topic}/work",
        "Jobs of a queue, as server-sent events; the id is the job's seq. Ack them with a POST.",
        *(JOBS, {}),
    ),
    "socket": (
        "/v0/ws",
        (
            "JSON text messages. The member `op` is the type of a message. A publish has at most 16"
            " MiB, any other message of a client at most 128 KiB. The server closes the WebSocket"
            " with the code 1009 after a longer message."
        ),
        *(MESSAGES, COMMANDS),
    ),
}
PLACES: Final = {
    "wid": {"description": "From the response to `POST /v0/watch`."},
    "topic": {"description": "A queue."},
}


def asyncapi() -> Json:
    """Return the document."""
    shapes = {
        shape for *_, out, into in CHANNELS.values() for shape, _ in (*out.values(), *into.values())
    }
    ordered = sorted(shapes, key=lambda shape: shape.__name__)
    _, schemas = msgspec.json.schema_components(ordered, ref_template=SCHEMAS)
    server = {
        "host": "127.0.0.1:4000",
        "security": [{"$ref": "#/components/securitySchemes/bearer"}],
    }
    return {
        "asyncapi": "3.1.0",
        "info": {
            "title": "topics",
            "version": __version__,
            "description": "The streams of topics. /v0/openapi.json describes the requests. Later"
            " versions may add members: clients must ignore unknown members.",
        },
        "defaultContentType": "application/json",
        "servers": {
            "http": {**server, "protocol": "http"},
            "ws": {**server, "protocol": "ws"},
        },
        "channels": {name: _channel(name) for name in CHANNELS},
        "operations": dict(_operations()),
        "components": {
            "schemas": plain(schemas),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _channel(name: str) -> Json:
    address, about, out, into = CHANNELS[name]
    channel: Json = {
        "address": address,
        "description": about,
        "servers": [{"$ref": f"#/servers/{'ws' if into else 'http'}"}],
        "messages": {
            message: {"summary": summary, "payload": {"$ref": SCHEMAS.format(name=shape.__name__)}}
            for message, (shape, summary) in (out | into).items()
        },
    }
    if places := {place: name for place, name in PLACES.items() if f"{{{place}}}" in address}:
        channel["parameters"] = places
    return channel


def _operations() -> Iterator[tuple[str, Json]]:
    for name, (_, _, out, into) in CHANNELS.items():
        channel = f"#/channels/{name}"
        for action, messages in (("send", out), ("receive", into)):
            if messages:
                refs = [{"$ref": f"{channel}/messages/{message}"} for message in messages]
                yield (
                    f"{name}.{action}",
                    {"action": action, "channel": {"$ref": channel}, "messages": refs},
                )
