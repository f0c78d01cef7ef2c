"""Settings: one frozen value, read once in the supervisor and passed down. Field ``x_y`` is read
from ``TOPICS_X_Y``.

Keys are not settings: ``topics.process.boot`` turns them into digests and forgets them. No module
below the supervisor reads the environment.
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

API_KEYS = "TOPICS_API_KEYS"  # the one variable that is not a setting: it is a secret
CLIENT_VARIABLES = ("TOPICS_URL", "TOPICS_API_KEY")  # a server has no use for them
# The largest byte budget of one read (§7.2); an answer also holds at least one record.
MAX_BATCH_BYTES = 8 * MIB


class Problem(NamedTuple):
    """One mistake in the settings. ``value`` is None where it may be a secret."""

    variable: str
    value: str | None
    rule: str

    def __str__(self) -> str:
        shown = "" if self.value is None else f"={self.value!r}"
        return f"{self.variable}{shown}: {self.rule}"


class ConfigError(Exception):
    """The settings are wrong; ``problems`` holds every mistake, ``str()`` gives one line for each.

    ``settings`` has the values that were right, and defaults for the others: enough to look for
    more mistakes.
    """

    def __init__(self, problems: Sequence[Problem], settings: Settings) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)
        self.settings = settings


Count = Annotated[int, Bound(1)]
Cap = Annotated[int, Bound(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that the environment may set. Sizes in bytes, times in milliseconds, unless the
    name says otherwise. What stands behind a field is its line in docs/reference.md.
    """

    # Where
    host: Annotated[str, Host()] = "127.0.0.1"
    """The address to listen on. One that others can reach needs keys."""
    port: Annotated[int, Bound(0, 65_535)] = 4000
    """The port; 0 lets the kernel choose."""
    data_dir: Path = Path("topics-data")
    """Where the data is kept."""
    shards: Annotated[int, Bound(1, 64)] = 1
    """Processes that hold the data; unset: the usable cores. Fixed when the directory is made."""

    # Who (§0.2); never the keys themselves
    api_keys_file: Path | None = None
    """A file of keys: one entry a line, `SECRET[:SCOPES[:PREFIXES]]`. SIGHUP reads it again."""
    allow_insecure_no_auth: bool = False
    """Serve everyone without keys on an address that others can reach."""
    probe_auth: bool = False
    """Health and ready need a key, too."""
    allowed_hosts: Annotated[tuple[str, ...], HostNames()] = ()
    """Host names of requests beside the loopback ones; `*`: any (`front/hosts.py`)."""
    cors_origins: Annotated[tuple[str, ...], Origins()] = ()
    """Origins of pages that may read answers; `*`: any (`front/cors.py`)."""
    trusted_proxies: Annotated[tuple[Network, ...], Networks()] = ()
    """Addresses and networks of proxies whose `X-Forwarded-For` counts (`front/proxies.py`)."""

    # Writes (§2)
    max_batch_records: Count = 10_000
    """Records of one append."""
    max_record_bytes: Annotated[int, Bound(1, GIB)] = 1 * MIB
    """Bytes of a record's data and meta."""
    max_body_bytes: Annotated[int, Bound(1, GIB)] = 64 * MIB
    """Bytes of an append's body, on a WebSocket at most 16 MiB; other bodies have 128 KiB at
    most.
    """
    max_meta_bytes: Annotated[int, Bound(1, GIB)] = 16 * KIB
    """Bytes of a record's meta."""
    # Lengths of tags and nodes are 16 bits wide on disk.
    max_tag_bytes: Annotated[int, Bound(1, 65_535)] = 256
    """Bytes of a tag."""
    max_node_bytes: Annotated[int, Bound(1, 65_535)] = 128
    """Bytes of a node."""

    # Reads and queues (§3, §7, §10)
    max_limit: Count = 1000
    """Records of one page; a larger `limit` is clamped."""
    max_watch_topics: Count = 256
    """Topics of one watch session."""
    max_claim: Count = 1000
    """Jobs of one claim; a larger `max` is clamped."""

    # Caps (§11)
    max_topics: Cap = 100_000
    """Topics of the server; 0: no cap, as for all caps."""
    max_routers: Cap = 10_000
    """Routers of the server."""
    max_watch_sessions: Cap = 10_000
    """Watch sessions of the server."""
    max_watch_sessions_per_key: Cap = 5000
    """Watch sessions of one key."""
    max_sse_connections: Cap = 10_000
    """Event streams and WebSockets of the server."""
    max_sse_connections_per_key: Cap = 1000
    """Event streams and WebSockets of one key."""
    max_inflight_per_key: Cap = 1000
    """Requests of one key at a time; one that waits counts."""
    max_total_bytes: Cap = 0
    """Bytes of the records of all topics."""
    max_held_bytes: Cap = 96 * MIB
    """Bytes of answers and streams that clients have not taken yet, and as many of requests that
    they have not sent completely (`front/held_memory.py`).
    """

    # Internal bounds. Pages of ring and arena are taken only when touched.
    ring_bytes: Annotated[int, Bound(64 * KIB, GIB, power_of_two=True)] = 4 * MIB
    """Messages under way from one process to another."""
    inline_bytes: Annotated[int, Bound(1 * KIB, 256 * MIB)] = INLINE_BYTES
    """A body or answer above it goes through the arena."""
    arena_bytes: Annotated[int, Bound(1 * MIB, 64 * GIB)] = ARENA_BYTES
    """Long bodies and answers under way from one process to another."""
    wal_file_bytes: Annotated[int, Bound(64 * KIB, GIB)] = 64 * MIB
    """A file of the log, at most."""
    wal_sync_ms: Annotated[int, Bound(1, 60_000)] = 200
    """The longest that a `disk` record waits for its sync."""
    drain_ms: Annotated[int, Bound(100, 600_000)] = 10_000
    """The longest that a stop waits for requests."""
    # A shard encodes its rows at once.
    metrics_topics: Annotated[int, Bound(0, 10_000)] = 1000
    """Topics, and routers, of which metrics tell one by one."""
    console: bool = True
    """Serve a page for people at `/console`, which needs no key itself and asks for one."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe lines that are logged."""
    access_log: Literal["off", "audit", "all"] = "off"
    """Requests in the log: changes and refusals (audit), or all (`front/access_log.py`)."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Settings:
        """Read every known variable; raise one ``ConfigError`` that lists all mistakes."""
        given: dict[str, Any] = {}
        problems: list[Problem] = []
        for name, kind in get_type_hints(cls, include_extras=True).items():
            text = environ.get(variable_of(name))
            if text is None:
                continue
            try:
                given[name] = _parse(kind, text.strip())
            except ValueError as error:
                problems.append(Problem(variable_of(name), text, str(error)))
        settings = cls(**_derived(cls(**given)) | given)
        problems += _disagreements(settings, {problem.variable for problem in problems})
        if problems:
            raise ConfigError(problems, settings)
        return settings

    @property
    def loopback(self) -> bool:
        """``host`` is surely not reachable from outside; an unknown name counts as reachable
        (§0.2).
        """
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def lines(self) -> list[str]:
        """``TOPICS_NAME=value`` for every setting that has a value, as an environment file takes
        it. Holds no secret.
        """
        values = {variable_of(field.name): getattr(self, field.name) for field in fields(self)}
        given = {name: value for name, value in values.items() if value not in (None, ())}
        return [f"{name}={_shown(value)}" for name, value in given.items()]


def variable_of(field_name: str) -> str:
    """The environment variable of a field."""
    return f"TOPICS_{field_name.upper()}"


def usable_cores() -> int:
    """The cores that this process may run on: containers and ``taskset`` may allow fewer than the
    machine has.
    """
    return len(os.sched_getaffinity(0))


def unknown_variables(names: Iterable[str]) -> list[tuple[str, str | None]]:
    """Each name that starts with ``TOPICS_`` and is no setting, with the nearest name of one."""
    known = [*(variable_of(field.name) for field in fields(Settings)), API_KEYS]
    ours = {*known, *CLIENT_VARIABLES}
    unknown = sorted(name for name in names if name.startswith("TOPICS_") and name not in ours)
    return [
        (name, next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.75)), None))
        for name in unknown
    ]


def _parse(kind: Any, text: str) -> Any:
    """The value of one variable; ``ValueError`` says what is allowed."""
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
    """The longest body or answer that one arena block must hold."""
    return max(settings.max_body_bytes, _largest_answer(settings))


def _largest_answer(settings: Settings) -> int:
    return MAX_BATCH_BYTES + settings.max_record_bytes


def _derived(settings: Settings) -> dict[str, int]:
    """Defaults that follow from the machine and from the other values.

    An arena has room for four of the longest messages: one never stops the others, and one that
    moves takes room twice. A key has room for two of the longest answers.
    """
    return {
        "shards": min(64, usable_cores()),
        "inline_bytes": min(INLINE_BYTES, settings.ring_bytes // 4),
        "max_held_bytes": max(96 * MIB, 4 * _largest_answer(settings)),
        "arena_bytes": max(ARENA_BYTES, 1 << (4 * _largest_message(settings) - 1).bit_length()),
    }


def _disagreements(settings: Settings, already: set[str]) -> list[Problem]:
    """Values that are right alone and wrong together, of variables that have no problem already."""
    found = []
    if settings.inline_bytes > settings.ring_bytes // 4:
        rule = f"must be at most a quarter of TOPICS_RING_BYTES, which is {settings.ring_bytes}"
        found.append(Problem("TOPICS_INLINE_BYTES", str(settings.inline_bytes), rule))
    if settings.arena_bytes < _largest_message(settings):
        rule = (
            f"must hold the longest body and the longest answer, {_largest_message(settings)} bytes"
        )
        found.append(Problem("TOPICS_ARENA_BYTES", str(settings.arena_bytes), rule))
    return [problem for problem in found if problem.variable not in already]
