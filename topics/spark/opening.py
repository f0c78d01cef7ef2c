"""Opening a topic for rows: make it with a long dedupe window, or keep it as it is.

Repeated tasks and jobs are told by their idempotency keys, so the topic must remember them for
longer than the time between two attempts. The contract's default of two minutes is too short.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from topics.spark.client.errors import RequestError
from topics.spark.client.http import TopicsClient
from topics.spark.preflight import refuse_queue

HOUR_MS = 60 * 60 * 1000
WINDOW_MS = (
    7 * 24 * HOUR_MS
)  # of a topic that is made: a job that failed on Friday is run again on Monday


def open_topic(
    client: TopicsClient, topic: str, durability: str | None, warn: Callable[[str], None]
) -> dict[str, Any]:
    """Make the topic if it is absent and return its state. A topic that exists keeps its config,
    but for a named durability.
    """
    wanted: dict[str, Any] = {} if durability is None else {"durability": durability}
    state = client.state(topic)
    if state is not None and wanted and state["config"]["durability"] != durability:
        client.put_topic(topic, wanted)
    return make_topic(client, topic, {"idempotency_window_ms": WINDOW_MS, **wanted}, warn)


def make_topic(
    client: TopicsClient,
    topic: str,
    config: Mapping[str, Any],
    warn: Callable[[str], None],
) -> dict[str, Any]:
    """Make the topic with ``config`` if it is absent and return its state; one that exists keeps
    all of its config. Raises ``JobError`` for a queue, ``RequestError`` for a refusal.
    """
    state = client.state(topic)
    if state is None:
        client.put_topic(topic, dict(config))
        state = client.state(topic)
    if state is None:
        raise RequestError(
            topic, 404, "topic_not_found", "it was deleted at once after it was made"
        )
    refuse_queue(topic, state)
    warn_of_window(topic, state, warn)
    return state


def warn_of_window(topic: str, state: Mapping[str, Any], warn: Callable[[str], None]) -> None:
    """Warn when the topic forgets idempotency keys within the hour."""
    window_ms = state["config"]["idempotency_window_ms"]
    if window_ms < HOUR_MS:
        warn(
            f'topic "{topic}" remembers idempotency keys for {window_ms / 1000:g} s only: a task or'
            " job that is repeated later appends its records again. Set idempotency_window_ms to an"
            f" hour or more (PUT /v0/topics/{topic})."
        )
