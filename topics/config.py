"""Settings: one frozen value, which the supervisor reads once and passes to all processes. The
field ``x_y`` is read from ``TOPICS_X_Y``.

API keys are not settings: ``topics.process.boot`` keeps only their digests. No other module of the
server reads the environment.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from topics.formats.setting_values import (
    Bound,
    Host,
    HostNames,
    Network,
    Networks,
    Origins,
    boolean,
)

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

INLINE_BYTES = 256 * KIB
ARENA_BYTES = 256 * MIB

API_KEYS = "TOPICS_API_KEYS"  # the only variable that is not a setting, because it is a secret
CLIENT_VARIABLES = ("TOPICS_URL", "TOPICS_API_KEY")  # a server ignores them
# The maximum byte budget of one read (§7.2). A response has at least one record, of any size.
MAX_BATCH_BYTES = 8 * MIB


class Problem(NamedTuple):
    """An invalid setting. ``value`` is None if it may be a secret."""

    variable: str
    value: str | None
    rule: str

    def __str__(self) -> str:
        shown = "" if self.value is None else f"={self.value!r}"
        return f"{self.variable}{shown}: {self.rule}"


class ConfigError(Exception):
    """The settings are invalid. ``problems`` lists all problems, and ``str()`` returns a line for
    each.

    ``settings`` contains the valid values and, for the other settings, defaults, so that the caller
    can run further checks.
    """

    def __init__(self, problems: Sequence[Problem], settings: Settings) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)
        self.settings = settings


Count = Annotated[int, Bound(1)]
Cap = Annotated[int, Bound(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a server. Sizes are in bytes and times in ms, unless the name has a different
    unit. The string after a field is its line in docs/reference.md.
    """

    # Address and data
    host: Annotated[str, Host()] = "127.0.0.1"
    """The address to listen on. An address that other machines can reach requires keys."""
    port: Annotated[int, Bound(0, 65_535)] = 4000
    """The port; 0 selects a free port."""
    data_dir: Path = Path("topics-data")
    """The data directory."""
    shards: Annotated[int, Bound(1, 64)] = 1
    """The number of shard processes, by default the number of usable cores. An existing data
    directory keeps its number of shards.
    """
    fence: Path | None = None
    """A file shared with the machine of the standby. It prevents a former source from starting."""

    # Access (§0.2), excluding the keys themselves
    api_keys_file: Path | None = None
    """A file of keys, one `SECRET[:SCOPES[:PREFIXES]]` per line. SIGHUP reloads it."""
    allow_insecure_no_auth: bool = False
    """Allow an address that other machines can reach even if there are no keys."""
    probe_auth: bool = False
    """Require a key for `/v0/health` and `/v0/ready`."""
    allowed_hosts: Annotated[tuple[str, ...], HostNames()] = ()
    """Host names that requests may use in addition to loopback; `*`: any (`front/hosts.py`)."""
    cors_origins: Annotated[tuple[str, ...], Origins()] = ()
    """Origins of web pages that may read responses; `*`: any (`front/cors.py`)."""
    trusted_proxies: Annotated[tuple[Network, ...], Networks()] = ()
    """Addresses and networks of proxies whose `X-Forwarded-For` is trusted (`front/proxies.py`)."""

    # Writes (§2)
    max_batch_records: Count = 10_000
    """Maximum number of records in an append."""
    max_record_bytes: Annotated[int, Bound(1, GIB)] = 1 * MIB
    """Maximum size of a record's data and meta."""
    max_body_bytes: Annotated[int, Bound(1, GIB)] = 64 * MIB
    """Maximum size of the body of an append, or of a request for an incremental backup. A publish
    on a WebSocket has at most 16 MiB, and any other body has at most 128 KiB by default.
    """
    max_meta_bytes: Annotated[int, Bound(1, GIB)] = 16 * KIB
    """Maximum size of a record's meta."""
    # On disk, the lengths of tags and nodes have 16 bits.
    max_tag_bytes: Annotated[int, Bound(1, 65_535)] = 256
    """Maximum size of a tag."""
    max_node_bytes: Annotated[int, Bound(1, 65_535)] = 128
    """Maximum size of a node."""

    # Reads and queues (§3, §7, §10)
    max_limit: Count = 1000
    """Maximum number of records in a page. A larger `limit` is clamped."""
    max_watch_topics: Count = 256
    """Maximum number of topics in a watch session."""
    max_claim: Count = 1000
    """Maximum number of jobs in a claim. A larger `max` is clamped."""

    # Resource limits (§11)
    max_topics: Cap = 100_000
    """Maximum number of topics. For each limit from TOPICS_MAX_TOPICS to TOPICS_MAX_HELD_BYTES, 0
    means no limit.
    """
    max_routers: Cap = 10_000
    """Maximum number of routers."""
    max_watch_sessions: Cap = 10_000
    """Maximum number of watch sessions."""
    max_watch_sessions_per_key: Cap = 5000
    """Maximum number of watch sessions per key."""
    max_sse_connections: Cap = 10_000
    """Maximum number of event streams and WebSockets."""
    max_sse_connections_per_key: Cap = 1000
    """Maximum number of event streams and WebSockets per key."""
    max_inflight_per_key: Cap = 1000
    """Maximum number of concurrent requests per key, including waiting requests."""
    max_total_bytes: Cap = 0
    """Maximum size of the records of all topics."""
    max_held_bytes: Cap = 96 * MIB
    """Maximum size of all unsent responses and events, and of all incomplete requests
    (`front/held_memory.py`).
    """

    # Internal bounds. The pages of rings and arenas use memory only after they are written.
    ring_bytes: Annotated[int, Bound(64 * KIB, GIB, power_of_two=True)] = 4 * MIB
    """Size of the ring from one process to another."""
    inline_bytes: Annotated[int, Bound(1 * KIB, 256 * MIB)] = INLINE_BYTES
    """Size above which a body or response is passed through the arena."""
    arena_bytes: Annotated[int, Bound(1 * MIB, 64 * GIB)] = ARENA_BYTES
    """Size of the arena for large bodies and responses from one process to another."""
    wal_file_bytes: Annotated[int, Bound(64 * KIB, GIB)] = 64 * MIB
    """Maximum size of a log file."""
    wal_sync_ms: Annotated[int, Bound(1, 60_000)] = 200
    """Maximum time until a record of the class `disk` is synced."""
    drain_ms: Annotated[int, Bound(100, 600_000)] = 10_000
    """Maximum time for which shutdown waits for requests in flight."""
    # Bounded, because a shard encodes all requested rows in one step.
    metrics_topics: Annotated[int, Bound(0, 10_000)] = 1000
    """Maximum number of topics, and of routers, that have their own metrics."""
    console: bool = True
    """Serve the web console at `/console`. The page itself needs no key; it prompts the user for
    one.
    """
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged."""
    access_log: Literal["off", "audit", "all"] = "off"
    """Log requests: changes and refusals (`audit`), or `all` (`front/access_log.py`)."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Settings:
        """Read all known variables. Raise one `ConfigError` that lists all problems.

        An empty variable of a setting whose default is "not set" counts as absent, except for the
        key file: without it the server would accept all clients.
        """
        unset = {field.name for field in fields(cls) if field.default in (None, ())}
        unset.discard("api_keys_file")
        given: dict[str, Any] = {}
        problems: list[Problem] = []
        for name, kind in get_type_hints(cls, include_extras=True).items():
            text = environ.get(variable_of(name))
            if text is None or (name in unset and not text.strip()):
                continue
            try:
                given[name] = _parse(kind, text.strip())
            except ValueError as error:
                problems.append(Problem(variable_of(name), text, str(error)))
        settings = cls(**_derived(cls(**given)) | given)
        problems += _conflicts(settings, {problem.variable for problem in problems})
        if problems:
            raise ConfigError(problems, settings)
        return settings

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach ``host`` (§0.2). False for an unknown name."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def lines(self) -> list[str]:
        """Return ``TOPICS_NAME=value`` for each setting with a value, as in an environment file.
        It contains no secret.
        """
        values = {variable_of(field.name): getattr(self, field.name) for field in fields(self)}
        given = {name: value for name, value in values.items() if value not in (None, ())}
        return [f"{name}={_shown(value)}" for name, value in given.items()]


