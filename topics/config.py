"""Settings: one frozen value, made once in the supervisor and handed down. Field ``x_y`` is read from ``TOPICS_X_Y``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that the environment may set. Sizes in bytes, times in milliseconds, unless the name says otherwise."""

    # Where
    host: str = "127.0.0.1"
    port: int = 4000
    data_dir: Path = Path("topics-data")
    shards: int = 1
    fronts: int = 1

    # Writes (§2)
    max_batch_records: int = 10_000
    max_record_bytes: int = 1 * MIB
    max_body_bytes: int = 64 * MIB
    max_meta_bytes: int = 16 * KIB
    max_tag_bytes: int = 256
    max_node_bytes: int = 128

    # Reads and queues (§3, §7, §10)
    max_limit: int = 1000
    max_watch_topics: int = 256
    max_claim: int = 1000

    # Caps (§11); 0 means no cap
    max_topics: int = 100_000
    max_routers: int = 10_000
    max_watch_sessions: int = 10_000
    max_sse_connections: int = 10_000
    max_sse_connections_per_key: int = 1000
    max_inflight_per_key: int = 1000
    max_total_bytes: int = 0

    # Bounds of the inside
    ring_bytes: int = 4 * MIB  # one direction between a front and a shard; a power of two
    inline_bytes: int = 256 * KIB  # a longer body or answer goes through the arena
    arena_bytes: int = 256 * MIB  # one direction between a front and a shard; pages are taken only when touched
    wal_file_bytes: int = 64 * MIB
    wal_sync_ms: int = 200  # the longest that a `disk` record waits for its fsync
    drain_ms: int = 10_000
