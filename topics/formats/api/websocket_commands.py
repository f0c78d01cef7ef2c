"""WebSocket commands (§7.3): decodes the JSON text messages that clients send.

    op            members besides request_id
    publish       topic, and the body of an append (decoded by the shard)
    subscribe     topic with from_seq, tail, epoch; or topics; and the members of a view
    unsubscribe   topic
    ping

The head of a command is decoded first, so that an error contains the ``request_id`` of the command.
The head of a long command is decoded in steps, without its records
(`topics.formats.api.append_slices`).
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from topics.errors import InvalidRequest
from topics.formats.api.decoding import decode
from topics.formats.api.limits import REQUEST_ID_MAX_BYTES, Limits
from topics.formats.api.watch import (
    HEARTBEAT_MS,
    Start,
    ViewOptions,
    WatchRequest,
    check_starts,
    view_of,
)


class CommandHead(msgspec.Struct):
    """The members by which a command is dispatched."""

    op: str
    topic: str | None = None
    return_seqs: bool = True
    request_id: Raw = Raw(b"null")


class _RequestId(msgspec.Struct):
    request_id: Raw = Raw(b"null")


class SubscribeBody(ViewOptions, kw_only=True):
    """The ``subscribe`` command. The bounds of its values are not checked yet."""

    topic: str | None = None
    topics: dict[str, Start] | None = None
    from_seq: int = 0
    tail: bool = False
    epoch: int | None = None


_head = msgspec.json.Decoder(CommandHead)
_request_id = msgspec.json.Decoder(_RequestId)
_subscribe = msgspec.json.Decoder(SubscribeBody)


def decode_command(message: bytes) -> CommandHead:
    """Decode the head of a command. Raises `InvalidRequest`."""
    head = decode(_head.decode, message)
    if len(head.request_id) > REQUEST_ID_MAX_BYTES:
        raise InvalidRequest(
            f"request_id is longer than {REQUEST_ID_MAX_BYTES} bytes",
            field="request_id",
            max=REQUEST_ID_MAX_BYTES,
        )
    return head


def request_id_of(message: bytes) -> bytes:
    """Return the ``request_id`` of a command as raw JSON, even if its other members are invalid.

    Returns ``null`` if the command has no ``request_id`` or is not JSON, or if the id is too long.
    """
    try:
        request_id = bytes(_request_id.decode(message).request_id)
    except (msgspec.MsgspecError, RecursionError):
        return b"null"
    return request_id if len(request_id) <= REQUEST_ID_MAX_BYTES else b"null"


def decode_subscribe(message: bytes, limits: Limits, max_topics: int) -> WatchRequest:
    """Decode and check a ``subscribe`` command. Raises `InvalidRequest`."""
    request = decode(_subscribe.decode, message)
    if request.topics is not None and request.topic is None:
        starts = request.topics
    elif request.topic is not None and request.topics is None:
        starts = {request.topic: Start(request.from_seq, request.tail, request.epoch)}
    else:
        raise InvalidRequest("subscribe requires either topic or topics")
    check_starts(starts, max_topics)
    return WatchRequest(starts, view_of(request, limits), HEARTBEAT_MS)
