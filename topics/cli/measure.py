"""Functions for the commands that monitor and measure: metrics (§8.3), readiness (§8.2), and a
topic for one run.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from topics.cli.shell import Shell
from topics.client import ConnectionLost, Throttled, Topics, TopicsError, Unavailable, calls

Metrics = dict[str, Any]

TEMPORARY_ERRORS: Final = (ConnectionLost, Unavailable, Throttled)
SYNCS: Final = "topics_wal_fsync_latency_us"


def by_label(metrics: Metrics, name: str, label: str) -> dict[str, int]:
    """Return the values of a metric by one of its labels, summed over its other labels."""
    found: dict[str, int] = {}
    for row in metrics.get(name, ()):
        found[row[label]] = found.get(row[label], 0) + row["value"]
    return found


def sync_ms(after: Metrics, before: Metrics | None, share: float) -> float | None:
    """Return a quantile of the sync times between two samples, or of all sync times. Within a
    bucket it is interpolated, as in Prometheus. Return None if there was no sync.
    """
    counts = {row["le"]: row["count"] for row in after[SYNCS]["buckets"]}
    for row in before[SYNCS]["buckets"] if before else ():
        counts[row["le"]] -= row["count"]
    wanted = share * counts["+Inf"]
    low, below = 0.0, 0
    for bound, count in counts.items():
        if bound != "+Inf" and count >= wanted > below:
            part: float = (wanted - below) / (count - below)
            return (low + (float(bound) - low) * part) / 1000
        low, below = low if bound == "+Inf" else float(bound), count
    return low / 1000 if wanted else None


class Readiness(NamedTuple):
    """Whether the server is ready, its message, and the numbers of the shards by fault."""

    is_ready: bool
    reason: str
    shards: dict[str, list[int]]

    def __str__(self) -> str:
        found = [
            f"shard {number} {state}" for state in self.shards for number in self.shards[state]
        ]
        return ", ".join([self.reason, *found])


def readiness(client: Topics) -> Readiness:
    """Return the readiness of the server. Raise `TopicsError`."""
    try:
        answer, reason, is_ready = client.once(calls.ready()), "ready", True
    except Unavailable as failure:
        answer, reason, is_ready = failure.detail, f"not ready: {failure.message}", False
        if progress := answer.get("replay_progress"):
            reason += f" ({progress:.0%})"
    shards: dict[str, list[int]] = {}
    for each in answer.get("shards", ()):
        shards.setdefault(each["state"], []).append(each["shard"])
    return Readiness(is_ready, reason, shards)


@contextmanager
def own_topic(shell: Shell, client: Topics, prefix: str, **config: Any) -> Iterator[str]:
    """Create a topic for this run, yield its name, and delete it at the end."""
    name = f"{prefix}:{uuid.uuid4().hex[:12]}"
    client.topic(name).put(**config)
    try:
        yield name
    finally:
        try:
            client.topic(name).drop()
        except TopicsError as failure:
            shell.print_note(f"topic {name} could not be deleted: {failure.message}")


def percentile(times: Sequence[float], share: float) -> float | None:
    """Return a quantile of times, or None if there are none."""
    ordered = sorted(times)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None
