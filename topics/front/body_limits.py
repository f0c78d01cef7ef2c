"""Limits of request bodies: the maximum length for each route, and the errors for longer bodies."""

from __future__ import annotations

from topics.config import Settings
from topics.errors import PayloadTooLarge, Throttled
from topics.front.error_answers import RETRY_AFTER_MS
from topics.front.route import BodyRule, Route

SHORT_BODY_BYTES = 128 * 1024  # decoded in one loop iteration, which takes 4 to 9 ms at worst
WATCH_TOPIC_BYTES = 512  # space for a topic name of 255 characters and a start position
JOB_BYTES = 64  # space for a seq and a lease_id
ESCAPED = 8  # the maximum ratio of the length of an escaped JSON string to its text


class BodyLimits:
    """The maximum length of the body of each route."""

    def __init__(self, settings: Settings) -> None:
        self._max_bytes = settings.max_body_bytes
        self._short_max_bytes = short_body_max(settings)

    def max_bytes(self, route: Route) -> int:
        """Return the maximum number of bytes of a request body for this route."""
        is_short = route.body is not BodyRule.NONE and not route.long_body
        return self._short_max_bytes if is_short else self._max_bytes


def short_body_max(settings: Settings) -> int:
    """Return the maximum length of a valid body on a route without `Route.long_body`."""
    texts = ESCAPED * max(settings.max_tag_bytes, settings.max_node_bytes)
    topics, jobs = settings.max_watch_topics, settings.max_claim
    wanted = max(SHORT_BODY_BYTES, WATCH_TOPIC_BYTES * topics, JOB_BYTES * jobs, texts)
    return min(settings.max_body_bytes, wanted)


def too_large(limit: int) -> PayloadTooLarge:
    """Return the error for a body of more than ``limit`` bytes.

    The limit is TOPICS_MAX_BODY_BYTES for routes with `Route.long_body`, otherwise
    `short_body_max`.
    """
    return PayloadTooLarge(f"the body is larger than {limit} bytes", max=limit)


def no_space() -> Throttled:
    """Return the error for a body if the shared memory for long bodies is full."""
    return Throttled(
        "no memory for another large body at the moment", retry_after_ms=RETRY_AFTER_MS
    )
