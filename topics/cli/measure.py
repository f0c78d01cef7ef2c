"""What commands share that look and measure: metrics (§8.3), readiness (§8.2), a topic of a run."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from topics.cli.shell import Shell
from topics.client import ConnectionLost, Throttled, Topics, TopicsError, Unavailable, calls

Metrics = dict[str, Any]

AWAY: Final = (ConnectionLost, Unavailable, Throttled)
SYNCS: Final = "topics_wal_fsync_latency_us"


def by(metrics: Metrics, name: str, label: str) -> dict[str, int]:
    """The values of a metric by one of its labels; sums, where others tell them apart."""
    found: dict[str, int] = {}
    for row in metrics.get(name, ()):
        found[row[label]] = found.get(row[label], 0) + row["value"]
    return found


def sync_ms(after: Metrics, before: Metrics | None, share: float) -> float | None:
    """How long this share of all syncs took at most, those between two samples, or all. Within a
    bucket it is by proportion, as Prometheus reckons. None without a sync.
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
    """Whether the server is ready, what it says about it, and shards by what is wrong with them."""

    is_ready: bool
    says: str
    shards: dict[str, list[int]]

    def __str__(self) -> str:
        found = [
            f"shard {number} {state}" for state in self.shards for number in self.shards[state]
        ]
        return ", ".join([self.says, *found])


def readiness(client: Topics) -> Readiness:
    """Ask it. Raises `TopicsError`."""
    try:
        answer, says, is_ready = client.once(calls.ready()), "ready", True
    except Unavailable as failure:
        answer, says, is_ready = failure.detail, f"not ready: {failure.message}", False
        if progress := answer.get("replay_progress"):
            says += f" ({progress:.0%})"
    shards: dict[str, list[int]] = {}
    for each in answer.get("shards", ()):
        shards.setdefault(each["state"], []).append(each["shard"])
    return Readiness(is_ready, says, shards)


@contextmanager
def own_topic(shell: Shell, client: Topics, prefix: str, **config: Any) -> Iterator[str]:
    """The name of a topic that is made for this run alone, and removed at the end."""
    name = f"{prefix}:{uuid.uuid4().hex[:12]}"
    client.topic(name).put(**config)
    try:
        yield name
    finally:
        try:
            client.topic(name).drop()
        except TopicsError as failure:
            shell.say(f"the topic {name} is left: {failure.message}")


def percentile(times: Sequence[float], share: float) -> float | None:
    """The time that this share of all took at most; None without any."""
    ordered = sorted(times)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None
