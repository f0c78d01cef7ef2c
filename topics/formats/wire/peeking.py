"""Peeking: what a message is about, for those who put messages in an order before they are handled.

An *open* is a request that gives a number to what it opens. A *follower* is an event that names
such a number, or that of a request (``cid``, the id of its message); it means nothing before what
it names. Answers, and payloads that are no envelope, are about nothing. No bytes make a peek raise.
"""

from __future__ import annotations

from typing import Any, Final

from topics.formats.wire import calls
from topics.formats.wire.calls import CALLS
from topics.formats.wire.envelope import UNREADABLE, Notification, Request, decode
from topics.formats.wire.message import Message

OPENS: Final = {calls.FEED_OPEN.subject: "feed", calls.WORK_OPEN.subject: "work"}
FOLLOWERS: Final = {
    calls.CALL_CANCELLED.subject: "call",
    calls.FEED_TAKEN.subject: "feed",
    calls.FEED_CLOSE.subject: "feed",
    calls.WORK_TAKEN.subject: "work",
    calls.WORK_CLOSE.subject: "work",
}


def _index_of(field: str) -> dict[str, int]:
    """Which of the params of each call has this name. Calls of routers have an order of their own:
    that in which they are sent.
    """
    return {
        call.subject: call.params._fields.index(field)
        for call in CALLS
        if field in call.params._fields and not call.method.startswith("router.")
    }


_TOPIC: Final = _index_of("topic")
_TOPICS: Final = _index_of("topics")


def topic_of(message: Message) -> str | None:
    """The one topic that a request names."""
    index = _TOPIC.get(message.subject)
    topic = None if index is None else _param(message, index)
    return topic if type(topic) is str else None


def topics_of(message: Message) -> list[str]:
    """The topics that a request about several of them names."""
    index = _TOPICS.get(message.subject)
    topics = None if index is None else _param(message, index)
    return [topic for topic in topics if type(topic) is str] if type(topics) is list else []


def opened_by(message: Message) -> tuple[str, int] | None:
    """What an open opens: a kind of `FOLLOWERS`, and the number."""
    return _numbered(OPENS, message)


def followed_by(message: Message) -> tuple[str, int] | None:
    """What a follower names: its kind, and the number."""
    return _numbered(FOLLOWERS, message)


def _numbered(kinds: dict[str, str], message: Message) -> tuple[str, int] | None:
    kind = kinds.get(message.subject)
    number = None if kind is None else _param(message, 0)
    return None if kind is None or type(number) is not int else (kind, number)


def _param(message: Message, index: int) -> Any:
    """One of the params of a request or an event; None where there are no such."""
    try:
        envelope = decode(message.payload)
    except UNREADABLE:
        return None
    if type(envelope) is not Request and type(envelope) is not Notification:
        return None
    params = envelope.params
    return params[index] if type(params) is list and len(params) > index else None
