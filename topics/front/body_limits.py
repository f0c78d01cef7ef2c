"""Limits of request bodies: how long a body may be, and the failures above that."""

from __future__ import annotations

from topics.config import Settings
from topics.errors import PayloadTooLarge, Throttled
from topics.front.error_answers import RETRY_AFTER_MS
from topics.front.route import BodyRule, Route

SHORT_BODY_BYTES = 128 * 1024  # decoded in one turn of an event loop: 4 to 9 ms at worst
WATCH_TOPIC_BYTES = 512  # a name of 255 characters and its start
JOB_BYTES = 64  # a seq and a lease_id
ESCAPED = 8  # a JSON string is at most so many times as long as its text


class BodyLimits:
    """The longest body of each route."""

    def __init__(self, settings: Settings) -> None:
        self._max_bytes = settings.max_body_bytes
        self._short_max_bytes = short_body_max(settings)

    def max_bytes(self, route: Route) -> int:
        """How many bytes a body of this route may have."""
        is_short = route.body is not BodyRule.NONE and not route.long_body
        return self._short_max_bytes if is_short else self._max_bytes


def short_body_max(settings: Settings) -> int:
    """The longest body that any request but an append can need."""
    texts = ESCAPED * max(settings.max_tag_bytes, settings.max_node_bytes)
    topics, jobs = settings.max_watch_topics, settings.max_claim
    wanted = max(SHORT_BODY_BYTES, WATCH_TOPIC_BYTES * topics, JOB_BYTES * jobs, texts)
    return min(settings.max_body_bytes, wanted)


def too_large(limit: int) -> PayloadTooLarge:
    """The body is above ``limit`` bytes: TOPICS_MAX_BODY_BYTES, or `short_body_max` for all but
    appends.
    """
    return PayloadTooLarge(f"the body is larger than {limit} bytes", max=limit)


def no_room() -> Throttled:
    """The shared memory for long bodies is full."""
    return Throttled("no room for another large body at the moment", retry_after_ms=RETRY_AFTER_MS)
