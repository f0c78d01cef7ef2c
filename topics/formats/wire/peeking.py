"""Peeking: what a message is about, read off its payload without decoding it.

A peek is for those who put messages in an order before they are handled. It knows where the params
of each call and event begin (`topics.formats.wire.envelope`), and reads no more than these:

    request   a4 "t" "Q"  "cid" 1B cid  "method" text  "params" array: topic, ...      most calls
                                                               array: number, topic    opens
                                                               array: [topic, ...]     topic.heads
    event     a3 "t" "N"  "method" text  "params" array: number, ...                   followers

An *open* gives a number to what it opens. A *follower* is an event that names such a number, or
that of a request (``cid``, the id of its message); it means nothing before what it names. Payloads
that are laid out in another way, and those of answers, are about nothing. No bytes make a peek
raise.
"""

from __future__ import annotations

from typing import Final

from topics.formats.wire import calls
from topics.formats.wire.calls import CALLS, EVENTS
from topics.formats.wire.envelope import encode_notification, encode_request
from topics.formats.wire.message import Message

REQUEST: Final = ord("Q")
KIND_AT: Final = 4  # of the letter after "t"
SHORT_TEXT: Final = 0x60  # head of a text: its length, up to 23, is added
TEXT: Final = SHORT_TEXT >> 5  # major type of CBOR
ITEM_BYTES: Final = {24: 1, 25: 2, 26: 4, 27: 8}  # that follow the head of an item, by its low bits

OPENS: Final = {calls.FEED_OPEN.subject: "feed", calls.WORK_OPEN.subject: "work"}
FOLLOWERS: Final = {
    calls.CALL_CANCELLED.subject: "call",
    calls.FEED_TAKEN.subject: "feed",
    calls.FEED_CLOSE.subject: "feed",
    calls.WORK_TAKEN.subject: "work",
    calls.WORK_CLOSE.subject: "work",
}
# Routers have an order of their own: that in which their messages are sent.
_ROUTER: Final = "router."


def _params_at(field: str) -> dict[str, int]:
    """Where the first of the params of each call is that has such a field."""
    return {
        call.subject: len(encode_request(0, call.method, ()))
        for call in CALLS
        if field in call.params._fields and not call.method.startswith(_ROUTER)
    }


# The array of params has a head of one byte, as an empty one has: there are few of them.
_TOPIC_AT: Final = _params_at("topic")
_TOPICS_AT: Final = _params_at("topics")
_NUMBER_AT: Final = {
    event.subject: len(encode_notification(event.method, ()))
    for event in EVENTS
    if event.subject in FOLLOWERS
}


def topic_of(message: Message) -> str | None:
    """The one topic that a request names."""
    at = _TOPIC_AT.get(message.subject)
    if at is None:
        return None
    payload = message.payload
    try:
        if payload[KIND_AT] != REQUEST:
            return None
        length = payload[at] - SHORT_TEXT
        if 0 <= length < 24:  # the usual case, in line
            return str(payload[at + 1 : at + 1 + length], "ascii")
        if message.subject in OPENS:
            at = _head(payload, at)[1]
        return _text(payload, at)[0]
    except (IndexError, ValueError):
        return None


def topics_of(message: Message) -> list[str]:
    """The topics that a request about several of them names."""
    at = _TOPICS_AT.get(message.subject)
    payload = message.payload
    if at is None or len(payload) <= at or payload[KIND_AT] != REQUEST:
        return []
    names: list[str] = []
    try:
        count, at = _head(payload, at)
        for _ in range(min(count, len(payload))):
            name, at = _text(payload, at)
            names.append(name)
    except (IndexError, ValueError):
        return []
    return names


def opened_by(message: Message) -> tuple[str, int] | None:
    """What an open opens: a kind of `FOLLOWERS`, and the number."""
    kind = OPENS.get(message.subject)
    return None if kind is None else _numbered(kind, message.payload, _TOPIC_AT[message.subject])


def followed_by(message: Message) -> tuple[str, int] | None:
    """What a follower names: its kind, and the number."""
    kind = FOLLOWERS.get(message.subject)
    return None if kind is None else _numbered(kind, message.payload, _NUMBER_AT[message.subject])


def _numbered(kind: str, payload: bytes | memoryview, at: int) -> tuple[str, int] | None:
    try:
        return kind, _head(payload, at)[0]
    except (IndexError, ValueError):
        return None


def _head(payload: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number in the head of the item at ``at``, and the end of the head."""
    low = payload[at] & 31
    if low < 24:
        return low, at + 1
    end = at + 1 + ITEM_BYTES[low] if low in ITEM_BYTES else len(payload) + 1
    if end > len(payload):
        raise IndexError(at)
    return int.from_bytes(payload[at + 1 : end]), end


def _text(payload: bytes | memoryview, at: int) -> tuple[str, int]:
    """The text at ``at`` and its end. Raises IndexError or ValueError where there is none."""
    if payload[at] >> 5 != TEXT:
        raise ValueError(at)
    length, start = _head(payload, at)
    end = start + length
    if end > len(payload):
        raise IndexError(at)
    return str(payload[start:end], "ascii"), end