def variable_of(field_name: str) -> str:
    """Return the environment variable of a field."""
    return f"TOPICS_{field_name.upper()}"


def usable_cores() -> int:
    """Return the number of cores that this process may use. Containers and ``taskset`` may allow
    fewer than the machine has.
    """
    return len(os.sched_getaffinity(0))


def unknown_variables(names: Iterable[str]) -> list[tuple[str, str | None]]:
    """Return each ``TOPICS_`` name that is not a setting, with the nearest setting."""
    known = [*(variable_of(field.name) for field in fields(Settings)), API_KEYS]
    ours = {*known, *CLIENT_VARIABLES}
    unknown = sorted(name for name in names if name.startswith("TOPICS_") and name not in ours)
    return [
        (name, next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.75)), None))
        for name in unknown
    ]


def _parse(kind: Any, text: str) -> Any:
    """Return the value of a variable. Raise `ValueError` with the allowed values."""
    if kind is bool:
        return boolean(text)
    if get_origin(kind) is Annotated:
        bound: Bound | Host | HostNames | Networks | Origins = get_args(kind)[1]
        return bound.parse(text)
    if get_origin(kind) is Literal:
        if text.lower() not in get_args(kind):
            raise ValueError(f"must be one of {', '.join(get_args(kind))}")
        return text.lower()
    if not text or "\0" in text:
        raise ValueError("must not be empty")
    return text if kind is str else Path(text)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _largest_message(settings: Settings) -> int:
    """Return the maximum size of a body or response, which must fit into the arena."""
    return max(settings.max_body_bytes, _largest_answer(settings))


def _largest_answer(settings: Settings) -> int:
    return MAX_BATCH_BYTES + settings.max_record_bytes


def _derived(settings: Settings) -> dict[str, int]:
    """Return the defaults that depend on the machine and on other settings.

    An arena has space for four of the largest messages, because a message that is moved needs its
    space twice and must not block the others. `max_held_bytes` allows four of the largest
    responses.
    """
    return {
        "shards": min(64, usable_cores()),
        "inline_bytes": min(INLINE_BYTES, settings.ring_bytes // 4),
        "max_held_bytes": max(96 * MIB, 4 * _largest_answer(settings)),
        "arena_bytes": max(ARENA_BYTES, 1 << (4 * _largest_message(settings) - 1).bit_length()),
    }


def _conflicts(settings: Settings, already: set[str]) -> list[Problem]:
    """Return the problems of valid values that contradict each other."""
    found = []
    if settings.inline_bytes > settings.ring_bytes // 4:
        rule = f"must be at most a quarter of TOPICS_RING_BYTES, which is {settings.ring_bytes}"
        found.append(Problem("TOPICS_INLINE_BYTES", str(settings.inline_bytes), rule))
    if settings.arena_bytes < _largest_message(settings):
        rule = f"must be at least the longest body or response, {_largest_message(settings)} bytes"
        found.append(Problem("TOPICS_ARENA_BYTES", str(settings.arena_bytes), rule))
    return [problem for problem in found if problem.variable not in already]
